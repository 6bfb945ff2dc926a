"""Model in, model out: dense layers to PH layers, and back."""

from phnn.surgery.conversion import convert
from phnn.surgery.folding import to_dense
from phnn.surgery.report import Entry, Report

__all__ = ["Entry", "Report", "convert", "to_dense"]
