"""The learner of sound event detection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from phnn.lab.recipe import Recipe
from phnn.lab.tasks.learner import Learner
from phnn.lab.tasks.sound.metrics import SoundEventScores
from phnn.lab.tasks.sound.options import DetectorOptions
from phnn.models import Network, SEDnet


class Detector(Learner):
    """Learn which events are active in each frame, by binary cross-entropy over all tracks.

    The network gives logits: the loss of a probability that rounds to 0 or 1 is infinite.

    Args:
        model: A SEDnet with `logits=True`.
        recipe: How to train it.
        metadata: The metadata of the data, with the names of the classes.
    """

    def __init__(self, model: Network, recipe: Recipe, metadata: Mapping[str, Any]) -> None:
        if not model.config.get("logits", True):
            raise ValueError("a detector is trained on logits; leave --model.logits at true")
        counting = DetectorOptions(**recipe.learner).counting
        scores = SoundEventScores(counting, metadata["overlaps"])
        super().__init__(model, recipe, metadata, {"events": scores})

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean binary cross-entropy over recordings, frames and tracks."""
        return nn.functional.binary_cross_entropy_with_logits(outputs, targets)

    def answers(self, outputs: Tensor) -> Tensor:
        """Return the probabilities."""
        return outputs.sigmoid()

    def count_parameters(self) -> dict[str, int]:
        """Return the size of the network, and that of its convolutions, which the paper prints."""
        counts = super().count_parameters()
        if isinstance(self.model, SEDnet):
            convolutions = self.model.get_submodule("cnn").parameters()
            counts["conv_parameters"] = sum(p.numel() for p in convolutions)
        return counts
