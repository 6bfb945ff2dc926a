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
        mean: of each channel on disk, to be subtracted.
        std: likewise, to be divided by.
    """

    spectrograms: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class SoundSet:
    """Recordings of one part: features on disk, labels in memory.

    Attributes:
        features: of these recordings and others.
        rows: which of the features these are.
        labels: uint8 (rows, frames, classes · overlaps).
        mean: of each channel.
        std: likewise.
    """

    features: Features
    rows: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor

    def __len__(self) -> int:
        return len(self.rows)


class SoundBatches(EpochBatches[SoundBatch]):
    """Batches of segments of recordings; a thread reads each while the one before it is used.

    Args:
        data: the recordings.
        plan: how their segments are cut into batches.
        segment: label frames of a segment, a divisor of a recording's; all of them by default.
    """

    things = "segments"

    def __init__(self, data: SoundSet, plan: Plan, segment: int | None = None) -> None:
        self.data = data
        self.segment = data.labels.shape[1] if segment is None else segment
        self.segments = data.labels.shape[1] // self.segment  # of each recording
        super().__init__(len(data) * self.segments, plan)

    def _read(self, start: int) -> Iterator[SoundBatch]:
        with ThreadPoolExecutor(1) as pool:
            ahead = None
            for index in self._places(start):
                now, ahead = ahead, pool.submit(self._take, index)
                if now is not None:
                    yield now.result()
            if ahead is not None:
                yield ahead.result()

    def _take(self, index: Tensor) -> SoundBatch:
        data = self.data
        scale = data.features.scale
        spectrograms, labels = [], []
        for place in index.tolist():
            row, number = divmod(place, self.segments)
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
