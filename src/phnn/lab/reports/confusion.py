"""Which classes a network takes for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBERED = 12  # classes up to which the cells of the matrix hold numbers
NAMED = 30  # classes up to which its rows and columns have names

Counts = npt.NDArray[np.int64]


class ClassScore(NamedTuple):
    """How well a network knows a class; in percent.

    Attributes:
        name: Of the class.
        images: Of the class.
        recall: Of these, the part that was recognized.
        precision: Of what was taken for the class, the part that is; None for nothing.
        mistaken: The class that it was most often taken for instead; None when it never was.
    """

    name: str
    images: int
    recall: float | None
    precision: float | None
    mistaken: str | None


def count_confusions(labels: Counts, predictions: Counts, classes: int) -> Counts:
    """Returns how often each class (row) was taken for each (column).

    Args:
        labels: What the images show.
        predictions: What they were taken for.
        classes: Number of classes.

    Example:
        >>> count_confusions(np.array([0, 1, 1]), np.array([0, 0, 1]), 2).tolist()
        [[1, 0], [1, 1]]
    """
    matrix = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(matrix, (labels, predictions), 1)
    return matrix


def score_classes(matrix: Counts, classes: Sequence[str]) -> list[ClassScore]:
    """Returns the scores of each class.

    Args:
        matrix: As `count_confusions` gives it.
        classes: Their names.
    """
    scores = []
    for i, name in enumerate(classes):
        wrong = matrix[i].copy()
        wrong[i] = 0
        mistaken = classes[int(wrong.argmax())] if wrong.any() else None
        right, count, claimed = int(matrix[i, i]), int(matrix[i].sum()), int(matrix[:, i].sum())
        scores.append(
            ClassScore(name, count, _percent(right, count), _percent(right, claimed), mistaken)
        )
    return scores


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def draw_confusions(matrix: Counts, classes: Sequence[str], title: str) -> Figure:
    """Draws a confusion matrix in percent of each row.

    Args:
        matrix: As `count_confusions` gives it.
        classes: Their names.
        title: Of the figure.
    """
    from matplotlib.figure import Figure

    count = len(classes)
    shares = 100 * matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    figure = Figure(figsize=(5.2, 4.9), layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    figure.colorbar(image, ax=panel, shrink=0.8, label="% of the class")
    panel.set_title(title, fontsize="medium")
    panel.set_xlabel("taken for")
    panel.set_ylabel("class")
    if count <= NAMED:
        size = min(9.0, 150 / count)
        panel.set_xticks(range(count), classes, rotation=90, fontsize=size)
        panel.set_yticks(range(count), classes, fontsize=size)
    if count <= NUMBERED:
        for row, column in zip(*np.nonzero(matrix), strict=True):
            share = shares[row, column]
            colour = "white" if share > 55 else "black"
            text = f"{share:.0f}" if share >= 0.5 else "<1"
            panel.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    return figure
