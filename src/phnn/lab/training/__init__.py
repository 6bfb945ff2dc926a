"""Training on Lightning: one function that carries a recipe out, and continues where it stopped."""

from phnn.lab.training.build import check_recipe
from phnn.lab.training.classifier import Classifier
from phnn.lab.training.detector import Detector
from phnn.lab.training.folder import RunFolderError
from phnn.lab.training.learner import Learner, NonFiniteLossError
from phnn.lab.training.run import train

__all__ = [
    "Classifier",
    "Detector",
    "Learner",
    "NonFiniteLossError",
    "RunFolderError",
    "check_recipe",
    "train",
]
