"""Parameterized hypercomplex neural networks: layers with 1/n of the parameters."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phnn import algebra, analysis, decompose, functional, init, lab, models, nn, testing
    from phnn.acceleration import accelerate
    from phnn.adaptation import adapt, list_adapters, merge, remove_adapter, use_adapter
    from phnn.conversion import convert, to_dense
    from phnn.io import export, export_lora, load, load_adapter, save, save_adapter
    from phnn.models import create_model, list_models
    from phnn.nn import (
        PHGRU,
        PHLSTM,
        PHRNN,
        ComponentBatchNorm,
        ComponentDropout,
        ComponentLayerNorm,
        PHConv1d,
        PHConv2d,
        PHConv3d,
        PHConvTranspose1d,
        PHConvTranspose2d,
        PHConvTranspose3d,
        PHEmbedding,
        PHGRUCell,
        PHLinear,
        PHLSTMCell,
        PHMultiheadAttention,
        PHRNNCell,
        PHTransformerDecoderLayer,
        PHTransformerEncoderLayer,
        WhiteningBatchNorm,
        param_groups,
    )

__version__ = "0.1.0.dev0"

__all__ = [
    "PHGRU",
    "PHLSTM",
    "PHRNN",
    "ComponentBatchNorm",
    "ComponentDropout",
    "ComponentLayerNorm",
    "PHConv1d",
    "PHConv2d",
    "PHConv3d",
    "PHConvTranspose1d",
    "PHConvTranspose2d",
    "PHConvTranspose3d",
    "PHEmbedding",
    "PHGRUCell",
    "PHLSTMCell",
    "PHLinear",
    "PHMultiheadAttention",
    "PHRNNCell",
    "PHTransformerDecoderLayer",
    "PHTransformerEncoderLayer",
    "WhiteningBatchNorm",
    "accelerate",
    "adapt",
    "algebra",
    "analysis",
    "convert",
    "create_model",
    "decompose",
    "export",
    "export_lora",
    "functional",
    "init",
    "lab",
    "list_adapters",
    "list_models",
    "load",
    "load_adapter",
    "merge",
    "models",
    "nn",
    "param_groups",
    "remove_adapter",
    "save",
    "save_adapter",
    "testing",
    "to_dense",
    "use_adapter",
]

# where each name lives; whatever is not listed here is a module of the package
_HOMES = {
    **dict.fromkeys([name for name in __all__ if name[0].isupper()], "phnn.nn"),
    "accelerate": "phnn.acceleration",
    "adapt": "phnn.adaptation",
    "convert": "phnn.conversion",
    "create_model": "phnn.models",
    "export": "phnn.io",
    "export_lora": "phnn.io",
    "list_adapters": "phnn.adaptation",
    "list_models": "phnn.models",
    "load": "phnn.io",
    "load_adapter": "phnn.io",
    "merge": "phnn.adaptation",
    "param_groups": "phnn.nn",
    "remove_adapter": "phnn.adaptation",
    "save": "phnn.io",
    "save_adapter": "phnn.io",
    "to_dense": "phnn.conversion",
    "use_adapter": "phnn.adaptation",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import phnn` alone does not load torch."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in __all__:
        value = import_module(f"phnn.{name}")
    else:
        raise AttributeError(f"module 'phnn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
