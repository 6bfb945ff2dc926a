"""The work of a run: train with Lightning, test, save the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from phnn._screen import Screen
from phnn.io import save
from phnn.lab.ranks import is_first_process
from phnn.lab.recipe import Recipe
from phnn.lab.runs import METRICS, MODEL, public
from phnn.lab.sealing import check
from phnn.lab.stopping import Stoppable, Stopped
from phnn.lab.tasks.data import Data
from phnn.lab.tasks.learner import Learner
from phnn.lab.tasks.networks import unwrap
from phnn.lab.tasks.sharding import gather, is_sharded
from phnn.lab.training.build import build_data, build_learner
from phnn.lab.training.checkpoints import Keeper, choose
from phnn.lab.training.clock import Clock, TestClock, ValidationClock
from phnn.lab.training.energy import EnergyMeter
from phnn.lab.training.epochs import EpochLog
from phnn.lab.training.judging import JudgeCallback
from phnn.lab.training.progress import RunProgress, describe_run
from phnn.lab.training.provenance import describe_environment
from phnn.lab.training.trainer import (
    calm_lightning,
    make_callbacks,
    make_logger,
    make_trainer,
    to_lightning,
)

LOG_STEPS = 50  # between two points of the logger's curves


def fit(
    recipe: Recipe,
    out: Path,
    stop: Stoppable,
    screen: Screen | None,
    *,
    judge: Callable[[Mapping[str, Any]], bool] | None = None,
) -> dict[str, Any]:
    """Train and test the network of a recipe; save it.

    Args:
        recipe: What to run.
        out: The folder of the run. A checkpoint there is continued.
        stop: The signals that may end the training.
        screen: Where to show how far it is; None for nowhere.
        judge: Makes the run a trial, which is neither tested nor saved; see `train`.

    Returns:
        The result; nothing in processes other than the first of a run.
    """
    options = recipe.trainer
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with calm_lightning():
        if screen is not None:
            screen.phase("reading the data")
        data = build_data(recipe)
        learner = build_learner(recipe, data)
        if screen is not None and is_first_process():
            screen.say(*describe_run(learner, data, out, is_trial=judge is not None))
        clock, validation_clock = Clock(), ValidationClock()
        log = EpochLog(out / METRICS, clock)
        keeper = Keeper(out, log, stop, options.checkpoint_steps, options.checkpoint_minutes)
        has_validation = bool(data.val_dataloader())
        if options.early_stopping is not None and not has_validation:
            raise ValueError(
                f"trainer.early_stopping={options.early_stopping} needs a validation split; give "
                "--data.validation, or leave it out"
            )
        if judge is not None and not has_validation:
            raise ValueError(
                "a trial is judged by the validation split, and there is none; give "
                "--data.validation 0.1"
            )
        judging = [] if judge is None else [JudgeCallback(judge, log)]
        # the loader does not know the other processes yet
        shares = getattr(data, "global_batch", False)  # a data module of Lightning has none
        processes = 1 if shares else options.devices * options.num_nodes
        batches = processes * options.accumulate_grad_batches
        steps = -(-len(data.train_dataloader()) // batches)
        total = min(steps * options.max_epochs, options.max_steps or math.inf)
        trainer = make_trainer(
            options,
            callbacks=[
                clock,
                validation_clock,
                log,
                *make_callbacks(options, learner, int(total)),
                *judging,
                keeper,
                *([] if screen is None else [RunProgress(screen, log)]),
            ],
            logger=make_logger(options, out),
            log_every_n_steps=min(LOG_STEPS, steps),
            limit_val_batches=1.0 if has_validation else 0,
            default_root_dir=out,
        )
        meter = EnergyMeter(options.energy if trainer.is_global_zero else False, options.country)
        meter.start()
        # processes other than the first load it after they have met the first in fit
        resumed = choose(out) if trainer.is_global_zero else keeper.last.exists()
        try:
            trainer.fit(
                learner,
                to_lightning(data),
                ckpt_path=keeper.last if resumed else None,
                weights_only=True,
            )
        except SIGTERMException:
            assert stop.signum is not None
            raise Stopped(stop.signum) from None
        # only the last part of a resumed run was measured: it must not look like the whole
        energy = dict.fromkeys(meter.stop(), None) if resumed else meter.stop()
        described = recipe.describe()
        trained = {
            "model": learner.model.config,
            **described,
            "recipe": public(recipe),
            **learner.count_parameters(),
            "epochs": log.epochs,
            f"val_{learner.criterion.name}": keeper.best_score,
            "train_seconds": clock.seconds,
            "train_processor_seconds": clock.processor,
            "train_seconds_per_100": clock.mean and 100 * clock.mean,
            "train_seconds_per_100_std": clock.std and 100 * clock.std,
            "val_seconds": validation_clock.mean,
            **energy,
            "resumed": resumed,
            "resumed_step": keeper.first_step if resumed else None,
            **describe_environment(trainer),
        }
        if judge is not None:
            given_up = any(each.has_given_up for each in judging)
            trial = {**trained, "best_epoch": keeper.best_epoch, "given_up": given_up}
            return trial if trainer.is_global_zero else {}
        if keeper.best_epoch is not None:
            check(keeper.best)
            learner.load_weights(torch.load(keeper.best, weights_only=True, map_location="cpu"))
        if screen is not None:
            screen.phase("testing")
        scores = test(learner, data, trainer)
        network = learner.model
        if is_sharded(network):
            weights = gather(network)  # together
            network = build_learner(recipe, data).model
            if trainer.is_global_zero:
                network.load_state_dict(weights)
        if not trainer.is_global_zero:
            return {}
        saved = save(unwrap(network), out / MODEL, metadata={**learner.metadata, **described})
        return {
            **trained,
            "storage_bytes": saved.stat().st_size,
            "selected": "last" if keeper.best_epoch is None else f"best, epoch {keeper.best_epoch}",
            **scores,
        }


def test(learner: Learner, data: Data, trainer: lightning.Trainer) -> dict[str, float]:
    """Return the scores on the test split, and the seconds that it took.

    Args:
        learner: The learner with its network.
        data: The data with the test split.
        trainer: The trainer.
    """
    clock = TestClock()
    trainer.callbacks.append(clock)  # type: ignore[attr-defined]
    trainer.test(learner, to_lightning(data), verbose=False)
    return {**learner.test_scores.take(), "test_seconds": clock.seconds}
