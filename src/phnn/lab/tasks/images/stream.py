"""Batches of a data set that is too large for memory."""

import logging
import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from phnn.lab.seeds import derive_seed, generator_of
from phnn.lab.tasks.batches import Plan
from phnn.lab.tasks.images.batches import DRAW_LIMIT, Batch, ImageBatches
from phnn.lab.tasks.images.decode import (
    Corrupt,
    CorruptImageError,
    check_corrupt,
    fit,
    read_or_skip,
)
from phnn.lab.tasks.images.sources import Encoded, Rows, Shards

logger = logging.getLogger(__name__)

LOOKAHEAD = 2  # batches being decoded while one is used
CROP_AREA = (0.08, 1.0)  # of the image, and
CROP_RATIO = (3 / 4, 4 / 3)  # width by height: what ImageNet networks are trained with


class StreamBatches(ImageBatches):
    """Decode batches with threads, from rows that are read in order.

    Pillow decodes outside Python's lock. Of several processes, each reads its own files, if there
    are at least as many files as processes. Training then ends an epoch with the smallest share, so
    that all processes take as many steps. With fewer files, every process reads all rows and
    decodes its own. A resumed epoch skips the rows that it has had, without decoding them.

    Args:
        rows: The encoded images.
        plan: How they are cut into batches.
        image_size: The side of the images.
        random_crop: Cut a random piece, for training.
        whole: Resize whole images, whatever their shape. Otherwise the central square of side
            `crop` is cut.
        crop: The side of the central square, as a fraction of the shorter side.
        corrupt: Whether an image that cannot be decoded raises, or is skipped.
        threads: The number of threads that decode.

    Attributes:
        skipped: The corrupt images that were left out so far, as "name: reason".
    """

    def __init__(
        self,
        rows: Rows,
        plan: Plan,
        *,
        image_size: int,
        random_crop: bool = False,
        whole: bool = False,
        crop: float = 1.0,
        corrupt: Corrupt = "raise",
        threads: int = 8,
    ) -> None:
        check_corrupt(corrupt)
        several = plan.world_size > 1 and isinstance(rows, Shards)
        self._shares = rows.divide(plan.world_size) if several else []  # type: ignore[attr-defined]
        super().__init__(len(rows), plan)
        self.rows = rows
        self.image_size = image_size
        self.random_crop = random_crop
        self.whole = whole
        self.crop = crop
        self.corrupt = corrupt
        self.threads = threads
        self.skipped: list[str] = []

    def read(self, start: int) -> Iterator[Batch]:
        """Yield the batches of this process."""
        for batch, (images, labels) in enumerate(self._decode_batches(start), start):
            yield Batch(images, labels, self._draw(batch, len(images)))

    def _decode_batches(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        pending: deque[list[Future[tuple[Tensor, int] | None]]] = deque()
        with ThreadPoolExecutor(self.threads) as pool:
            for shard in self._shards(start):
                pending.append([pool.submit(self._decode, *item) for item in shard])
                if len(pending) > LOOKAHEAD:
                    yield _collect(pending.popleft())
            while pending:
                yield _collect(pending.popleft())

    def __len__(self) -> int:
        if not self._shares:
            return super().__len__()
        size = self.plan.batch_size
        if self.plan.shuffle:
            return min(map(len, self._shares)) // size
        return -(-len(self._shares[self.plan.rank]) // size)

    def _identity(self) -> dict[str, int]:
        # the position of a process in its own files means nothing to another number of them
        return {**super()._identity(), "readers": len(self._shares) or 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration continue where the state was taken."""
        super().load_state_dict({"readers": 1, **state})  # older checkpoints

    def _draw(self, batch: int, count: int, index: Tensor | None = None) -> Tensor | None:
        if not self._shares or not self.plan.draws:
            return super()._draw(batch, count, index)
        generator = generator_of(self.plan.seed, self.epoch, batch, self.plan.rank)
        return torch.randint(DRAW_LIMIT, (count, self.plan.draws), generator=generator)

    def _own_rows(self, start: int) -> Iterator[list[tuple[Encoded, int]]]:
        """Yield the rows of this process's files, batch by batch, with numbers of their own."""
        plan = self.plan
        own = self._shares[plan.rank]
        rows = own.shuffled(plan.seed, self.epoch) if plan.shuffle else own
        numbered = islice(enumerate(rows), start * plan.batch_size, None)
        while block := list(islice(numbered, plan.batch_size)):
            yield [(row, position * plan.world_size + plan.rank) for position, row in block]

    def _shards(self, start: int) -> Iterator[list[tuple[Encoded, int]]]:
        """Yield this process's rows of each batch, with their positions in the epoch."""
        if self._shares:
            yield from self._own_rows(start)
            return
        plan = self.plan
        rows = self.rows.shuffled(plan.seed, self.epoch) if plan.shuffle else self.rows
        numbered = islice(enumerate(rows), start * plan.global_batch, None)
        while block := list(islice(numbered, plan.global_batch)):
            yield [(encoded, position) for position, encoded in block[plan.shard(len(block))]]

    def _decode(self, encoded: Encoded, position: int) -> tuple[Tensor, int] | None:
        skipped: list[str] = []  # of this thread: others skip images meanwhile
        image = read_or_skip(encoded, self.corrupt, skipped)
        if image is None:
            logger.warning("left out the corrupt image %s", *skipped)
            self.skipped += skipped
            return None
        if self.random_crop:
            image = _cut_piece(image, self.image_size, self.plan.seed, self.epoch, position)
        elif self.whole:
            side = (self.image_size, self.image_size)
            image = image.resize(side, Image.Resampling.BILINEAR)
        else:
            image = fit(image, (self.image_size, self.image_size), self.crop)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), encoded.label


def _collect(futures: list[Future[tuple[Tensor, int] | None]]) -> tuple[Tensor, Tensor]:
    decoded = [result for future in futures if (result := future.result()) is not None]
    if not decoded:
        raise CorruptImageError(f"none of the {len(futures)} images of a batch could be decoded")
    images, labels = zip(*decoded, strict=True)
    return torch.stack(images), torch.tensor(labels, dtype=torch.int64)


def _cut_piece(image: Image.Image, image_size: int, *key: int) -> Image.Image:
    """Cut a piece of random area, shape and position out of an image and resize it to a square."""
    rng = np.random.default_rng(derive_seed(*key))
    area = image.width * image.height * rng.uniform(*CROP_AREA)
    low, high = CROP_RATIO
    ratio = math.exp(rng.uniform(math.log(low), math.log(high)))
    width = min(image.width, math.sqrt(area * ratio))
    height = min(image.height, math.sqrt(area / ratio))
    left = rng.uniform(0, image.width - width)
    top = rng.uniform(0, image.height - height)
    box = (left, top, left + width, top + height)
    return image.resize((image_size, image_size), Image.Resampling.BILINEAR, box=box)
