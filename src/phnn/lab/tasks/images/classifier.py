"""The learner of image classification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from phnn.lab.recipe import Recipe
from phnn.lab.tasks.images.options import ClassifierOptions
from phnn.lab.tasks.learner import Learner
from phnn.models import Network


class Classifier(Learner):
    """Learn classes by cross-entropy.

    Args:
        model: A network with one output for each class.
        recipe: How to train it.
        metadata: The metadata of the data, with the names of the classes.
    """

    def __init__(self, model: Network, recipe: Recipe, metadata: Mapping[str, Any]) -> None:
        accuracy = MulticlassAccuracy(len(metadata["classes"]), average="micro")
        super().__init__(model, recipe, metadata, {"accuracy": accuracy})
        self.options = ClassifierOptions(**recipe.learner)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, in training with smoothed labels."""
        smoothing = self.options.label_smoothing if self.training else 0.0
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=smoothing)

    def infer(self, inputs: Tensor) -> Tensor:
        """Return the mean of the outputs for the images and, if wanted, their mirror images."""
        if not self.options.test_flips:
            return super().infer(inputs)
        outputs: Tensor = (self(inputs) + self(inputs.flip(3))) / 2
        return outputs
