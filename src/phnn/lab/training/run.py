"""One run: a recipe in, a folder with everything about it out."""

from __future__ import annotations

import logging
import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, TQDMProgressBar
from lightning.pytorch.loggers import TensorBoardLogger

import phnn
from phnn.io import save
from phnn.lab.recipe import Recipe, TrainerOptions
from phnn.lab.training.build import Data, build_data, build_learner, check_recipe
from phnn.lab.training.energy import EnergyMeter
from phnn.lab.training.folder import MODEL, RESULT, is_first_process, open_folder, write_json
from phnn.lab.training.learner import Learner
from phnn.lab.training.progress import AtomicCheckpointIO, Clock, Keeper

LOG_STEPS = 50  # between two points of TensorBoard's curves


def train(
    recipe: Recipe, out: Path | str, *, command: str = "", progress: bool = True
) -> dict[str, Any]:
    """Trains and tests a network, or goes on with a run that was stopped.

    The folder gets `config.yaml`, `metrics.csv` with a row for each epoch, TensorBoard's logs,
    `checkpoints/last.ckpt` and, when there is a validation part, `best.ckpt`, and at the end
    `model.safetensors` and `result.json`. The best epoch is tested when there is a validation part,
    the last otherwise.

    Args:
        recipe: What to run.
        out: The folder of the run. A run of the same recipe that was stopped there goes on from its
            last complete checkpoint; one that has ended is not repeated.
        command: How the run was started, to be kept in the result.
        progress: Show a progress bar.

    Returns:
        What `result.json` holds; nothing in processes other than the first of a run.

    Raises:
        RunFolderError: The folder holds another run, or somebody is at work in it.
        NonFiniteLossError: The loss became infinite or not a number.
    """
    out = Path(out)
    with open_folder(out, recipe) as finished, calm_lightning():
        if finished is not None:
            return finished if is_first_process() else {}
        if recipe.trainer.threads is not None:
            torch.set_num_threads(recipe.trainer.threads)
        check_recipe(recipe)
        data = build_data(recipe)
        learner = build_learner(recipe, data)
        result = _fit_and_test(learner, data, out, progress)
        if not result:
            return {}
        result["command"] = command
        write_json(out / RESULT, result)
        return result


def _fit_and_test(learner: Learner, data: Data, out: Path, progress: bool) -> dict[str, Any]:
    options = learner.recipe.trainer
    clock = Clock()
    keeper = Keeper(out, clock, options.checkpoint_steps, options.checkpoint_minutes)
    trainer = make_trainer(
        options,
        callbacks=[clock, keeper],
        progress=progress,
        logger=TensorBoardLogger(out, name=None, version="tensorboard"),
        log_every_n_steps=min(LOG_STEPS, len(data.train_dataloader())),
        limit_val_batches=1.0 if data.val_dataloader() else 0,
        default_root_dir=out,
    )
    meter = EnergyMeter(options.energy if trainer.is_global_zero else False, options.country)
    meter.start()
    resumed = keeper.last.exists()
    trainer.fit(learner, data, ckpt_path=keeper.last if resumed else None, weights_only=True)
    # of a continued run only the last part was measured, which must not look like the whole
    energy = dict.fromkeys(meter.stop(), None) if resumed else meter.stop()
    if keeper.best_epoch is not None:
        learner.load_weights(torch.load(keeper.best, weights_only=True, map_location="cpu"))
    scores = test(learner, data, trainer)
    if not trainer.is_global_zero:
        return {}
    described = learner.recipe.describe()
    saved = save(learner.model, out / MODEL, metadata={**learner.metadata, **described})
    return {
        "model": learner.model.config,
        **described,
        **learner.count_parameters(),
        "storage_bytes": saved.stat().st_size,
        "epochs": keeper.epochs,
        "selected": "last" if keeper.best_epoch is None else f"best, epoch {keeper.best_epoch}",
        f"val_{learner.score}": keeper.best_score,
        **scores,
        "train_seconds": clock.seconds,
        "train_seconds_per_100": clock.mean and 100 * clock.mean,
        "train_seconds_per_100_std": clock.std and 100 * clock.std,
        **energy,
        "resumed": resumed,
        **_environment(trainer),
    }


def test(learner: Learner, data: Data, trainer: lightning.Trainer) -> dict[str, float]:
    """Returns the scores on the test part, and the seconds that it took.

    Args:
        learner: The network with its task.
        data: Whose test part to use.
        trainer: Where it is computed.
    """
    stopwatch = _TestStopwatch()
    trainer.callbacks.append(stopwatch)  # type: ignore[attr-defined]
    trainer.test(learner, data, verbose=False)
    return {**learner.test_scores.take(), "test_seconds": stopwatch.seconds}


class _TestStopwatch(Callback):
    """Measures the test alone: no data reading, no setting up of processes."""

    seconds = 0.0

    def on_test_epoch_start(self, *args: Any) -> None:
        self.seconds = -time.perf_counter()

    def on_test_epoch_end(self, *args: Any) -> None:
        self.seconds += time.perf_counter()


def make_trainer(
    options: TrainerOptions, *, callbacks: list[Callback], progress: bool, **arguments: Any
) -> lightning.Trainer:
    """Returns Lightning's trainer for our loaders and checkpoints.

    Args:
        options: How to train.
        callbacks: What else happens meanwhile.
        progress: Show a progress bar.
        arguments: Others of Lightning's.
    """
    return lightning.Trainer(
        max_epochs=options.max_epochs,
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=options.strategy,
        precision=options.precision,  # type: ignore[arg-type]
        gradient_clip_val=options.gradient_clip_val,
        deterministic=options.deterministic,
        callbacks=[*callbacks, *([_ProgressBar(refresh_rate=10)] if progress else [])],
        plugins=[AtomicCheckpointIO()],
        num_sanity_val_steps=0,
        enable_checkpointing=False,  # Keeper's work
        enable_progress_bar=progress,
        enable_model_summary=False,
        use_distributed_sampler=False,  # our loaders know their process
        **arguments,
    )


class _ProgressBar(TQDMProgressBar):
    """Lightning's bar without the number that it gives to log folders."""

    def get_metrics(self, *args: Any) -> dict[str, Any]:
        return {key: value for key, value in super().get_metrics(*args).items() if key != "v_num"}


@contextmanager
def calm_lightning() -> Iterator[None]:
    """Keeps Lightning's advice and a warning about its own code from the user's terminal."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning 2.6 asks torch 2.13 in a way that torch no longer likes
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _environment(trainer: lightning.Trainer) -> dict[str, Any]:
    """Returns when, where and with what a run was made."""
    return {
        "ended": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": trainer.strategy.root_device.type,
        "devices": trainer.world_size,
        "precision": trainer.precision,
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "lightning": lightning.__version__,
            "phnn": phnn.__version__,
        },
    }
