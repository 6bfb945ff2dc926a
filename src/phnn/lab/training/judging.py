"""Trials that end when somebody gives them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from phnn.lab.training.epochs import EpochLog


class JudgeCallback(Callback):
    """Let a judge end a run after each epoch; of several processes, the first one asks.

    Args:
        judge: A function of the epoch's row of metrics.csv that says whether to give up.
        history: The log of the epochs.

    Attributes:
        has_given_up: Whether the judge has ended the run before its last epoch.
    """

    def __init__(self, judge: Callable[[Mapping[str, Any]], bool], history: EpochLog) -> None:
        self.judge = judge
        self.history = history
        self.has_given_up = False

    def on_train_epoch_end(self, trainer: Trainer, learner: LightningModule) -> None:
        """Ask after an epoch that was logged now."""
        if self.history.row is None:
            return
        verdict = trainer.is_global_zero and self.judge(self.history.row)
        if trainer.strategy.broadcast(verdict):
            self.has_given_up = trainer.current_epoch + 1 < (trainer.max_epochs or 0)
            trainer.should_stop = True
