"""The scores of sound event detection."""

from typing import Any, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from phnn.lab.tasks.sound.options import Counting


class SoundEventScores(Metric):
    """Measure the paper's F score, error rate and SED score, on totals over all frames.

    In each frame and class, `t` events are true and `p` are predicted; which tracks of the class
    they are in does not matter. A track is active when its probability is above `threshold`, not at
    it. "plain" counts TP = min(t, p), FP = max(0, p − t), FN = max(0, t − p). With the totals

        precision = TP / (TP + FP),  recall = TP / (TP + FN),  f = 2 TP / (2 TP + FP + FN),
        er = max(FP, FN) / (TP + FN),  sed = (er + 1 − f) / 2

    where max(FP, FN) is the paper's S + D + I. "authors" counts as the published code does: all `t`
    are found if one is predicted, TP = Σ t [p > 0], and with T = Σ t and P = Σ p of a frame
    FP = P − TP, which may be negative, FN = T − TP; FP counts twice where T = 0, FN where P = 0.

    Where nothing was predicted, precision is 0. Where nothing was true, recall is 0 and er = FP.
    Where neither was, f is 0.

    Args:
        counting: "plain" or "authors".
        overlaps: The tracks of each class.
        threshold: The probability above which a track is active.

    Shape:
        outputs and targets (batch, frames, classes · overlaps), column class · overlaps + track.

    Example:
        >>> scores = SoundEventScores(overlaps=1)
        >>> scores.update(torch.tensor([[[0.9, 0.2]]]), torch.tensor([[[1.0, 1.0]]]))
        >>> {name: round(value.item(), 3) for name, value in scores.compute().items()}
        {'f': 0.667, 'er': 0.5, 'sed': 0.417, 'precision': 1.0, 'recall': 0.5}
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    true_positives: Tensor
    false_positives: Tensor
    false_negatives: Tensor

    def __init__(
        self,
        counting: Counting = "plain",
        overlaps: int = 3,
        threshold: float = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if counting not in get_args(Counting):
            raise ValueError(
                f"counting={counting!r} must be one of {', '.join(get_args(Counting))}"
            )
        if overlaps < 1:
            raise ValueError(f"overlaps={overlaps} must be at least 1")
        self.counting = counting
        self.overlaps = overlaps
        self.threshold = threshold
        for name in ("true_positives", "false_positives", "false_negatives"):
            self.add_state(name, torch.tensor(0, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count a batch.

        Args:
            outputs: probabilities.
            targets: 1 where an event is active, 0 elsewhere.
        """
        if outputs.shape != targets.shape or outputs.ndim != 3 or outputs.shape[-1] % self.overlaps:
            raise ValueError(
                "outputs and targets must both be (batch, frames, classes · overlaps) with "
                f"overlaps={self.overlaps}, not {tuple(outputs.shape)} and {tuple(targets.shape)}"
            )
        predicted = self._count(outputs > self.threshold)
        true = self._count(targets > 0.5)
        count = count_plainly if self.counting == "plain" else count_as_authors
        found, wrong, missed = count(true, predicted)
        self.true_positives += found
        self.false_positives += wrong
        self.false_negatives += missed

    def _count(self, active: Tensor) -> Tensor:
        """Return the number of active tracks, (batch, frames, classes)."""
        counts: Tensor = active.unflatten(-1, (-1, self.overlaps)).sum(-1)
        return counts

    def compute(self) -> dict[str, Tensor]:
        """Return f, er, sed, precision and recall of what has been counted."""
        found = self.true_positives.cpu().double()
        wrong = self.false_positives.cpu().double()
        missed = self.false_negatives.cpu().double()
        f = _divide(2 * found, 2 * found + wrong + missed)
        er = torch.maximum(wrong, missed) / (found + missed).clamp(min=1)
        scores = {
            "f": f,
            "er": er,
            "sed": (er + 1 - f) / 2,
            "precision": _divide(found, found + wrong),
            "recall": _divide(found, found + missed),
        }
        return {name: score.float() for name, score in scores.items()}


def count_plainly(true: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return TP, FP and FN of numbers of events (..., frames, classes)."""
    found = torch.minimum(true, predicted).sum()
    return found, predicted.sum() - found, true.sum() - found


def count_as_authors(true: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return TP, FP and FN as the paper's published code counts them."""
    found = (true * (predicted > 0)).sum(-1)
    total, claimed = true.sum(-1), predicted.sum(-1)
    wrong = (claimed - found) * (1 + (total == 0).long())
    missed = (total - found) * (1 + (claimed == 0).long())
    return found.sum(), wrong.sum(), missed.sum()


def _divide(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole == 0, torch.zeros_like(whole), part / whole)
