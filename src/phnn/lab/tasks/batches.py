"""Loaders of whole batches, in an order that is a function of (seed, epoch)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from phnn.lab.seeds import permutation_of

Item = TypeVar("Item")  # a batch


@dataclass(frozen=True)
class Plan:
    """How a data set is cut into batches.

    Attributes:
        batch_size: Samples per process per batch.
        seed: The seed of the order and of the draws.
        shuffle: Whether each epoch has its own random order.
        draws: Random numbers per sample, for augmentation.
        alternating: Which of them are drawn once for each sample; their parity flips every epoch.
        drop_last: Whether the last batch is left out when it is not full.
        rank: The number of this process.
        world_size: The number of processes. A global batch has `world_size * batch_size` samples
            that follow each other in the order of the epoch. Each process takes a slice of it.
    """

    batch_size: int
    seed: int = 0
    shuffle: bool = False
    draws: int = 0
    alternating: tuple[int, ...] = ()
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must not be negative")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank={self.rank} must lie in 0..{self.world_size - 1}")

    @property
    def global_batch(self) -> int:
        """The samples per batch of all processes."""
        return self.batch_size * self.world_size

    def shard(self, count: int) -> slice:
        """Return this process's slice of a global batch of `count` samples.

        In training, all slices have the same length, so that the mean of the gradients is the
        gradient of the mean. Up to world_size - 1 samples of the last batch are left out for this.
        In evaluation, every sample is seen exactly once.
        """
        each, extra = divmod(count, self.world_size)
        if self.shuffle:
            return slice(self.rank * each, (self.rank + 1) * each)
        start = self.rank * each + min(self.rank, extra)
        return slice(start, start + each + (self.rank < extra))

    def count_batches(self, size: int) -> int:
        """Return the number of batches that this process gets from `size` samples."""
        full, rest = divmod(size, self.global_batch)
        share = self.shard(rest)
        return full + (not self.drop_last and share.stop > share.start)


class EpochBatches(ABC, Generic[Item]):
    """A loader with a length, epochs, an order and a state to resume from.

    A subclass says how to read: `read` yields batches, and `positions` tells it which samples each
    batch has.

    Lightning calls `batch_sampler.sampler.set_epoch` before each epoch. It keeps `state_dict` in
    its checkpoints because the loader has `state_dict` and `load_state_dict`. The order and the
    draws are functions of (seed, epoch, batch), so the state is a position and no generator.

    Args:
        size: The number of samples.
        plan: How they are cut into batches.
    """

    #: what the samples are, for messages and checkpoints
    things: ClassVar[str] = "images"

    def __init__(self, size: int, plan: Plan) -> None:
        self.size = size
        self.plan = plan
        self.epoch = 0
        self._start = 0  # the first batch of the next iteration
        self._given = 0  # batches given in this epoch
        if len(self) == 0:
            raise ValueError(
                f"{size} {self.things} do not fill one batch of {plan.global_batch}; "
                "lower batch_size or set drop_last=False"
            )

    @abstractmethod
    def read(self, start: int) -> Iterator[Item]:
        """Yield the batches of this process, beginning with batch `start` of the epoch."""

    def __len__(self) -> int:
        return self.plan.count_batches(self.size)

    def __iter__(self) -> Iterator[Item]:
        # A generator: Lightning creates the iterator before it sets the epoch.
        start, self._start = self._start, 0
        self._given = start
        for batch, item in enumerate(islice(self.read(start), len(self) - start), start):
            self._given = batch + 1
            yield item

    def positions(self, start: int) -> Iterator[Tensor]:
        """Yield the positions of the samples of each batch of this process, from `start` on."""
        plan = self.plan
        order = (
            permutation_of(self.size, plan.seed, self.epoch)
            if plan.shuffle
            else torch.arange(self.size)
        )
        for batch in range(start, len(self)):
            index = order[batch * plan.global_batch : (batch + 1) * plan.global_batch]
            yield index[plan.shard(len(index))]

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """Where Lightning looks for `set_epoch`.

        It also looks at `sampler`, but takes an object that has one for a DataLoader.
        """
        return SimpleNamespace(sampler=self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration.

        A position set by `load_state_dict` is valid in its own epoch only.
        """
        if epoch != self.epoch:
            self.epoch, self._start, self._given = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position in the data, and what identifies the data."""
        return {"epoch": self.epoch, "batch": self._given, **self._identity()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration continue where the state was taken."""
        for name, now in self._identity().items():
            if state[name] != now:
                raise ValueError(
                    f"the checkpoint was made with {name}={state[name]}, now it is {now}; an "
                    "epoch can only be resumed with the same data and global batch"
                )
        self.epoch, self._start = state["epoch"], state["batch"]
        self._given = self._start

    def _identity(self) -> dict[str, int]:
        plan = self.plan
        return {self.things: self.size, "global_batch": plan.global_batch, "seed": plan.seed}
