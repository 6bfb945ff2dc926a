"""What PH layers learned: the algebra, the terms in use, the multiplications it needs."""

from phnn.analysis.counting import count_multiplications, thop_ops
from phnn.analysis.description import Description, LayerDescription, describe
from phnn.analysis.known import cross, known
from phnn.analysis.planar import Plane, classify, hyperdeterminant
from phnn.analysis.spans import MATCH, Neighbour, distance, neighbours
from phnn.analysis.terms import effective_terms, usage

__all__ = [
    "MATCH",
    "Description",
    "LayerDescription",
    "Neighbour",
    "Plane",
    "classify",
    "count_multiplications",
    "cross",
    "describe",
    "distance",
    "effective_terms",
    "hyperdeterminant",
    "known",
    "neighbours",
    "thop_ops",
    "usage",
]
