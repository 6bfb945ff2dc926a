"""Model in, PH model out, and back."""

from phnn.conversion.converting import convert
from phnn.conversion.folding import to_dense
from phnn.conversion.report import Entry, Point, Report
from phnn.conversion.tradeoffs import tradeoff

__all__ = ["Entry", "Point", "Report", "convert", "to_dense", "tradeoff"]
