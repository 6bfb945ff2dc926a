"""Training on Lightning: one function that carries a recipe out, and continues where it stopped."""

from phnn.tasks.training.build import check_recipe
from phnn.tasks.training.classifier import Classifier
from phnn.tasks.training.detector import Detector
from phnn.tasks.training.folder import RunFolderError
from phnn.tasks.training.learner import Learner, NonFiniteLossError
from phnn.tasks.training.run import train

__all__ = [
    "Classifier",
    "Detector",
    "Learner",
    "NonFiniteLossError",
    "RunFolderError",
    "check_recipe",
    "train",
]
