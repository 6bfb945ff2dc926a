"""The log of the epochs: one row each in metrics.csv."""

from __future__ import annotations

import csv
import os
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from phnn.io import replacing
from phnn.lab.files import open_log, read_number, read_table
from phnn.lab.tasks.learner import Learner
from phnn.lab.training.clock import Clock


class MetricsFile:
    """A CSV file with one row for each epoch.

    This is not Lightning's CSVLogger, which deletes the rows before a resumption.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, str]]:
        """Return the complete rows."""
        return read_table(self.path, ["epoch"]) if self.path.exists() else []

    def rewind(self, epochs: int) -> None:
        """Drop the rows of epochs that will be trained again.

        Args:
            epochs: The number of epochs that the checkpoint has completed.
        """
        kept = [row for row in self.read() if read_number(self.path, row, "epoch") < epochs]
        with replacing(self.path) as temporary, temporary.open("w", newline="") as file:
            if kept:
                writer = csv.DictWriter(file, list(kept[0]))
                writer.writeheader()
                writer.writerows(kept)

    def append(self, row: dict[str, Any]) -> None:
        """Add a row and wait until it is on the disk.

        What an epoch lacks is nan: the last one, if it was cut short, has no validation.
        """
        known = self.read()
        columns = list(known[0]) if known else list(row)
        with TextIOWrapper(open_log(self.path), newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="nan")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            os.fsync(file.fileno())


class EpochLog(Callback):
    """Write the scores of each epoch to metrics.csv and to the logger.

    The row is on disk before the checkpoint is, and a resumed run drops the rows that are later
    than its checkpoint. So no row is lost, and none is there twice.

    Args:
        path: The file.
        clock: The clock of the run.

    Attributes:
        row: The row of the epoch that has just ended; None when it was logged before.
        epochs: The number of epochs that were logged.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.file = MetricsFile(path)
        self.clock = clock
        self.row: dict[str, Any] | None = None
        self.epochs = 0
        self._lr = float("nan")

    def on_train_start(self, trainer: Trainer, learner: LightningModule) -> None:
        """Drop the rows after the checkpoint."""
        if trainer.is_global_zero:
            self.file.rewind(self.epochs)

    def on_train_batch_start(self, trainer: Trainer, learner: LightningModule, *args: Any) -> None:
        """Note the rate of this step; at the end of the epoch it is that of the next one."""
        self._lr = trainer.optimizers[0].param_groups[-1]["lr"]

    def on_train_epoch_end(self, trainer: Trainer, learner: LightningModule) -> None:
        """Log an epoch."""
        assert isinstance(learner, Learner)
        self.row = None
        if trainer.current_epoch < self.epochs:
            return  # Lightning ends an epoch again when a run resumes from that end
        self.row = self._make_row(trainer, learner)
        self.epochs = trainer.current_epoch + 1
        if trainer.is_global_zero:
            self.file.append(self.row)
        for logger in trainer.loggers:
            scores = {name: value for name, value in self.row.items() if name != "step"}
            logger.log_metrics(scores, self.row["step"])
        monitored = f"val_{learner.criterion.name}"
        if trainer.early_stopping_callbacks and monitored in self.row:
            learner.log(monitored, self.row[monitored], logger=False)

    def _make_row(self, trainer: Trainer, learner: Learner) -> dict[str, Any]:
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
