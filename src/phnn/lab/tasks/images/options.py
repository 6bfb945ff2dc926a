"""The options of the learner of image classification."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ClassifierOptions:
    """How a network is trained and tested on images.

    Args:
        label_smoothing: The share of each training label that goes to all classes alike.
        test_flips: Whether validation and test average the outputs for an image and its mirror
            image. A saved network has no part of this.
    """

    label_smoothing: float = 0.0
    test_flips: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                f"learner.label_smoothing={self.label_smoothing} must be at least 0 and below 1"
            )
