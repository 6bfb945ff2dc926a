"""Callbacks that make a run safe to stop: its checkpoints, its log and its clock."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback

from phnn.io import replacing
from phnn.lab.training.folder import BEST, LAST
from phnn.lab.training.learner import Learner

SETTLING = 10  # first iterations of an epoch, left out of its mean: caches and buffers fill


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there when it is complete.

    Lightning's own goes through the temporary folder, which may be another disk, and then copies.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint; what was there stays until the new one is complete."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(path) as temporary:
                torch.save(checkpoint, temporary)
        except (OSError, RuntimeError) as error:  # torch turns a full disk into a RuntimeError
            raise OSError(
                f"the checkpoint {path} cannot be written: {error}. The one before it is intact: "
                "make room and give the same command again to go on from there"
            ) from error


class MetricsLog:
    """A CSV file with one row for each epoch.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, str]]:
        """Returns the complete rows."""
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            return [row for row in csv.DictReader(file) if None not in row.values()]

    def rewind(self, epochs: int) -> None:
        """Drops the rows of epochs that are about to be trained again.

        Args:
            epochs: How many epochs the checkpoint has seen to their end.
        """
        kept = [row for row in self.read() if int(row["epoch"]) < epochs]
        with replacing(self.path) as temporary, temporary.open("w", newline="") as file:
            if kept:
                writer = csv.DictWriter(file, list(kept[0]))
                writer.writeheader()
                writer.writerows(kept)

    def append(self, row: dict[str, Any]) -> None:
        """Adds a row and sees it to the disk."""
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            os.fsync(file.fileno())


class Clock(Callback):
    """Measures iterations and the whole training, across interruptions."""

    def __init__(self) -> None:
        self.iterations: list[float] = []
        self.mean: float | None = None
        self.std: float | None = None
        self.seconds = 0.0
        self._mark: float | None = None
        self._began = time.perf_counter()

    @property
    def total(self) -> float:
        """Seconds of training up to now."""
        return self.seconds + time.perf_counter() - self._began

    def on_train_start(
        self, trainer: lightning.Trainer, learner: lightning.LightningModule
    ) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def on_train_epoch_start(
        self, trainer: lightning.Trainer, learner: lightning.LightningModule
    ) -> None:
        """Forgets the last epoch's iterations."""
        self.iterations, self._mark = [], None

    def on_train_batch_end(
        self, trainer: lightning.Trainer, learner: lightning.LightningModule, *args: Any
    ) -> None:
        """Takes the time since the end of the iteration before: loading, computing, everything."""
        now = time.perf_counter()
        if self._mark is not None:
            self.iterations.append(now - self._mark)
        self._mark = now

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, learner: lightning.LightningModule
    ) -> None:
        """Sums the epoch up."""
        settled = self.iterations[SETTLING:] or self.iterations
        if len(settled) > 1:
            times = torch.tensor(settled, dtype=torch.float64)
            self.mean, self.std = float(times.mean()), float(times.std())

    def on_train_end(self, trainer: lightning.Trainer, learner: lightning.LightningModule) -> None:
        """Stops the clock."""
        self.seconds = self.total

    def state_dict(self) -> dict[str, float | None]:
        """Returns what a continued run has to know."""
        return {"mean": self.mean, "std": self.std, "seconds": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from an earlier part of the run."""
        self.mean, self.std, self.seconds = state["mean"], state["std"], state["seconds"]


class Keeper(Callback):
    """Logs each epoch, then checkpoints it: as last.ckpt, and as best.ckpt when it is the best yet.

    The row is on disk before the checkpoint is, and a continued run drops the rows that are later
    than its checkpoint; so none is lost and none is there twice.

    Args:
        folder: Of the run.
        clock: To be logged.
        steps: Checkpoint after this many steps, too.
        minutes: Checkpoint after this many minutes, too.
    """

    def __init__(
        self, folder: Path, clock: Clock, steps: int | None = None, minutes: float | None = None
    ) -> None:
        self.rows = MetricsLog(folder / "metrics.csv")
        self.last = folder / LAST
        self.best = folder / BEST
        self.clock = clock
        self.steps = steps
        self.minutes = minutes
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self.epochs = 0
        self._lr = float("nan")
        self._saved_at = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Returns what a continued run has to know."""
        return {"epochs": self.epochs, "score": self.best_score, "epoch": self.best_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.epochs = state["epochs"]
        self.best_score, self.best_epoch = state["score"], state["epoch"]

    def on_train_start(
        self, trainer: lightning.Trainer, learner: lightning.LightningModule
    ) -> None:
        """Forgets what was logged after the checkpoint."""
        if trainer.is_global_zero:
            self.rows.rewind(self.epochs)
        self._saved_at = time.monotonic()

    def on_train_batch_start(
        self, trainer: lightning.Trainer, learner: lightning.LightningModule, *args: Any
    ) -> None:
        """Notes the rate of this step; at the end of the epoch it is that of the next one."""
        self._lr = trainer.optimizers[0].param_groups[-1]["lr"]

    def on_train_batch_end(
        self, trainer: lightning.Trainer, learner: lightning.LightningModule, *args: Any
    ) -> None:
        """Checkpoints in the middle of an epoch, if asked to."""
        if trainer.is_last_batch:
            return  # the epoch's own is next; going on from this one, Lightning would not validate
        by_steps = self.steps is not None and trainer.global_step % self.steps == 0
        if by_steps or self._late(trainer):
            self._save(trainer, self.last)

    def _late(self, trainer: lightning.Trainer) -> bool:
        if self.minutes is None:
            return False
        late = time.monotonic() - self._saved_at >= 60 * self.minutes
        # every process must come to the same answer: saving is done together
        return bool(trainer.strategy.broadcast(late))

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, learner: lightning.LightningModule
    ) -> None:
        """Logs and checkpoints an epoch."""
        assert isinstance(learner, Learner)
        if trainer.current_epoch < self.epochs:
            return  # Lightning ends an epoch again when it goes on from that end
        row = self._row(trainer, learner)
        self.epochs = trainer.current_epoch + 1
        if trainer.is_global_zero:
            self.rows.append(row)
        for logger in trainer.loggers:
            logger.log_metrics({k: v for k, v in row.items() if k != "step"}, row["step"])
        score = row.get(f"val_{learner.score}")
        if score is not None and learner.improves(score, self.best_score):
            self.best_score, self.best_epoch = score, trainer.current_epoch
            self._save(trainer, self.best)
        self._save(trainer, self.last)

    def _row(self, trainer: lightning.Trainer, learner: Learner) -> dict[str, Any]:
        scores = learner.train_scores.take()
        if not learner.val_scores.empty:
            scores |= learner.val_scores.take()
        return {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "lr": self._lr,
            **scores,
            "seconds": round(self.clock.total, 3),
        }

    def _save(self, trainer: lightning.Trainer, path: Path) -> None:
        trainer.save_checkpoint(path, weights_only=False)
        self._saved_at = time.monotonic()
