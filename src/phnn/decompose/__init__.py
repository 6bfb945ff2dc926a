"""Decompositions: dense weights into (A, F), algebras into (U, V, W)."""

from phnn.decompose.bilinear import Declined, Decomposition, bilinear, bilinear_many
from phnn.decompose.nearest import Nearest, divisors, errors, nearest, nearest_shared, spectrum

__all__ = [
    "Declined",
    "Decomposition",
    "Nearest",
    "bilinear",
    "bilinear_many",
    "divisors",
    "errors",
    "nearest",
    "nearest_shared",
    "spectrum",
]
