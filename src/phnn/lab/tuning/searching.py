"""The search: trials in processes of their own until there are enough."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from phnn.lab.recipe import Recipe, Tree, build_recipe
from phnn.lab.tasks.registry import find_task
from phnn.lab.training import check_recipe
from phnn.lab.training.processes import POLL_SECONDS, end_all, start
from phnn.lab.training.provenance import describe_machine
from phnn.lab.tuning.objectives import Objective, read_objectives
from phnn.lab.tuning.space import Dimension, apply, default_space
from phnn.lab.tuning.study import STORAGE, Pruner, find_best, is_counted, open_study
from phnn.lab.tuning.summary import About, write_summary
from phnn.lab.tuning.trials import Active, SpaceExhaustedError, Trials

JOURNAL = "study.journal"  # the study, in the folder of the results, unless it is in a database
SAMPLES = 50  # combinations of a new space, one of which must be possible
FAILURES = 3  # of the first trials, after which the search gives up

Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class Search:
    """What to search, and how long.

    Attributes:
        recipe: The recipe as a nested mapping.
        family: The name of the recipe.
        space: The options that are open; the default space if empty.
        objectives: What to optimize, by name, separated by commas; the task's primary score by
            default.
        pruner: Which trials are given up: by default median for a score, none otherwise.
        trials: The trials of the whole study, over all workers; None for no limit.
        minutes: The minutes of this worker; None for no limit.
        jobs: Trials at once.
        name: The name of the study.
        storage: A URL that Optuna takes, or a file; a journal in `out` by default.
        out: The folder of the results.
        command: The command for the results.
    """

    recipe: Tree
    family: str
    out: Path
    space: tuple[Dimension, ...] = ()
    objectives: str | None = None
    pruner: Pruner | None = None
    trials: int | None = 20
    minutes: float | None = None
    jobs: int = 1
    name: str = ""
    storage: str | None = None
    command: str = ""


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        about: What the study is.
        best: The best trial, or those of the Pareto front.
        trials: All trials that count.
        note: Why the search has ended early; empty otherwise.
    """

    about: About
    best: list[FrozenTrial]
    trials: list[FrozenTrial]
    note: str


def search(what: Search, progress: Progress) -> Found:
    """Carry out trials, or continue where a killed search stopped.

    Each trial is a run in `out/runs`, trained by the function that `phnn train` and `phnn compare`
    use, and judged by the validation split. The test split is never read.

    Args:
        what: What to search.
        progress: Called with the trials that have ended, their limit, and the best so far.

    Raises:
        ValueError: The recipe, the space or the objectives cannot work, or every trial fails.
    """
    recipe = build_recipe(what.recipe)
    check_recipe(recipe)
    objectives = read_objectives(what.objectives, find_task(recipe.task))
    pruner = _choose_pruner(what.pruner, objectives)
    _check_numbers(what, recipe)
    space = what.space or default_space(recipe)
    tree, name = recipe.to_dict(), what.name or what.family
    _check_space(tree, space)
    storage = what.storage or str(what.out / JOURNAL)
    study = open_study(storage, name, recipe, space, objectives, pruner)
    about = About(name, what.family, tree, space, objectives, what.command, describe_machine())
    names = {"comparison": name, "family": what.family}
    trials = Trials(study, tree, space, objectives, what.out, names, what.trials)
    end = None if what.minutes is None else time.monotonic() + 60 * what.minutes

    def start_one(active: Active) -> None:
        judge = {
            "study": name,
            "trial": active.trial._trial_id,
            "score": f"val_{objectives[0].name}",
            "pruner": pruner,
        }
        active.process = start(
            active.run,
            what.command,
            pipe,
            visible=False,
            module="phnn.lab.tuning",
            environment={STORAGE: storage},
            judge=judge,
        )

    note, enough = "", False
    running: list[Active] = []
    pipe, own_end = os.pipe()  # its own end is closed when this process ends
    show_state(study, what, objectives, progress)
    try:
        while True:
            late = end is not None and time.monotonic() > end
            while len(running) < what.jobs and not (late or note or enough):
                try:
                    active = trials.next()
                except SpaceExhaustedError as exhausted:
                    note = f"no further combination can be tried; the last: {exhausted}"
                    break
                if active is None:
                    enough = True
                    break
                running.append(active)
                start_one(active)
            ended = [each for each in running if each.process and each.process.poll() is not None]
            for active in ended:
                assert active.process is not None
                trials.settle(active, active.process.returncode)
                running.remove(active)
                write_summary(study, about, what.out)
                show_state(study, what, objectives, progress)
                _check_failures(study)
            if late and running:
                note = "the time is over: the same command continues the trials that were running"
            if late or (not running and (note or enough)):
                break
            for active in running:
                active.show_life()
            if not ended:
                time.sleep(POLL_SECONDS)
    finally:  # trials that did not end stay open: the same command continues them
        end_all(each.process for each in running if each.process is not None)
        for active in running:
            active.release()
        os.close(pipe)
        os.close(own_end)
    best = write_summary(study, about, what.out, ended=True)
    if not best and note:
        raise ValueError(note)
    counted = [trial for trial in study.get_trials(deepcopy=False) if is_counted(trial)]
    return Found(about, best, counted, note)


