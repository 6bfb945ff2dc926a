"""Model in, the fastest equal model out."""

from phnn.acceleration.accelerating import accelerate
from phnn.acceleration.report import Acceleration, LayerSpeed

__all__ = ["Acceleration", "LayerSpeed", "accelerate"]
