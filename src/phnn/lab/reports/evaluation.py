"""What trained networks answer for each image of their test part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phnn.io import replacing
from phnn.lab.recipe import Recipe, Tree, build_recipe, merge
from phnn.lab.reports.drawing import Say
from phnn.lab.runs import MODEL, Run
from phnn.lab.tasks import Data
from phnn.lab.tasks.images import ImageData
from phnn.lab.tasks.sound import SoundData
from phnn.lab.trained import Trained, fit_data, load_trained
from phnn.lab.training.build import build_data

EVALUATION = "evaluation.npz"  # in the folder of a run


class DataMissingError(ValueError):
    """The data of a run cannot be read."""


@dataclass(frozen=True)
class Evaluation:
    """The answers of a network for the test part of its data.

    Attributes:
        classes: Their names.
        labels: What each image shows.
        predictions: What it was taken for.
        probabilities: Of what it was taken for.
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


Evaluated = tuple[Run, Evaluation]


class Shelf:
    """The data of runs, each read once.

    Args:
        overrides: Parts of their recipes to replace, such as where the data are.
    """

    def __init__(self, overrides: Tree | None = None) -> None:
        self._overrides = overrides or {}
        self._found: dict[str, Data | DataMissingError] = {}

    def open_images(self, trained: Trained) -> ImageData:
        """Returns the images of a network, ready for it until the next one asks.

        Raises:
            DataMissingError: They cannot be read; the message says why, and what to do.
        """
        data = self._open(trained)
        assert isinstance(data, ImageData)  # the task of the recipe
        return data

    def open_sound(self, trained: Trained) -> SoundData:
        """Returns the recordings of a network, ready for it until the next one asks.

        Raises:
            DataMissingError: They cannot be read; the message says why, and what to do.
        """
        data = self._open(trained)
        assert isinstance(data, SoundData)  # the task of the recipe
        return data

    def name(self, trained: Trained) -> str:
        """Returns a text that is the same for the same data."""
        recipe = self._recipe(trained)
        return json.dumps([recipe.data, recipe.seed], sort_keys=True)

    def _recipe(self, trained: Trained) -> Recipe:
        return build_recipe(merge(trained.recipe.to_dict(), self._overrides))

    def _open(self, trained: Trained) -> Data:
        key = self.name(trained)
        if key not in self._found:
            try:
                self._found[key] = build_data(self._recipe(trained))
            except (OSError, ValueError) as error:
                self._found[key] = DataMissingError(
                    f"the data of the runs cannot be read: {error}. Give --data.root FOLDER to say "
                    "where they are"
                )
        found = self._found[key]
        if isinstance(found, DataMissingError):
            raise found
        try:
            fit_data(found, trained)
        except ValueError as error:
            raise DataMissingError(str(error)) from error
        return found


def evaluate_run(folder: Path, shelf: Shelf, say: Say | None = None) -> Evaluation:
    """Returns the answers of a run's network, which are kept in the run's folder.

    Args:
        folder: Of the run.
        shelf: Where its data are found, when the answers for them are not there yet.
        say: Is told when the network is asked, which takes a while.

    Raises:
        DataMissingError: The data cannot be read.
    """
    trained = load_trained(folder)
    digest = hashlib.sha256((folder / MODEL).read_bytes() + shelf.name(trained).encode())
    kept = _read(folder / EVALUATION, digest.hexdigest())
    if kept is not None:
        return kept
    data = shelf.open_images(trained)
    if say is not None:
        say(f"tests {folder.name}")
    made = _evaluate(trained, data)
    with replacing(folder / EVALUATION) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            digest=digest.hexdigest(),
            classes=np.array(made.classes),
            labels=made.labels,
            predictions=made.predictions,
            probabilities=made.probabilities,
        )
    return made


def evaluate_runs(runs: Iterable[Run], shelf: Shelf, say: Say) -> list[Evaluated]:
    """Returns runs with the answers of their networks.

    Args:
        runs: Whose networks are here.
        shelf: Where their data are found.
        say: Is told what takes a while.

    Raises:
        DataMissingError: The data cannot be read.
    """
    return [(run, evaluate_run(run.folder, shelf, say)) for run in runs]


def _read(path: Path, digest: str) -> Evaluation | None:
    """Returns what a file holds if it is of the network and the data with this digest."""
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as file:
        if "digest" not in file or str(file["digest"]) != digest:
            return None
        classes = tuple(str(name) for name in file["classes"])
        return Evaluation(classes, file["labels"], file["predictions"], file["probabilities"])


def _evaluate(trained: Trained, data: ImageData) -> Evaluation:
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = trained.model.to(device)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    with torch.inference_mode():
        for batch in data.test_dataloader():
            moved = batch._replace(images=batch.images.to(device))
            inputs, labels = data.on_after_batch_transfer(moved, 0)
            probabilities, predictions = model(inputs).softmax(1).max(1)
            parts.append((labels, predictions.cpu(), probabilities.float().cpu()))
    answers = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    return Evaluation(tuple(data.classes), *answers)


def take_images(data: ImageData, places: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Returns images of the test part as they are, and as a network takes them.

    Args:
        data: Whose test part to use.
        places: Of the images, counted from 0.
    """
    images: dict[int, Tensor] = {}
    inputs: dict[int, Tensor] = {}
    start = 0
    for batch in data.test_dataloader():
        stop = start + len(batch.images)
        wanted = [place for place in places if start <= place < stop]
        if wanted:
            ready, _ = data.on_after_batch_transfer(batch, 0)
            images |= {place: batch.images[place - start] for place in wanted}
            inputs |= {place: ready[place - start] for place in wanted}
        start = stop
        if len(images) == len(set(places)):
            break
    return tuple(torch.stack([found[place] for place in places]) for found in (images, inputs))  # type: ignore[return-value]


def choose_cases(evaluation: Evaluation, right: bool, count: int) -> list[int]:
    """Returns the places of the images about which a network is the most certain.

    One image for each class, as far as possible.

    Args:
        evaluation: Its answers.
        right: Whether to choose from the right answers or the wrong ones.
        count: How many.
    """
    places = np.flatnonzero(evaluation.right == right)
    order = places[np.argsort(-evaluation.probabilities[places], kind="stable")]
    first: dict[int, int] = {}
    for place in order.tolist():
        first.setdefault(int(evaluation.labels[place]), place)
    others = [place for place in order.tolist() if place not in first.values()]
    return [*first.values(), *others][:count]
