"""The options of the learner of sound event detection."""

from dataclasses import dataclass
from typing import Literal, get_args

Counting = Literal["plain", "authors"]  # here, as torchmetrics takes long to import


@dataclass(frozen=True)
class DetectorOptions:
    """How found events are counted.

    Args:
        counting: How events are counted in all splits: "plain", or "authors" as in the code
            published with the paper, see `SoundEventScores`. It changes scores, never the training.
    """

    counting: Counting = "plain"

    def __post_init__(self) -> None:
        if self.counting not in get_args(Counting):
            known = " or ".join(get_args(Counting))
            raise ValueError(f"learner.counting={self.counting!r} must be {known}")
