"""Comparisons: variants of networks, trained by one recipe for each family."""

from phnn.lab.comparison.definition import (
    BASELINE,
    TIMES,
    Comparison,
    Variant,
    load_comparison,
    with_seeds,
)
from phnn.lab.comparison.planning import check_folders, choose, plan
from phnn.lab.training.processes import find_devices, hold, run_all

__all__ = [
    "BASELINE",
    "TIMES",
    "Comparison",
    "Variant",
    "check_folders",
    "choose",
    "find_devices",
    "hold",
    "load_comparison",
    "plan",
    "run_all",
    "with_seeds",
]
