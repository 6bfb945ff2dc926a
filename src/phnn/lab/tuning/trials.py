"""The trials of a worker: taken from a study, started, and settled."""

from __future__ import annotations

import math
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from filelock import AcquireReturnProxy, BaseFileLock, Timeout
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from phnn.io.atomic import write_text
from phnn.io.header import check_fields
from phnn.lab.files import FileError, lock
from phnn.lab.recipe import Recipe, Tree, build_recipe
from phnn.lab.runs import FAILURE, VALIDATION, Run, RunFolderError, find_mismatch, read_json
from phnn.lab.training import check_recipe
from phnn.lab.tuning.objectives import Objective
from phnn.lab.tuning.space import Dimension, apply
from phnn.lab.tuning.study import is_counted

ALIVE_SECONDS = 60.0  # between two signs of life of a trial
LOST_SECONDS = 900.0  # after which a trial of another machine without a sign of life is lost
SKIPS = 100  # in a row, after which the space is exhausted


class SpaceExhaustedError(Exception):
    """There is nothing new to try.

    Args:
        reason: Why the last combination was skipped.
    """


@dataclass
class Active:
    """A trial that this worker carries out.

    Attributes:
        trial: Optuna's trial.
        run: Its run.
        claim: The lock that keeps other workers of this folder away from it.
        process: Its process, once it has been started.
        alive: When it last gave a sign of life.
    """

    trial: optuna.Trial
    run: Run
    claim: AcquireReturnProxy[BaseFileLock]
    process: subprocess.Popen[bytes] | None = None
    alive: float = field(default_factory=time.monotonic)

    def show_life(self) -> None:
        """Tell the study now and then that the trial goes on."""
        if time.monotonic() - self.alive > ALIVE_SECONDS:
            self.trial.set_user_attr("alive", time.time())
            self.alive = time.monotonic()

    def release(self) -> None:
        """Leave the trial to others, or to the next time."""
        self.claim.__exit__(None, None, None)


