"""Parameterized hypercomplex neural networks: layers with 1/n of the parameters."""

from phnn import algebra, analysis, decompose, functional, init, models, nn, tasks, testing
from phnn.io import export, load, save
from phnn.models import create_model, list_models
from phnn.nn import (
    PHConv1d,
    PHConv2d,
    PHConv3d,
    PHConvTranspose1d,
    PHConvTranspose2d,
    PHConvTranspose3d,
    PHLinear,
    param_groups,
)
from phnn.surgery import accelerate, convert, to_dense

__version__ = "0.1.0.dev0"

__all__ = [
    "PHConv1d",
    "PHConv2d",
    "PHConv3d",
    "PHConvTranspose1d",
    "PHConvTranspose2d",
    "PHConvTranspose3d",
    "PHLinear",
    "accelerate",
    "algebra",
    "analysis",
    "convert",
    "create_model",
    "decompose",
    "export",
    "functional",
    "init",
    "list_models",
    "load",
    "models",
    "nn",
    "param_groups",
    "save",
    "tasks",
    "testing",
    "to_dense",
]
