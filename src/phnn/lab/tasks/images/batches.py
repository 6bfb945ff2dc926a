"""Batches of images in memory, with random numbers for their augmentation."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from phnn.lab.seeds import generator_of
from phnn.lab.tasks.batches import EpochBatches, Plan
from phnn.lab.tasks.images.sets import ImageSet

DRAW_LIMIT = 2**31  # draws are integers below this
ALTERNATING = (1, 1, 1)  # with the seed, the stream of draws that alternate from epoch to epoch


class Batch(NamedTuple):
    """A batch as it leaves the loader.

    Attributes:
        images: uint8 (B, 3, height, width).
        labels: int64 (B,).
        draws: int64 (B, k), random numbers for the augmentation of each image, or None.
    """

    images: Tensor
    labels: Tensor
    draws: Tensor | None


class ImageBatches(EpochBatches[Batch]):
    """A loader of images, with random numbers for their augmentation."""

    def _draw(self, batch: int, count: int, index: Tensor | None = None) -> Tensor | None:
        """Draw for the global batch, so that one process and several augment alike.

        Args:
            batch: The number of the batch.
            count: How many images of it this process has.
            index: Their positions in the data, for draws that alternate.
        """
        plan = self.plan
        if not plan.draws:
            return None
        total = min(plan.global_batch, self.size - batch * plan.global_batch)
        generator = generator_of(plan.seed, self.epoch, batch)
        draws = torch.randint(DRAW_LIMIT, (total, plan.draws), generator=generator, device="cpu")
        draws = draws[plan.shard(total)][:count]
        if plan.alternating:
            assert index is not None
            generator = generator_of(plan.seed, *ALTERNATING)
            first = torch.randint(2, (self.size,), generator=generator, device="cpu")
            draws[:, list(plan.alternating)] = (first[index] + self.epoch)[:, None]
        return draws


class Batches(ImageBatches):
    """Take batches from a set in memory, each with one operation.

    Args:
        data: The images.
        plan: How they are cut into batches.

    Example:
        >>> from phnn.lab.tasks.images import make_digits
        >>> batches = Batches(make_digits(train=10, test=1).train, Plan(batch_size=4))
        >>> [len(batch.images) for batch in batches]
        [4, 4, 2]
    """

    def __init__(self, data: ImageSet, plan: Plan) -> None:
        self.data = data
        super().__init__(len(data), plan)

    def read(self, start: int) -> Iterator[Batch]:
        """Yield the batches of this process."""
        for batch, index in enumerate(self.positions(start), start):
            draws = self._draw(batch, len(index), index)
            # 12 µs for 128 images of 32x32; [index] goes through their elements for 228 µs
            images = self.data.images.index_select(0, index)
            yield Batch(images, self.data.labels[index], draws)
