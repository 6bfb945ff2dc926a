"""Batches of spectrograms that are mapped into memory."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from phnn.lab.tasks.batches import EpochBatches, Plan
from phnn.lab.tasks.sound.cache import Features
from phnn.lab.tasks.sound.features import POOLED


class SoundBatch(NamedTuple):
    """A batch as it leaves the loader.

    Attributes:
        spectrograms: (B, channels, bins, frames) as on disk.
        labels: uint8 (B, frames / 8, classes · overlaps).
        mean: The mean of each channel on disk, to be subtracted.
        std: The standard deviation of each channel on disk, to be divided by.
    """

    spectrograms: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class SoundSet:
    """The recordings of one split: features on disk, labels in memory.

    Attributes:
        features: The features of these recordings and others.
        rows: Which of the features these are.
        labels: uint8 (rows, frames, classes · overlaps).
        mean: The mean of each channel.
        std: The standard deviation of each channel.
    """

    features: Features
    rows: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor

    def __len__(self) -> int:
        return len(self.rows)


class SoundBatches(EpochBatches[SoundBatch]):
    """Read batches of segments; a thread reads the next one while a batch is used.

    Args:
        data: The recordings.
        plan: How their segments are cut into batches.
        segment: Label frames of a segment, a divisor of those of a recording; all by default.
    """

    things = "segments"

    def __init__(self, data: SoundSet, plan: Plan, segment: int | None = None) -> None:
        self.data = data
        self.segment = data.labels.shape[1] if segment is None else segment
        self.segments = data.labels.shape[1] // self.segment  # of each recording
        super().__init__(len(data) * self.segments, plan)

    def read(self, start: int) -> Iterator[SoundBatch]:
        """Yield the batches of this process."""
        with ThreadPoolExecutor(1) as pool:
            ahead = None
            for index in self.positions(start):
                now, ahead = ahead, pool.submit(self._take, index)
                if now is not None:
                    yield now.result()
            if ahead is not None:
                yield ahead.result()

    def _take(self, index: Tensor) -> SoundBatch:
        data = self.data
        scale = data.features.scale
        spectrograms, labels = [], []
        for position in index.tolist():
            row, number = divmod(position, self.segments)
            frames = slice(number * self.segment, (number + 1) * self.segment)
            wide = slice(POOLED * frames.start, POOLED * frames.stop)
            spectrograms.append(data.features.values[data.rows[row], :, :, wide])
            labels.append(data.labels[row, frames])
        return SoundBatch(
            torch.from_numpy(np.stack(spectrograms)),
            torch.stack(labels),
            data.mean * scale,
            data.std * scale,
        )
