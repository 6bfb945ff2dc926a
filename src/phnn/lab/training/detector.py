"""The learner of sound event detection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from phnn.lab.recipe import Recipe
from phnn.lab.tasks.sound import SoundEventScores
from phnn.lab.training.learner import Learner
from phnn.models import Network


class Detector(Learner):
    """Tells which events are heard in each frame, by binary cross-entropy over all places.

    The network gives logits: the loss of a probability that has rounded to 0 or 1 is infinite. As
    in the paper's code, the best epoch is that of the lowest validation loss.

    Args:
        model: A SEDnet with `logits=True`.
        recipe: How to train it.
        metadata: With the names of the classes.
    """

    score = "loss"
    lower_is_better = True

    def __init__(self, model: Network, recipe: Recipe, metadata: Mapping[str, Any]) -> None:
        if not model.config["logits"]:
            raise ValueError("a detector is trained on logits; leave --model.logits at true")
        scores = SoundEventScores(overlaps=metadata["overlaps"])
        super().__init__(model, recipe, metadata, {"events": scores})

    @staticmethod
    def network_options(metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the size of the spectrograms and of the labels."""
        return {"bins": metadata["bins"], "overlaps": metadata["overlaps"], "logits": True}

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean binary cross-entropy over clips, frames and places."""
        return nn.functional.binary_cross_entropy_with_logits(outputs, targets)

    def answers(self, outputs: Tensor) -> Tensor:
        """Returns the probabilities."""
        return outputs.sigmoid()

    def count_parameters(self) -> dict[str, int]:
        """Returns also the size of the convolutions: it is what the paper's tables have."""
        convolutions = self.model.get_submodule("cnn").parameters()
        return {
            **super().count_parameters(),
            "conv_parameters": sum(p.numel() for p in convolutions),
        }
