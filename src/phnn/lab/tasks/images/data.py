"""The data of an image classification run."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phnn.lab.tasks.batches import Plan
from phnn.lab.tasks.data import Data
from phnn.lab.tasks.images.augment import Normalize, augment, count_draws, find_alternating
from phnn.lab.tasks.images.batches import Batch, ImageBatches
from phnn.lab.tasks.images.decode import Corrupt, check_corrupt
from phnn.lab.tasks.images.sets import check_name
from phnn.lab.tasks.images.splits import Description, Splits, load_splits, stream_splits


class ImageData(Data):
    """Images for training, validation and test.

    Sets that fit live in memory as uint8. Batches are normalised and augmented on the device. The
    order of the images is a function of (seed, epoch), the augmentation of (seed, epoch, batch): a
    run that was stopped and resumed sees what an unbroken run sees, and so do several processes
    that share its batches.

    Args:
        name: "digits", "cifar10", "cifar100", "svhn", "imagenet" or a hub name; see `load_images`.
        root: A local folder to read instead of the hub.
        batch_size: Images per process per training step.
        global_batch: Whether batch sizes are those of all processes together instead, so that a
            recipe trains the same on any number of devices.
        eval_batch_size: Images per process per evaluation step; batch_size by default.
        augment: Names of augmentations for training: "crop" or "shift", "flip" or
            "alternating_flip", "resized_crop".
        validation: The fraction of the training split that is used for validation, where the source
            has no validation split of its own. With 0 there is no validation, and training uses
            the whole split.
        image_size: Crop to squares and resize to this side.
        limit: Use only this many training images, the first of a random order.
        rotations: Turn each image by 0, 90, 180 or 270 degrees, and make the angle a part of its
            class: four times as many classes.
        corrupt: "raise" stops at an image that cannot be decoded, "skip" leaves it out.
        seed: The seed of the splits, the order and the augmentation.
        drop_last: Leave out the last training batch when it is not full.
        streaming: Decode as needed instead of loading everything; by default for ImageNet alone.
            Training then sees whole images, resized to 160 pixels, and evaluation central squares
            of 224, or both image_size. With the augmentation resized_crop, training sees random
            pieces, cut from the image as it is stored.
    """

    in_channels = 3

    def __init__(
        self,
        name: str = "digits",
        root: str | Path | None = None,
        batch_size: int = 128,
        eval_batch_size: int | None = None,
        augment: tuple[str, ...] = (),
        validation: float = 0.1,
        image_size: int | None = None,
        limit: int | None = None,
        rotations: bool = False,
        corrupt: Corrupt = "raise",
        seed: int = 0,
        drop_last: bool = False,
        streaming: bool | None = None,
        global_batch: bool = False,
    ) -> None:
        check_name(name, root)
        check_corrupt(corrupt)
        if not 0 <= validation < 1:
            raise ValueError(f"validation={validation} must be a fraction: at least 0, less than 1")
        for argument, value in (("limit", limit), ("image_size", image_size)):
            if value is not None and value < 1:
                raise ValueError(f"{argument}={value} must be at least 1, or None")
        if streaming is None:
            streaming = name == "imagenet"
        if rotations and {"flip", "alternating_flip"} & set(augment):
            raise ValueError(
                f"augment={tuple(augment)} mirrors images, which exchanges the classes of 90° and "
                "270°; leave flips out with rotations"
            )
        alternating = find_alternating(augment)
        opening: Callable[..., Splits] = load_splits
        if streaming:  # pieces are cut from images as they are stored, not from resized ones
            opening = partial(stream_splits, random_crop="resized_crop" in augment)
            augment = tuple(name for name in augment if name != "resized_crop")
        if streaming and alternating:
            raise ValueError(
                "augment=alternating_flip needs images in memory, each with a fixed index; give "
                "flip, or streaming=False"
            )
        self._train_plan = Plan(
            batch_size,
            seed,
            shuffle=True,
            draws=count_draws(augment),
            alternating=alternating,
            drop_last=drop_last,
        )
        self._eval_plan = Plan(batch_size if eval_batch_size is None else eval_batch_size, seed)
        self._open: Callable[[], Splits] = partial(
            opening,
            name,
            root,
            validation=validation,
            image_size=image_size,
            limit=limit,
            rotations=rotations,
            corrupt=corrupt,
            seed=seed,
        )
        self.name = name
        self.batch_size = batch_size
        self.global_batch = global_batch
        self.augment = tuple(augment)
        self._opened: tuple[Splits, Description, Normalize] | None = None

    def setup(self) -> None:
        """Read the data, once."""
        if self._opened is None:
            splits = self._open()
            self._open_as(splits, splits.description)

    def _open_as(self, splits: Splits, description: Description) -> None:
        self._opened = splits, description, Normalize(description.mean, description.std)

    def standardize_as(self, metadata: Mapping[str, Any]) -> None:
        """Use the mean and standard deviation of other data, on which a network was trained.

        Args:
            metadata: The metadata of the other data, or of the network.
        """
        mean, std = (tuple(metadata[name]) for name in ("mean", "std"))
        self._open_as(self._splits, replace(self._description, mean=mean, std=std))

    @property
    def _splits(self) -> Splits:
        return self._require_setup()[0]

    @property
    def _description(self) -> Description:
        return self._require_setup()[1]

    def _require_setup(self) -> tuple[Splits, Description, Normalize]:
        if self._opened is None:
            raise RuntimeError("the data have not been read; call setup() first")
        return self._opened

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class."""
        return self._description.classes

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def image_size(self) -> tuple[int, int]:
        """The height and width of the images in evaluation."""
        return self._description.image_size

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean of each channel, of values in [0, 1], that is subtracted."""
        return self._description.mean

    @property
    def std(self) -> tuple[float, ...]:
        """The standard deviation of each channel, of values in [0, 1], that is divided by."""
        return self._description.std

    def metadata(self) -> dict[str, Any]:
        """Return what `preprocess` needs, as JSON can hold it; saved models have it."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self._description).items()
        }

    def sample(self, count: int) -> Tensor:
        """Return training images as the network sees them, without augmentation.

        Args:
            count: How many; all of them where there are fewer.
        """
        batches = self._splits.batches("train", replace(self._train_plan, draws=0))
        wanted = -(-count // self.batch_size)
        images = torch.cat([batch.images for batch in islice(batches, wanted)])[:count]
        normalised: Tensor = self._require_setup()[2](images)
        return normalised

    def train_dataloader(self) -> ImageBatches:
        """Return the training batches, in a new order each epoch."""
        return self._splits.batches("train", self.share(self._train_plan))

    def val_dataloader(self) -> ImageBatches | list[ImageBatches]:
        """Return the validation batches; an empty list where there is no validation split."""
        if "validation" not in self._splits.names:
            return []
        return self._splits.batches("validation", self.share(self._eval_plan))

    def test_dataloader(self) -> ImageBatches:
        """Return the test batches."""
        return self._splits.batches("test", self.share(self._eval_plan))

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> tuple[Tensor, Tensor]:
        """Augment and normalise a batch on the device of the network.

        Args:
            batch: The batch as its loader gave it.
            dataloader_idx: Ignored; all splits are treated alike.

        Returns:
            Images as float32 and labels.
        """
        images, labels, draws = batch
        if draws is not None:
            images = augment(images, draws, self.augment)
        return self._require_setup()[2].to(images.device)(images), labels
