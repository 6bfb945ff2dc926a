"""Sets of images in memory, loaded by name."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from phnn._names import suggest
from phnn.lab.seeds import generator_of, permutation_of
from phnn.lab.tasks.images.cache import cached_splits
from phnn.lab.tasks.images.decode import Corrupt, decode_rows
from phnn.lab.tasks.images.known import KNOWN
from phnn.lab.tasks.images.sources import open_source

logger = logging.getLogger(__name__)

ROTATION = (2, 2, 2)  # with the seed, the stream of the angles
HELD_OUT = 0.1  # of the images become the test split of a source that has none


@dataclass(frozen=True)
class ImageSet:
    """Images with their labels.

    Attributes:
        images: uint8 (N, 3, height, width).
        labels: int64 (N,), indices into `classes`.
        classes: The name of each class.
        groups: int64 (N,) or None. Images of one group, such as two views of one object, are never
            in two splits.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(
                f"images must be uint8 of shape (N, 3, height, width), "
                f"not {images.dtype} of shape {tuple(images.shape)}"
            )
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"labels must be int64 of shape ({len(images)},), "
                f"not {labels.dtype} of shape {tuple(labels.shape)}"
            )
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.classes):
            raise ValueError(
                f"labels must lie in 0..{len(self.classes) - 1} as there are {len(self.classes)} "
                f"classes; found {int(labels.min())}..{int(labels.max())}"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.images.shape[2], self.images.shape[3]

    def take(self, index: Tensor) -> "ImageSet":
        """Return the images that `index`, a tensor of positions or a mask, selects."""
        groups = None if self.groups is None else self.groups[index]
        return replace(self, images=self.images[index], labels=self.labels[index], groups=groups)

    def rotate(self, seed: int) -> "ImageSet":
        """Turn each image by 0, 90, 180 or 270 degrees at random, and make the angle a class.

        The classes are pairs, "cat 90°": a harder task from the same images.

        Args:
            seed: The seed of the angles.
        """
        if self.image_size[0] != self.image_size[1]:
            raise ValueError(
                f"rotations need square images, not {self.image_size} pixels; give image_size"
            )
        turns = torch.randint(4, (len(self),), generator=generator_of(seed, *ROTATION))
        images = self.images.clone()
        for turn in (1, 2, 3):
            images[turns == turn] = images[turns == turn].rot90(turn, (2, 3))
        classes = tuple(f"{name} {90 * turn}°" for name in self.classes for turn in range(4))
        return replace(self, images=images, labels=4 * self.labels + turns, classes=classes)

    def split(self, fraction: float, seed: int) -> tuple["ImageSet", "ImageSet"]:
        """Split off a random fraction, keeping groups together.

        Args:
            fraction: The fraction of the groups, or of the images where there are no groups.
            seed: The seed of the split.

        Returns:
            The rest and the fraction.
        """
        each = torch.arange(len(self), device=self.labels.device)
        groups = each if self.groups is None else self.groups
        members = groups.unique()
        count = round(fraction * len(members))
        if not 0 < count < len(members):
            raise ValueError(
                f"a fraction {fraction} of {len(members)} images leaves one split empty; "
                "give a fraction that takes at least one and leaves at least one"
            )
        chosen = torch.isin(groups, members[permutation_of(len(members), seed)[:count]])
        return self.take(~chosen), self.take(chosen)


@dataclass(frozen=True)
class ImageSplits:
    """The splits of a data set.

    Attributes:
        train: The images to learn from.
        validation: The images to choose by; None where the source has no such split.
        test: The images to measure on, once, at the end.
        skipped: The corrupt images that were left out, as "name: reason".
    """

    train: ImageSet
    validation: ImageSet | None
    test: ImageSet
    skipped: tuple[str, ...] = ()


def load_images(
    name: str,
    root: str | Path | None = None,
    *,
    image_size: int | None = None,
    corrupt: Corrupt = "raise",
    seed: int = 0,
) -> ImageSplits:
    """Load a data set into memory.

    Images are decoded once and kept as uint8 in `$PHNN_CACHE` (`~/.cache/phnn` by default), under
    a key that changes with the source. Grey images are repeated into RGB, transparent ones are
    put on white.

    Args:
        name: "digits" (not downloaded), "cifar10", "cifar100", "svhn", "imagenet" or a Hugging
            Face hub name "owner/dataset"; with `root`, any name.
        root: A local folder to read instead of the hub: parquet files, a saved Hugging Face
            dataset, or one folder per class, directly or under train/, validation/ and test/.
        image_size: Crop the images to squares and resize them to this side. Without it all images
            must have one size.
        corrupt: "raise" stops at an image that cannot be decoded, "skip" leaves it out and says so.
        seed: The seed of the digits, and of the test split of a source that has none.
    """
    if name == "digits" and root is None:
        return _load_digits(image_size, seed)
    check_name(name, root)
    stored = cached_splits(
        open_source(name, root),
        options={"image_size": image_size, "corrupt": corrupt},
        decode=lambda source: decode_rows(source, image_size, corrupt),
    )
    if stored.skipped:
        logger.warning(
            "%s: %d corrupt images left out, the first: %s",
            name,
            len(stored.skipped),
            stored.skipped[0],
        )
    sets = {
        split: ImageSet(images, labels, stored.classes)
        for split, (images, labels) in stored.tensors.items()
    }
    return _assign_splits(name, sets, stored.skipped, seed)


def check_name(name: str, root: str | Path | None) -> None:
    """Raise a ValueError with the nearest names when `name` is no data set."""
    names = ["digits", *KNOWN]
    if root is not None or name in names or "/" in name:
        return
    raise ValueError(
        f"unknown data set {name!r}; {suggest(name, names)}known are {', '.join(names)}. "
        "Any other is given by its Hugging Face hub name 'owner/dataset' or by root=, a folder"
    )


def _load_digits(image_size: int | None, seed: int) -> ImageSplits:
    from phnn.lab.tasks.images.digits import IMAGE_SIZE, make_digits

    if image_size not in (None, IMAGE_SIZE):
        raise ValueError(f"image_size={image_size} must be {IMAGE_SIZE}, the size of the digits")
    return make_digits(seed)


def _assign_splits(
    name: str, sets: dict[str, ImageSet], skipped: tuple[str, ...], seed: int
) -> ImageSplits:
    train, validation, test = (sets.get(split) for split in ("train", "validation", "test"))
    if train is None:
        raise ValueError(f"{name} has no train split with labels, only {', '.join(sets) or 'none'}")
    if test is None and validation is not None:
        logger.warning("%s has no labelled test split: its validation split is tested", name)
        test, validation = validation, None
    if test is None:
        held = 100 * HELD_OUT
        logger.warning("%s has no test split: %.0f %% of its images are held out", name, held)
        train, test = train.split(HELD_OUT, seed)
    if test.image_size != train.image_size:
        raise ValueError(
            f"{name}: train images are {train.image_size}, test images {test.image_size} "
            "pixels; pass image_size= to resize them all"
        )
    return ImageSplits(train, validation, test, skipped)
