"""What a person sees of a run: a header, a line for each epoch, and how far it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from phnn._screen import Screen, draw_bar, format_time
from phnn.lab.runs import describe_network
from phnn.lab.tasks.data import Data
from phnn.lab.tasks.learner import Learner
from phnn.lab.tasks.registry import find_task
from phnn.lab.tasks.task import Score
from phnn.lab.training.epochs import EpochLog
from phnn.nn import PHLayer


class RunProgress(Callback):
    """Say what is trained, and how far it is.

    Args:
        screen: Where to show it.
        history: The log of the epochs; None for a test alone.
    """

    def __init__(self, screen: Screen, history: EpochLog | None = None) -> None:
        self.screen = screen
        self.history = history
        self._began = 0.0
        self._first = 0.0  # share of the run that was done when this process began
        self._resumed = False

    def on_train_start(self, trainer: Trainer, learner: LightningModule) -> None:
        """Say from where the run continues."""
        assert self.history is not None
        self._began, self._resumed = time.monotonic(), trainer.global_step > 0
        self._first = trainer.global_step / self._count_steps(trainer)
        if self._resumed and trainer.is_global_zero:
            rest = trainer.global_step - self.history.epochs * int(trainer.num_training_batches)
            within = f", step {rest}" if rest > 0 else ""
            self.screen.say(f"resumed from epoch {self.history.epochs}{within}")

    def on_train_batch_end(
        self, trainer: Trainer, learner: LightningModule, outputs: Any, batch: Any, number: int
    ) -> None:
        """Show the step."""
        steps = int(trainer.num_training_batches)
        loss = float(outputs["loss"]) if isinstance(outputs, dict) else float(outputs)
        text = (
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs} "
            f"{self._draw(number + 1, steps)}step {number + 1}/{steps}  loss {loss:.3f}"
        )
        self._show(trainer, f"{text}  {self._estimate(trainer)}".rstrip())

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        learner: LightningModule,
        outputs: Any,
        batch: Any,
        number: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Show how far the validation is."""
        total = int(trainer.num_val_batches[0])
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        text = f"{epoch} {self._draw(number + 1, total)}validation {number + 1}/{total}"
        self._show(trainer, text)

    def on_train_epoch_end(self, trainer: Trainer, learner: LightningModule) -> None:
        """Leave a line for the epoch."""
        assert isinstance(learner, Learner)
        assert self.history is not None
        row = self.history.row
        if row is None or not trainer.is_global_zero:
            return
        score = find_task(learner.recipe.task).primary
        parts = [
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}",
            *_show_score(row, score),
            f"loss {row['train_loss']:.3f}",
            f"{format_time(row['seconds'])}",
        ]
        left = self._estimate(trainer)
        self.screen.say("  ".join([*parts, *([left] if left else [])]))

    def on_test_batch_end(
        self,
        trainer: Trainer,
        learner: LightningModule,
        outputs: Any,
        batch: Any,
        number: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Show how far the test is."""
        total = int(trainer.num_test_batches[0])
        self._show(trainer, f"test {self._draw(number + 1, total)}batch {number + 1}/{total}")

    def _show(self, trainer: Trainer, text: str) -> None:
        if trainer.is_global_zero:
            self.screen.show(text)

    def _draw(self, done: int, total: int) -> str:
        return f"{draw_bar(done, total)} " if self.screen.is_terminal else ""

    def _count_steps(self, trainer: Trainer) -> int:
        return max(1, int(trainer.num_training_batches) * (trainer.max_epochs or 1))

    def _estimate(self, trainer: Trainer) -> str:
        """Return the time that is left; nothing where little is known."""
        share = trainer.global_step / self._count_steps(trainer)
        if share >= 1:
            return ""
        spent = time.monotonic() - self._began
        if share <= self._first or spent < 1:
            return ""
        return f"{format_time(spent * (1 - share) / (share - self._first))} left"


def _show_score(row: dict[str, Any], score: Score) -> list[str]:
    """Return the validation score of an epoch, if there is one."""
    value = row.get(f"val_{score.name}")
    return [] if value is None else [f"validation {score.show(value)}"]


def describe_run(learner: Learner, data: Data, out: Path, *, is_trial: bool) -> list[str]:
    """Return the header of a run: its network, its data, its folder.

    Args:
        learner: The learner, with its network.
        data: The data, read.
        out: The folder.
        is_trial: Whether it is a trial of a study, which does not read the test split.
    """
    recipe, model = learner.recipe, learner.model
    layers = [layer for layer in model.modules() if isinstance(layer, PHLayer)]
    sizes = sorted({str(layer.n) for layer in layers})
    count = sum(parameter.numel() for parameter in model.parameters())
    network = f"network  {describe_network(recipe)}, {count:,} parameters"
    if layers and recipe.start is not None:
        shown = f"n = {', '.join(sizes)}" if len(sizes) < 4 else f"{len(sizes)} sizes"
        network += f", {len(layers)} PH layers of {shown}"
    splits = {
        "training": data.train_dataloader(),
        "validation": data.val_dataloader(),
    }
    if not is_trial:
        splits["test"] = data.test_dataloader()
    counts = [
        f"{loader.size:,} {name}" for name, loader in splits.items() if hasattr(loader, "size")
    ]
    things = getattr(splits["training"], "things", "samples")
    name = recipe.data.get("name", recipe.task)
    sizes_shown = f": {', '.join(counts)} {things}" if counts else ""
    return [network, f"data     {name}{sizes_shown}", f"folder   {out}"]
