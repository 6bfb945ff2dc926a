"""Model in, model out: dense layers to PH layers, and back, or to the fastest that are equal."""

from phnn.surgery.acceleration import accelerate
from phnn.surgery.conversion import convert
from phnn.surgery.folding import to_dense
from phnn.surgery.report import Entry, Report
from phnn.surgery.speed import Acceleration, LayerSpeed

__all__ = ["Acceleration", "Entry", "LayerSpeed", "Report", "accelerate", "convert", "to_dense"]
