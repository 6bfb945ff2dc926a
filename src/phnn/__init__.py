"""Parameterized hypercomplex neural networks: layers with 1/n of the parameters."""

from phnn import algebra, functional, init, models, nn, tasks, testing
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

__version__ = "0.1.0.dev0"

__all__ = [
    "PHConv1d",
    "PHConv2d",
    "PHConv3d",
    "PHConvTranspose1d",
    "PHConvTranspose2d",
    "PHConvTranspose3d",
    "PHLinear",
    "algebra",
    "create_model",
    "functional",
    "init",
    "list_models",
    "models",
    "nn",
    "param_groups",
    "tasks",
    "testing",
]