def show_state(
    study: optuna.Study,
    what: Search,
    objectives: tuple[Objective, ...],
    progress: Progress,
) -> None:
    """Report how many trials have ended, and the best so far."""
    trials = [trial for trial in study.get_trials(deepcopy=False) if is_counted(trial)]
    ended = sum(trial.state.is_finished() for trial in trials)
    best = find_best(study)
    text = "none has ended well"
    if len(objectives) > 1 and best:
        text = f"{len(best)} on the Pareto front"
    elif best:
        text = f"best {objectives[0].score.show(best[0].values[0])} (trial {best[0].number})"
    progress(ended, what.trials, text)


def _choose_pruner(pruner: Pruner | None, objectives: tuple[Objective, ...]) -> Pruner:
    possible = len(objectives) == 1 and objectives[0].cost is None
    if pruner is None:
        return "median" if possible else "none"
    if pruner != "none" and not possible:
        names = ", ".join(objective.name for objective in objectives)
        raise ValueError(
            f"pruner={pruner} gives trials up by one validation score, and the objectives are "
            f"{names}; leave it out"
        )
    return pruner


def _check_numbers(what: Search, recipe: Recipe) -> None:
    for name in ("trials", "minutes", "jobs"):
        value = getattr(what, name)
        if value is not None and value <= 0:
            raise ValueError(f"{name}={value} must be more than 0")
    if recipe.data.get("validation") == 0:
        raise ValueError(
            "trials are judged by the validation split, and data.validation is 0; give "
            "--data.validation 0.1"
        )


def _check_space(tree: Tree, space: tuple[Dimension, ...]) -> None:
    """Raise an error when no combination can be built, before a study is made."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    errors = []
    for _ in range(SAMPLES):
        trial = study.ask()
        try:
            values = {dimension.key: dimension.suggest(trial) for dimension in space}
            check_recipe(build_recipe(apply(tree, values)))
            return
        except (TypeError, ValueError) as error:
            errors.append(f"{error}, with {values}")
    raise ValueError(f"none of {SAMPLES} combinations of the space can be built: {errors[0]}")


def _check_failures(study: optuna.Study) -> None:
    """Raise an error when all of the first trials have failed: the recipe cannot work."""
    trials = [trial for trial in study.get_trials(deepcopy=False) if is_counted(trial)]
    failed = [trial for trial in trials if trial.state == TrialState.FAIL]
    ended = [trial for trial in trials if trial.state.is_finished()]
    if len(ended) == len(failed) == FAILURES:
        first = failed[0]
        raise ValueError(
            f"the first {FAILURES} trials have failed; trial {first.number}: "
            f"{first.user_attrs.get('error')}"
        )
