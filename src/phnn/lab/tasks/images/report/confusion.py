"""Which classes a network confuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from phnn.lab.tasks.images.report.answers import Answers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBERED = 12  # classes up to which the cells of the matrix hold numbers
NAMED = 30  # classes up to which its rows and columns have names

Counts = npt.NDArray[np.int64]


class ClassScore(NamedTuple):
    """How well a network recognizes a class.

    Attributes:
        name: The name of the class.
        images: The number of its images.
        recall: The percentage of its images that were recognized; None without images.
        mistaken: The class that most of its other images were taken for; None without any.
    """

    name: str
    images: int
    recall: float | None
    mistaken: str | None


def count_confusions(answers: Answers) -> Counts:
    """Return how often each class (row) was taken for each class (column)."""
    from torchmetrics.functional.classification import multiclass_confusion_matrix

    predictions, labels = torch.from_numpy(answers.predictions), torch.from_numpy(answers.labels)
    counts = multiclass_confusion_matrix(predictions, labels, num_classes=len(answers.classes))
    matrix: Counts = counts.numpy()
    return matrix


def score_classes(matrix: Counts, classes: Sequence[str]) -> list[ClassScore]:
    """Return the scores of each class.

    Args:
        matrix: What `count_confusions` returned.
        classes: The names of the classes.
    """
    scores = []
    for i, (name, row) in enumerate(zip(classes, matrix, strict=True)):
        images, wrong = int(row.sum()), np.where(np.arange(len(row)) == i, 0, row)
        recall = 100 * float(row[i]) / images if images else None
        mistaken = classes[int(wrong.argmax())] if wrong.any() else None
        scores.append(ClassScore(name, images, recall, mistaken))
    return scores


def draw_confusions(matrix: Counts, classes: Sequence[str], title: str) -> Figure:
    """Draw a confusion matrix in percent of each row.

    Args:
        matrix: What `count_confusions` returned.
        classes: The names of the classes.
        title: The title of the figure.
    """
    from matplotlib.figure import Figure

    count = len(classes)
    shares = 100 * matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    figure = Figure(figsize=(5.2, 4.9), layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    figure.colorbar(image, ax=panel, shrink=0.8, label="% of the class")
    panel.set_title(title, fontsize="medium")
    panel.set_xlabel("predicted class")
    panel.set_ylabel("true class")
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
