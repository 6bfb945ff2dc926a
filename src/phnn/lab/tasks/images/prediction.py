"""The classes that a trained network gives to images."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import nn

from phnn.lab.tasks.images.decode import Corrupt, CorruptImageError, check_corrupt, read_image
from phnn.lab.tasks.images.preprocess import preprocess
from phnn.lab.tasks.task import Answer

logger = logging.getLogger(__name__)

BATCH = 64  # images predicted at once


class Prediction(NamedTuple):
    """The class of an image."""

    image: str
    label: str
    probability: float


def predict(
    model: nn.Module,
    metadata: Mapping[str, Any],
    inputs: Sequence[str | Path],
    *,
    corrupt: Corrupt = "raise",
) -> Iterator[Answer]:
    """Yield the answer for each image, see `classify`."""
    for found in classify(model, metadata, inputs, corrupt=corrupt):
        line = f"{found.image}: {found.label} ({100 * found.probability:.1f} %)"
        yield Answer([line], [found])


def classify(
    model: nn.Module,
    metadata: Mapping[str, Any],
    images: Sequence[str | Path],
    *,
    corrupt: Corrupt = "raise",
) -> Iterator[Prediction]:
    """Yield the class of each image, with its probability.

    Args:
        model: A network for images, in evaluation mode.
        metadata: The metadata of the network.
        images: Files, or folders of files.
        corrupt: "raise" stops at an image that cannot be read, "skip" leaves it out and says so.
    """
    check_corrupt(corrupt)
    opened = _open_images(_find_images(images), corrupt)
    while batch := list(islice(opened, BATCH)):
        inputs = preprocess([image for _, image in batch], metadata)
        with torch.inference_mode():
            probabilities, labels = model(inputs).softmax(1).max(1)
        names = [metadata["classes"][label] for label in labels.tolist()]
        for (file, _), name, probability in zip(batch, names, probabilities.tolist(), strict=True):
            yield Prediction(str(file), name, probability)


def _find_images(paths: Sequence[str | Path]) -> list[Path]:
    suffixes = Image.registered_extensions()
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no image {path}")
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in suffixes)
        if path.is_dir() and not inside:
            raise ValueError(f"the folder {path} holds no image files")
        found += inside if path.is_dir() else [path]
    return found


def _open_images(files: Sequence[Path], corrupt: Corrupt) -> Iterator[tuple[Path, Image.Image]]:
    for file in files:
        try:
            yield file, read_image(file)
        except CorruptImageError as error:
            if corrupt == "raise":
                raise
            logger.warning("left out: %s", error)
