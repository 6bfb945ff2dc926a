"""Model in, PH model out, and back."""

from phnn.conversion.converting import convert
from phnn.conversion.folding import to_dense
from phnn.conversion.report import Entry, Report

__all__ = ["Entry", "Report", "convert", "to_dense"]
