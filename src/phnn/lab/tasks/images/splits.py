"""The splits of a data set as loaders, from memory or from a stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from phnn.lab.seeds import permutation_of
from phnn.lab.tasks.batches import Plan
from phnn.lab.tasks.images.batches import Batches, ImageBatches
from phnn.lab.tasks.images.decode import Corrupt
from phnn.lab.tasks.images.known import KNOWN
from phnn.lab.tasks.images.sets import ImageSet, load_images
from phnn.lab.tasks.images.sources import Rows, open_source
from phnn.lab.tasks.images.stream import StreamBatches

STREAM_TRAIN_SIZE = 160  # the paper trains on ImageNet at this size,
STREAM_EVAL_SIZE = 224  # and tests at this one,
STREAM_CROP = 224 / 256  # on the central square, of this side


@dataclass(frozen=True)
class Description:
    """What a network, and whoever uses it, must know about its images.

    Attributes:
        classes: The name of each class.
        image_size: The height and width in evaluation.
        crop: The side of the central square that evaluation sees, as a fraction of the shorter
            side.
        mean: The mean of each channel, of values in [0, 1].
        std: The standard deviation of each channel.
    """

    classes: tuple[str, ...]
    image_size: tuple[int, int]
    crop: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Splits(Protocol):
    """A data set whose splits can be cut into batches."""

    @property
    def description(self) -> Description:
        """What the images are."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The splits there are, of "train", "validation" and "test"."""
        ...

    def batches(self, split: str, plan: Plan) -> ImageBatches:
        """Return a loader for one split."""
        ...


@dataclass(frozen=True)
class MemorySplits:
    """Splits in memory."""

    description: Description
    sets: Mapping[str, ImageSet]

    @property
    def names(self) -> tuple[str, ...]:
        """The splits there are."""
        return tuple(self.sets)

    def batches(self, split: str, plan: Plan) -> ImageBatches:
        """Return batches that are taken from the tensors."""
        return Batches(self.sets[split], plan)


@dataclass(frozen=True)
class StreamSplits:
    """Splits that are decoded as they are needed."""

    description: Description
    rows: Mapping[str, Rows]
    train_size: int
    corrupt: Corrupt
    random_crop: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The splits there are."""
        return tuple(self.rows)

    def batches(self, split: str, plan: Plan) -> ImageBatches:
        """Return batches that threads decode.

        Training sees whole images, resized, or random pieces of them; else central squares.
        """
        training = split == "train"
        return StreamBatches(
            self.rows[split],
            plan,
            image_size=self.train_size if training else self.description.image_size[0],
            random_crop=training and self.random_crop,
            whole=training and not self.random_crop,
            crop=self.description.crop,
            corrupt=self.corrupt,
        )


def load_splits(
    name: str,
    root: str | Path | None,
    *,
    validation: float,
    image_size: int | None,
    limit: int | None,
    rotations: bool,
    corrupt: Corrupt,
    seed: int,
) -> MemorySplits:
    """Load a data set into memory; the arguments are those of `ImageData`."""
    splits = load_images(name, root, image_size=image_size, corrupt=corrupt, seed=seed)
    train, held_out = splits.train, splits.validation
    if validation and held_out is None:
        train, held_out = train.split(validation, seed)
    if limit is not None:
        train = train.take(permutation_of(len(train), seed)[:limit])
    mean, std = _normalisation(name) or _measure(train)
    sets = {"train": train, "test": splits.test}
    if validation and held_out is not None:
        sets["validation"] = held_out
    if rotations:
        sets = {split: images.rotate(seed) for split, images in sets.items()}
    classes = sets["train"].classes
    return MemorySplits(Description(classes, train.image_size, 1.0, mean, std), sets)


def stream_splits(
    name: str,
    root: str | Path | None,
    *,
    validation: float,
    image_size: int | None,
    limit: int | None,
    rotations: bool,
    corrupt: Corrupt,
    seed: int,
    random_crop: bool = False,
) -> StreamSplits:
    """Open a data set for streaming; the arguments are those of `ImageData`.

    With `random_crop`, training sees random pieces, cut when images are decoded.
    """
    del seed  # the order is the plan's
    constants = _normalisation(name)
    if constants is None or limit is not None or rotations:
        raise ValueError(
            f"{name} cannot be streamed with limit={limit}, rotations={rotations}: streaming takes "
            f"the whole of a data set whose mean and std are known ({', '.join(KNOWN)}), as it is; "
            "streaming=False loads it"
        )
    opened = open_source(name, root).open(streaming=True)
    rows = dict(opened.splits)
    if "test" not in rows and "validation" in rows:
        rows["test"] = rows.pop("validation")
    if "train" not in rows or "test" not in rows:
        raise ValueError(
            f"{name} must have a train and a test split to be streamed; it has {[*rows]}"
        )
    if validation and "validation" not in rows:
        raise ValueError(
            f"a stream cannot be split, and {name} has no validation split beside its test split; "
            "pass validation=0 to train on all training data"
        )
    size = image_size or STREAM_EVAL_SIZE
    description = Description(opened.classes, (size, size), STREAM_CROP, *constants)
    train_size = image_size or STREAM_TRAIN_SIZE
    return StreamSplits(description, rows, train_size, corrupt, random_crop)


def _normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    known = KNOWN.get(name)
    return (known.mean, known.std) if known else None


def _measure(data: ImageSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, from the counts of its 256 values."""
    means, stds = [], []
    for channel in data.images.unbind(1):
        counts = channel.flatten().bincount(minlength=256).double()
        values = channel.new_tensor(range(256)).double() / 255
        mean = (counts * values).sum() / counts.sum()
        means.append(mean.item())
        stds.append(((counts * (values - mean) ** 2).sum() / counts.sum()).sqrt().item())
    if min(stds) == 0:
        raise ValueError(f"a channel is the same in all {len(data)} training images; std={stds}")
    return tuple(means), tuple(stds)
