"""What trains, compares, reports and reproduces the paper; needs the extra `train`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phnn.lab.distillation import distill
    from phnn.lab.reports.tradeoffs import draw_tradeoff

__all__ = ["distill", "draw_tradeoff"]

_HOMES = {"distill": "phnn.lab.distillation", "draw_tradeoff": "phnn.lab.reports.tradeoffs"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `phnn --help` does not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'phnn.lab' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
