"""Comparisons: variants of networks, trained by one recipe for each family."""

from phnn.lab.comparison.definition import BASELINE, Comparison, Variant, load_comparison
from phnn.lab.comparison.planning import check_folders, plan
from phnn.lab.training.processes import hold, run_all

__all__ = [
    "BASELINE",
    "Comparison",
    "Variant",
    "check_folders",
    "hold",
    "load_comparison",
    "plan",
    "run_all",
]
