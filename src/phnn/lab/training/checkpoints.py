"""Checkpoints that make a run safe to stop."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from phnn.io import replacing
from phnn.lab import sealing
from phnn.lab.runs import BEST, LAST, PREVIOUS, RunFolderError
from phnn.lab.stopping import Stoppable
from phnn.lab.tasks.learner import Learner
from phnn.lab.training.epochs import EpochLog

# what a run continues from
WANTED = {
    **dict.fromkeys(("phnn", "state_dict", "loops", "callbacks"), dict),
    **dict.fromkeys(("optimizer_states", "lr_schedulers"), list),
    **dict.fromkeys(("epoch", "global_step"), int),
}
SHARED_STEPS = 20  # between two looks at the clock, with several processes


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint to a temporary file beside it, which replaces it when it is complete.

    It gets a checksum. The checkpoint it replaces stays as previous.ckpt, in case the new file
    turns out to be damaged.

    Lightning's own goes through the temporary folder, which may be another disk, and then copies.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint; the old one stays until the new one is complete."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(path) as temporary:
                torch.save(checkpoint, temporary)
                sealing.seal(temporary)
                if path.name == Path(LAST).name:
                    sealing.keep(path, path.with_name(Path(PREVIOUS).name))
        except (OSError, RuntimeError) as error:  # torch turns a full disk into a RuntimeError
            raise OSError(
                f"the checkpoint {path} cannot be written: {error}. The one before it is intact: "
                "make room and give the same command again to continue from there"
            ) from error

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = lambda storage, location: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint of phnn train; whatever else is in the file is an error."""
        try:
            checkpoint: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)
            found = dict(checkpoint)
        except (RuntimeError, EOFError, TypeError, ValueError, pickle.UnpicklingError) as error:
            raise not_ours(path, error) from error
        wrong = [key for key, kind in WANTED.items() if not isinstance(found.get(key), kind)]
        if wrong:
            raise not_ours(path, f"it lacks {', '.join(wrong)}")
        return checkpoint


def choose(folder: Path) -> bool:
    """Make sure that a run can continue from whole checkpoints.

    Args:
        folder: The folder of the run.

    Returns:
        Whether there is a checkpoint to continue from.

    Raises:
        DamagedCheckpointError: There are checkpoints, and none of them is whole.
    """
    last, best = folder / LAST, folder / BEST
    remedy = f"delete {last.parent} to train again from the beginning"
    found = sealing.choose(last, folder / PREVIOUS, remedy)
    if found and best.exists():
        try:
            sealing.check(best)
        except sealing.DamagedCheckpointError as damage:
            raise sealing.DamagedCheckpointError(f"{damage}; {remedy}") from None
    return found


def not_ours(path: str | Path, reason: object) -> RunFolderError:
    """Return the error for a checkpoint that phnn train did not write."""
    return RunFolderError(f"{path} is damaged, or not a checkpoint of phnn train: {reason}")


class Keeper(Checkpoint):
    """Write each epoch to last.ckpt, and to best.ckpt when it is the best yet.

    This is not Lightning's ModelCheckpoint. A run that resumes from a checkpoint that
    ModelCheckpoint writes at the last step of an epoch skips the validation of that epoch, so it
    differs from an unbroken run. As a `Checkpoint`, this callback runs after all others: the row of
    the log is on disk, and early stopping and averaging have their new state. Checkpoints hold its
    state under the name of the class.

    Args:
        folder: The folder of the run.
        history: The log of the epochs.
        stop: Signals to wait for.
        steps: Checkpoint after this many steps, too.
        minutes: Checkpoint after this many minutes, too; None for never.

    Attributes:
        first_step: The step with which this process began.
    """

    def __init__(
        self,
        folder: Path,
        history: EpochLog,
        stop: Stoppable,
        steps: int | None = None,
        minutes: float | None = None,
    ) -> None:
        self.last = folder / LAST
        self.best = folder / BEST
        self.history = history
        self.stop = stop
        self.steps = steps
        self.minutes = minutes
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self.first_step = 0
        self._saved_at = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"epochs": self.history.epochs, "score": self.best_score, "epoch": self.best_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.history.epochs = state["epochs"]
        self.best_score, self.best_epoch = state["score"], state["epoch"]

    def on_train_start(self, trainer: Trainer, learner: LightningModule) -> None:
        """Let signals wait for a checkpoint; end a run that early stopping has ended before."""
        self._saved_at = time.monotonic()
        self.first_step = trainer.global_step
        self.stop.deferred = True
        if any(each.wait_count >= each.patience for each in trainer.early_stopping_callbacks):
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, learner: LightningModule) -> None:
        """Let signals end the process at once."""
        self.stop.deferred = False

    def on_train_batch_end(
        self, trainer: Trainer, learner: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Checkpoint in the middle of an epoch, if asked to or told to stop."""
        if trainer.is_last_batch:
            return  # the checkpoint of the epoch is next, after validation
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return  # checkpoints hold no gradients
        by_steps = self.steps is not None and trainer.global_step % self.steps == 0
        # processes that train together save together, and may not all know of a signal yet
        told = trainer.received_sigterm and trainer.world_size == 1
        if by_steps or told or self._is_late(trainer):
            self._save(trainer, self.last)

    def _is_late(self, trainer: Trainer) -> bool:
        if self.minutes is None:
            return False
        if trainer.world_size > 1 and trainer.global_step % SHARED_STEPS:
            return False
        late = time.monotonic() - self._saved_at >= 60 * self.minutes
        # every process must come to the same answer: saving is done together
        return bool(trainer.strategy.broadcast(late))

    def on_train_epoch_end(self, trainer: Trainer, learner: LightningModule) -> None:
        """Checkpoint an epoch."""
        assert isinstance(learner, Learner)
        if self.history.row is None:
            return
        score = self.history.row.get(f"val_{learner.criterion.name}")
        if score is not None and learner.improves(score, self.best_score):
            self.best_score, self.best_epoch = score, trainer.current_epoch
            self._save(trainer, self.best)
        self._save(trainer, self.last)

    def _save(self, trainer: Trainer, path: Path) -> None:
        trainer.save_checkpoint(path, weights_only=False)
        self._saved_at = time.monotonic()
