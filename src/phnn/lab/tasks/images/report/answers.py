"""The answers of trained networks for their test images."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from phnn.io import replacing
from phnn.io.arrays import read_arrays
from phnn.lab.runs import Run
from phnn.lab.tasks.images import ImageData
from phnn.lab.tasks.report import RunLoader, Say

logger = logging.getLogger(__name__)

FILE = "evaluation.npz"  # in the folder of a run
COLUMNS = {"labels": np.int64, "predictions": np.int64, "probabilities": np.float32}


@dataclass(frozen=True)
class Answers:
    """What a network answers for each image of the test split.

    Attributes:
        classes: The names of the classes.
        labels: The true class of each image.
        predictions: The predicted class of each image.
        probabilities: The probability of the predicted class.
    """

    classes: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    predictions: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float32]

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Whether each answer is right."""
        right: npt.NDArray[np.bool_] = self.labels == self.predictions
        return right

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return float(self.right.mean())


def find_answers(run: Run, loader: RunLoader, say: Say) -> Answers:
    """Return the answers of a run's network, and keep them in the folder of the run.

    Args:
        run: A run with a saved network.
        loader: Loads the network and its data if there are no answers yet.
        say: Called with a message before the network is tested.

    Raises:
        DataMissingError: The data cannot be read.
    """
    path, digest = run.folder / FILE, loader.digest(run)
    kept = _read(path, digest)
    if kept is not None:
        return kept
    model, data = loader.load(run)
    say(f"testing {run.folder.name}")
    answers = _test(model, data)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            digest=digest,
            classes=np.array(answers.classes),
            labels=answers.labels,
            predictions=answers.predictions,
            probabilities=answers.probabilities,
        )
    return answers


def _read(path: Path, digest: str) -> Answers | None:
    """Return the answers in a file if they belong to the network and data with this digest."""
    if not path.is_file():
        return None
    try:
        kept = read_arrays(path)
        if str(kept.get("digest")) != digest:
            return None
        classes = tuple(map(str, kept["classes"]))
        columns = [kept[name] for name in COLUMNS]
        if {each.shape for each in columns} != {(len(columns[0]),)}:
            raise ValueError("its columns differ in length")
        if not all(
            0 <= each.min(initial=0) <= each.max(initial=0) < len(classes) for each in columns[:2]
        ):
            raise ValueError("it has classes without a name")
        return Answers(
            classes,
            *(each.astype(kind) for each, kind in zip(columns, COLUMNS.values(), strict=True)),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s is damaged (%s) and is made again", path, error)
        return None


def _test(model: nn.Module, data: ImageData) -> Answers:
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model.to(device)
    batches: list[tuple[Tensor, Tensor, Tensor]] = []
    with torch.inference_mode():
        for batch in data.test_dataloader():
            moved = batch._replace(images=batch.images.to(device))
            inputs, labels = data.on_after_batch_transfer(moved, 0)
            probabilities, predictions = model(inputs).softmax(1).max(1)
            batches.append((labels, predictions.cpu(), probabilities.float().cpu()))
    columns = (torch.cat(column).numpy() for column in zip(*batches, strict=True))
    return Answers(tuple(data.classes), *columns)


def take_images(data: ImageData, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return images of the test split as they are, and as inputs of a network.

    Args:
        data: The data.
        indices: The indices of the images in the test split.
    """
    images: dict[int, Tensor] = {}
    inputs: dict[int, Tensor] = {}
    start = 0
    for batch in data.test_dataloader():
        stop = start + len(batch.images)
        wanted = [index for index in indices if start <= index < stop]
        if wanted:
            ready, _ = data.on_after_batch_transfer(batch, 0)
            images |= {index: batch.images[index - start] for index in wanted}
            inputs |= {index: ready[index - start] for index in wanted}
        start = stop
        if len(images) == len(set(indices)):
            break
    return torch.stack([images[i] for i in indices]), torch.stack([inputs[i] for i in indices])


def choose_cases(answers: Answers, right: bool, count: int) -> list[int]:
    """Return the indices of the images about which a network is most certain.

    There is one image of each class, as far as possible.

    Args:
        answers: The answers of the network.
        right: Whether to choose among the right answers or the wrong ones.
        count: The number of images.
    """
    indices = np.flatnonzero(answers.right == right)
    order = indices[np.argsort(-answers.probabilities[indices], kind="stable")].tolist()
    first: dict[int, int] = {}
    for index in order:
        first.setdefault(int(answers.labels[index]), index)
    others = [index for index in order if index not in first.values()]
    return [*first.values(), *others][:count]
