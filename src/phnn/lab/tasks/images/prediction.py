"""The classes that a trained network gives to images."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phnn.lab.tasks.images.decode import (
    Corrupt,
    CorruptImageError,
    check_corrupt,
    find_suffixes,
    read_image,
)
from phnn.lab.tasks.images.preprocess import check_metadata, cut, preprocess
from phnn.lab.tasks.task import Answer

logger = logging.getLogger(__name__)

BATCH = 64  # images predicted at once, and at most
PIXELS = 64 * 256 * 256  # this many of their pixels: 50 MB as numbers


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
    check_metadata(metadata)
    outputs = getattr(model, "num_outputs", len(metadata["classes"]))
    if len(metadata["classes"]) != outputs:
        raise ValueError(
            f"the network has {outputs} outputs, its metadata {len(metadata['classes'])} classes"
        )
    opened = _open_images(find_images(images), metadata, corrupt)
    while batch := list(islice(opened, _count_batch(metadata))):
        inputs = preprocess(torch.stack([image for _, image in batch]), metadata)
        with torch.inference_mode():
            probabilities, labels = model(inputs).softmax(1).max(1)
        names = [metadata["classes"][label] for label in labels.tolist()]
        for (file, _), name, probability in zip(batch, names, probabilities.tolist(), strict=True):
            yield Prediction(str(file), name, probability)


def read_inputs(metadata: Mapping[str, Any], files: Sequence[str | Path]) -> Iterator[Tensor]:
    """Yield batches of images as a network takes them.

    Args:
        metadata: The metadata of the network.
        files: Image files.
    """
    check_metadata(metadata)
    opened = _open_images([Path(file) for file in files], metadata, "raise")
    while batch := list(islice(opened, _count_batch(metadata))):
        yield preprocess(torch.stack([image for _, image in batch]), metadata)


def _count_batch(metadata: Mapping[str, Any]) -> int:
    """Return how many images of the network's size make a batch."""
    height, width = map(int, metadata["image_size"])
    return max(1, min(BATCH, PIXELS // (height * width)))


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """Return the image files among paths, and in folders among them."""
    suffixes = find_suffixes()
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no image {path}")
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in suffixes)
        if path.is_dir() and not inside:
            raise ValueError(f"the folder {path} holds no image files")
        found += inside if path.is_dir() else [path]
    return found


def _open_images(
    files: Sequence[Path], metadata: Mapping[str, Any], corrupt: Corrupt
) -> Iterator[tuple[Path, Tensor]]:
    """Yield the images one by one, in the network's size: a photo can be 1,000 times as large."""
    for file in files:
        try:
            yield file, cut(read_image(file), metadata)
        except CorruptImageError as error:
            if corrupt == "raise":
                raise
            logger.warning("left out: %s", error)
