"""How long training and testing take."""

from __future__ import annotations

import time
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

SETTLING = 10  # first iterations of an epoch, left out of its mean: caches and buffers fill


class Clock(Callback):
    """Measure iterations and the whole training, across interruptions.

    Checkpoints hold its state under the name of the class.

    Attributes:
        seconds: The seconds of training, once it has ended.
        processor: The processor seconds of this process, over all threads: other work on the
            machine lengthens them less than the seconds.
    """

    def __init__(self) -> None:
        self.iterations: list[float] = []
        self.mean: float | None = None
        self.std: float | None = None
        self.seconds = 0.0
        self.processor = 0.0
        self._mark: float | None = None
        self._start()

    def _start(self) -> None:
        self._began, self._began_processor = time.perf_counter(), time.process_time()

    @property
    def total(self) -> float:
        """The seconds of training up to now."""
        return self.seconds + time.perf_counter() - self._began

    @property
    def total_processor(self) -> float:
        """The processor seconds of training up to now."""
        return self.processor + time.process_time() - self._began_processor

    def on_train_start(self, trainer: Trainer, learner: LightningModule) -> None:
        """Start the clock."""
        self._start()

    def on_train_epoch_start(self, trainer: Trainer, learner: LightningModule) -> None:
        """Forget the iterations of the last epoch."""
        self.iterations, self._mark = [], None

    def on_train_batch_end(self, trainer: Trainer, learner: LightningModule, *args: Any) -> None:
        """Take the time since the end of the last iteration: loading, computing, everything."""
        now = time.perf_counter()
        if self._mark is not None:
            self.iterations.append(now - self._mark)
        self._mark = now

    def on_train_epoch_end(self, trainer: Trainer, learner: LightningModule) -> None:
        """Compute the mean of the epoch."""
        settled = self.iterations[SETTLING:] or self.iterations
        if len(settled) > 1:
            times = torch.tensor(settled, dtype=torch.float64)
            self.mean, self.std = float(times.mean()), float(times.std())

    def on_train_end(self, trainer: Trainer, learner: LightningModule) -> None:
        """Stop the clock."""
        self.seconds, self.processor = self.total, self.total_processor

    def state_dict(self) -> dict[str, float | None]:
        """Return what a resumed run needs."""
        return {
            "mean": self.mean,
            "std": self.std,
            "seconds": self.total,
            "processor": self.total_processor,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        self.mean, self.std, self.seconds = state["mean"], state["std"], state["seconds"]
        self.processor = state.get("processor", 0.0)  # not in older checkpoints


class ValidationClock(Callback):
    """Measure an iteration on the validation split: reading, computing, everything.

    Attributes:
        mean: Seconds of an iteration, over the last validation; None before the first.
    """

    def __init__(self) -> None:
        self.mean: float | None = None
        self._began = 0.0
        self._count = 0

    def on_validation_epoch_start(self, *args: Any) -> None:
        """Start the clock."""
        self._began, self._count = time.perf_counter(), 0

    def on_validation_batch_end(self, *args: Any) -> None:
        """Count an iteration."""
        self._count += 1

    def on_validation_epoch_end(self, *args: Any) -> None:
        """Stop the clock."""
        if self._count:
            self.mean = (time.perf_counter() - self._began) / self._count

    def state_dict(self) -> dict[str, float | None]:
        """Return what a resumed run needs."""
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        self.mean = state["mean"]


class TestClock(Callback):
    """Measure the test alone, without reading data and starting processes."""

    seconds = 0.0

    def on_test_epoch_start(self, *args: Any) -> None:
        """Start the clock."""
        self.seconds = -time.perf_counter()

    def on_test_epoch_end(self, *args: Any) -> None:
        """Stop the clock."""
        self.seconds += time.perf_counter()