class Trials:
    """The trials that a worker takes from a study.

    Args:
        study: The study.
        recipe: The recipe as a nested mapping.
        space: The options that are open.
        objectives: What is optimized.
        out: The folder of the results. Workers that share it take over each other's trials.
        names: What the runs are called: `comparison` and `family`.
        limit: The number of trials of the whole study; None for no limit.
    """

    def __init__(
        self,
        study: optuna.Study,
        recipe: Tree,
        space: tuple[Dimension, ...],
        objectives: tuple[Objective, ...],
        out: Path,
        names: Mapping[str, str],
        limit: int | None,
    ) -> None:
        self.study = study
        self.recipe = recipe
        self.space = space
        self.objectives = objectives
        self.runs = out / "runs"
        self.names = dict(names)
        self.limit = limit
        self.runs.mkdir(parents=True, exist_ok=True)
        self.worker = _identify(out)
        self.mine: set[int] = set()

    def next(self) -> Active | None:
        """Return a trial to carry out; None when there are enough.

        A trial that a killed worker of this folder left comes first. Combinations that cannot be
        built, or that were tried before, are skipped.

        Raises:
            SpaceExhaustedError: Nothing else is found.
        """
        self._give_up_lost()
        reason = ""
        for _ in range(SKIPS):
            found = next(self._orphans(), None) or self._ask()
            if found is None:
                return None
            trial, claim = found
            recipe, reason = self._build(trial)
            if recipe is not None:
                folder = self.runs / f"trial-{trial.number}"
                names = {**self.names, "variant": f"trial {trial.number}"}
                self.mine.add(trial.number)
                return Active(trial, Run.make(folder, recipe, **names), claim)
            claim.__exit__(None, None, None)
        raise SpaceExhaustedError(reason)

    def settle(self, active: Active, code: int) -> None:
        """Tell the study how a trial has ended.

        Args:
            active: The trial.
            code: The exit code of its process.
        """
        trial, folder = active.trial, active.run.folder
        try:
            outcome = _read_outcome(active.run, code)
            values = [objective.measure(folder, outcome) for objective in self.objectives]
            trial.set_user_attr("parameters", outcome["parameters"])
            if outcome["given_up"]:
                self.study.tell(trial, state=TrialState.PRUNED)
            elif all(map(math.isfinite, values)):
                self.study.tell(trial, values)
            else:
                raise RunFolderError(f"its objectives are {values}")
        except (RunFolderError, FileError) as error:
            trial.set_user_attr("error", str(error))
            self.study.tell(trial, state=TrialState.FAIL)
        self.mine.discard(trial.number)
        active.release()

    def _claim(self, number: int) -> AcquireReturnProxy[BaseFileLock] | None:
        try:
            return lock(self.runs / f".trial-{number}.lock", 0)
        except Timeout:
            return None

    def _orphans(self) -> Iterator[tuple[optuna.Trial, AcquireReturnProxy[BaseFileLock]]]:
        """Yield trials of this folder whose worker is gone."""
        for found in self._running():
            if found.user_attrs.get("worker") != self.worker or found.number in self.mine:
                continue
            claim = self._claim(found.number)
            if claim is not None:
                trial = optuna.Trial(self.study, found._trial_id)
                trial.set_user_attr("alive", time.time())
                yield trial, claim

    def _ask(self) -> tuple[optuna.Trial, AcquireReturnProxy[BaseFileLock]] | None:
        if self.limit is not None and self.count() >= self.limit:
            return None
        while True:
            trial = self._create()
            claim = self._claim(trial.number)
            if claim is not None:  # another worker of this folder may have been faster
                break
        trial.set_user_attr("worker", self.worker)
        trial.set_user_attr("alive", time.time())
        if self.limit is not None and self.count(before=trial.number) >= self.limit:
            self._skip(trial, "other workers have done enough", learn=False)
            claim.__exit__(None, None, None)
            return None
        return trial, claim

    def _create(self) -> optuna.Trial:
        """Return a trial that was queued, or a new one, which has its worker from the beginning."""
        if self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            return self.study.ask()
        new = optuna.trial.create_trial(
            state=TrialState.RUNNING, user_attrs={"worker": self.worker, "alive": time.time()}
        )
        made = self.study._storage.create_new_trial(self.study._study_id, template_trial=new)
        return optuna.Trial(self.study, made)

    def count(self, before: int | None = None) -> int:
        """Return how many trials count, of those with a smaller number if one is given."""
        trials = self.study.get_trials(deepcopy=False)
        known = [trial for trial in trials if is_counted(trial)]
        return sum(before is None or trial.number < before for trial in known)

    def _build(self, trial: optuna.Trial) -> tuple[Recipe | None, str]:
        """Return the recipe of a trial, or why it is skipped."""
        values = {dimension.key: dimension.suggest(trial) for dimension in self.space}
        try:
            recipe = build_recipe(apply(self.recipe, values))
            check_recipe(recipe)
        except (TypeError, ValueError) as error:
            self._skip(trial, str(error), learn=True)
            return None, str(error)
        for other in self.study.get_trials(deepcopy=False):
            alike = other.params == trial.params and other.number < trial.number
            if alike and is_counted(other) and other.state != TrialState.FAIL:
                reason = f"trial {other.number} has the same options"
                self._skip(trial, reason, learn=False)
                return None, reason
        return recipe, ""

    def _skip(self, trial: optuna.Trial, reason: str, *, learn: bool) -> None:
        """Leave a trial out; the sampler of one objective learns from it to avoid such trials."""
        trial.set_user_attr("skipped", reason)
        pruned = learn and len(self.objectives) == 1
        self.study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)

    def _running(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def _give_up_lost(self) -> None:
        """Queue the options of trials again whose machine has been silent for too long."""
        for found in self._running():
            began = found.datetime_start.timestamp() if found.datetime_start else 0.0
            silent = time.time() - max(began, found.user_attrs.get("alive", 0.0))
            if found.user_attrs.get("worker") == self.worker or silent < LOST_SECONDS:
                continue
            # another worker may see the same; one of them succeeds
            with suppress(UpdateFinishedTrialError, ValueError):
                storage = self.study._storage
                storage.set_trial_user_attr(found._trial_id, "skipped", "its machine was lost")
                storage.set_trial_state_values(found._trial_id, TrialState.FAIL)
                self.study.enqueue_trial(found.params)


def _read_outcome(run: Run, code: int) -> dict[str, Any]:
    """Return the outcome of a trial whose process has ended.

    Raises:
        RunFolderError: It has failed, or what its folder holds belongs to another recipe.
    """
    if (failure := read_json(run.folder / FAILURE)) is not None:
        raise RunFolderError(str(failure.get("error")))
    outcome: dict[str, Any] | None = read_json(run.folder / VALIDATION)
    error = outcome and find_mismatch(run.folder / VALIDATION, outcome, run.recipe)
    if error:
        raise RunFolderError(f"{error}; give another --out")
    if outcome is None or code != 0:
        raise RunFolderError(f"its process ended with exit code {code}")
    if outcome.get("best_epoch") is None:
        raise RunFolderError("no epoch had a finite score")
    try:
        check_fields(outcome, {"parameters": int, "train_seconds": int | float, "given_up": bool})
    except ValueError as damage:
        raise RunFolderError(f"{run.folder / VALIDATION} is damaged ({damage})") from None
    return outcome


def _identify(out: Path) -> str:
    """Return a name for a folder that no other folder has, on whatever machine."""
    path = out / ".worker"
    with lock(out / ".worker.lock"):
        if not path.exists():
            write_text(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8").strip()


def describe(trial: FrozenTrial, objectives: tuple[Objective, ...]) -> dict[str, Any]:
    """Return a trial as JSON can hold it.

    Args:
        trial: The trial.
        objectives: What is optimized.
    """
    values = trial.values if trial.state == TrialState.COMPLETE else None
    attributes = trial.user_attrs
    state = "skipped" if "skipped" in attributes else trial.state.name.lower()
    return {
        "number": trial.number,
        "state": {"complete": "finished", "fail": "failed", "pruned": "given up"}.get(state, state),
        "options": trial.params,
        "values": values and dict(zip([o.name for o in objectives], values, strict=True)),
        "scores": {str(step): value for step, value in trial.intermediate_values.items()},
        "parameters": attributes.get("parameters"),
        "reason": attributes.get("skipped") or attributes.get("error"),
        "began": trial.datetime_start and trial.datetime_start.isoformat(timespec="seconds"),
        "seconds": trial.duration and trial.duration.total_seconds(),
    }
