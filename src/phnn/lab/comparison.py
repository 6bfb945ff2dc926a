"""Comparisons: families of variants trained under one recipe each."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

import yaml

from phnn import algebra
from phnn._names import check_choices
from phnn.io.atomic import write_text
from phnn.lab.recipe import Tree, build_recipe, merge, read_comparison, read_recipe
from phnn.lab.tasks.task import TASKS, Task
from phnn.lab.training.folder import (
    RunFolderError,
    check_folder,
    read_failure,
    read_result,
)

BASELINE = "real"
LOG = "train.log"  # in the folder of a run
RECIPE = "recipe.yaml"  # there, too: what was asked for
END_SECONDS = 30.0  # that a run which is told to end has for it
POLL_SECONDS = 0.2
_KEYS = ("title", "seeds", "families")


@dataclass(frozen=True)
class Variant:
    """One line of a table.

    Attributes:
        family: Name of the recipe that it is trained by.
        recipe: The recipe: a packaged name or a file.
        name: What it is called: "real", "n=4", an algebra, or anything else with options.
        options: Arguments of `create_model` that make it.
        seeds: One run for each.
        paper: The paper's score, as printed: the accuracy in percent, or the F-score.
        baseline: Whether the others of the family are compared with it.
    """

    family: str
    recipe: str
    name: str
    options: Tree
    seeds: tuple[int, ...]
    paper: str | None
    baseline: bool


@dataclass(frozen=True)
class Run:
    """One training run of a comparison.

    Attributes:
        variant: What is trained.
        seed: With which seed.
        folder: Where.
        recipe: How.
    """

    variant: Variant
    seed: int
    folder: Path
    recipe: Tree


@dataclass
class Outcome:
    """What became of a run: a result, an error, or nothing yet."""

    run: Run
    result: dict[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Attributes:
        name: Of the comparison.
        title: Of its table.
        task: What all its networks are trained for.
        variants: Its lines.
    """

    name: str
    title: str
    task: Task
    variants: tuple[Variant, ...]


def load_comparison(name: str | Path) -> Comparison:
    """Reads a packaged comparison, or one from a YAML file.

    `families` maps recipes to their variants, and each variant to nothing, to the paper's score, or
    to options: those of the network, besides `seeds`, `paper` and `baseline`. A recipe is a
    packaged name or a file beside the comparison's. The others of a family are compared with its
    baseline: the variant `real` or, where another has `baseline: true`, with that.

    Args:
        name: Of a packaged comparison, or the path of a file.
    """
    tree = read_comparison(name)
    check_choices("key of a comparison", tree, _KEYS)
    if not tree.get("families"):
        raise ValueError(f"the comparison {name} has no families: recipes with their variants")
    short = Path(name).stem
    families = {
        _find_recipe(family, Path(name).parent): entries
        for family, entries in tree["families"].items()
    }
    for family, entries in families.items():
        if not isinstance(entries, Mapping) or not entries:
            raise ValueError(
                f"the family {family} of the comparison {name} has no variants, such as real: or "
                "n=4:"
            )
    variants = [
        _make_variant(recipe, str(variant), entry, tree.get("seeds", [0]), _find_baseline(entries))
        for recipe, entries in families.items()
        for variant, entry in entries.items()
    ]
    return Comparison(short, tree.get("title", short), _common_task(families), tuple(variants))


def _common_task(recipes: Iterable[str]) -> Task:
    tasks = {recipe: build_recipe(read_recipe(recipe)).task for recipe in recipes}
    if len(set(tasks.values())) > 1:
        listed = ", ".join(f"{recipe}: {task}" for recipe, task in tasks.items())
        raise ValueError(f"the recipes of a comparison must be of one task, not {listed}")
    return TASKS[next(iter(tasks.values()))]


def _find_recipe(family: str, folder: Path) -> str:
    beside = folder / family
    return str(beside) if beside.is_file() else family


def _find_baseline(entries: Mapping[str, Any]) -> str:
    marked = (n for n, e in entries.items() if isinstance(e, Mapping) and e.get("baseline"))
    return next(marked, BASELINE)


def _make_variant(
    recipe: str, name: str, entry: Any, seeds: Sequence[int], baseline: str
) -> Variant:
    options = dict(entry) if isinstance(entry, Mapping) else {"paper": entry}
    options.pop("baseline", None)
    paper = options.pop("paper", None)
    seeds = options.pop("seeds", seeds)
    return Variant(
        family=Path(recipe).stem,
        recipe=recipe,
        name=name,
        options={**_named_options(name, bool(options)), **options},
        seeds=tuple(seeds),
        # YAML reads 67.990 as a number; the paper prints three digits
        paper=f"{paper:.3f}" if isinstance(paper, float | int) else paper,
        baseline=name == baseline,
    )


def _named_options(name: str, described: bool) -> Tree:
    """Returns the options that a name alone stands for."""
    learned = re.fullmatch(r"n=(\d+)", name)
    if learned:
        return {"n": int(learned[1])}
    if name in algebra.names() and name != BASELINE:
        return {"algebra": name}
    if name != BASELINE and not described:
        check_choices("variant", [name], [BASELINE, "n=2", "n=3", "n=4", *algebra.names()])
    return {}


def plan(comparison: Comparison, out: Path, overrides: Mapping[str, Any]) -> list[Run]:
    """Returns the runs of a comparison: first every variant once, then the further seeds.

    Args:
        comparison: What to compare.
        out: Where the folders of the runs go.
        overrides: Parts of a recipe that replace those of every family's, but not what makes the
            difference between the runs.
    """
    task = overrides.get("task", comparison.task.name)
    if task != comparison.task.name:
        raise ValueError(f"task={task}: the comparison {comparison.name} is of another task")
    _check_differences(comparison, overrides)
    runs = [
        Run(variant, seed, out / "runs" / _slug(variant, seed), _recipe(variant, seed, overrides))
        for variant in comparison.variants
        for seed in variant.seeds
    ]
    return sorted(runs, key=lambda run: run.variant.seeds.index(run.seed))


def _check_differences(comparison: Comparison, overrides: Mapping[str, Any]) -> None:
    """Raises an error for what would make runs equal that a table shows under different names."""
    own = {"n", "algebra"}.union(*(variant.options for variant in comparison.variants))
    given = {f"model.{option}": value for option, value in overrides.get("model", {}).items()}
    if "seed" in overrides:
        given["seed"] = overrides["seed"]
    for name, value in given.items():
        if name == "seed" or name.removeprefix("model.") in own:
            raise ValueError(
                f"{name}={value} is for the comparison {comparison.name} to say, whose runs differ "
                "in it; write a comparison of your own: a YAML file with seeds and families"
            )


def _recipe(variant: Variant, seed: int, overrides: Mapping[str, Any]) -> Tree:
    return merge(read_recipe(variant.recipe), {"model": variant.options, "seed": seed}, overrides)


def _slug(variant: Variant, seed: int) -> str:
    return re.sub(r"[^\w=.-]+", "-", f"{variant.family}-{variant.name}-seed{seed}")


def check_folders(runs: Iterable[Run]) -> None:
    """Raises an error when folders hold runs of other recipes than those that are asked for.

    A run that failed may have been brought to its end with what lets a run go on.

    Args:
        runs: What is asked for.
    """
    refused = []
    for run in runs:
        recipe, was_asked = build_recipe(run.recipe), (run.folder / RECIPE).exists()
        try:
            if was_asked:
                check_folder(run.folder, recipe, RECIPE)
            check_folder(run.folder, recipe, went_on=was_asked)
        except RunFolderError as error:
            refused.append(error)
    if refused:
        others = f"; as do {len(refused) - 1} other folders" if len(refused) > 1 else ""
        raise RunFolderError(f"{refused[0]}{others}")


def run_all(
    runs: Iterable[Run], jobs: int, report: Callable[[list[Outcome]], None]
) -> list[Outcome]:
    """Carries runs out, each in a process of its own; those that have ended are not repeated.

    Args:
        runs: What to do.
        jobs: How many at once. One shows its progress; several write it to `train.log` in their
            folders.
        report: Called with all outcomes so far, at first and whenever a run has ended.
    """
    outcomes = [Outcome(run, read_result(run.folder)) for run in runs]
    waiting = deque(outcome for outcome in outcomes if outcome.result is None)
    running: list[tuple[Outcome, subprocess.Popen[bytes]]] = []
    report(outcomes)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                outcome = waiting.popleft()
                running.append((outcome, _start(outcome.run, visible=jobs == 1)))
            ended = [pair for pair in running if pair[1].poll() is not None]
            for outcome, process in ended:
                running.remove((outcome, process))
                _settle(outcome, process.returncode, has_log=jobs > 1)
                report(outcomes)
            if not ended:
                sleep(POLL_SECONDS)
    finally:  # after an interrupt no run is left behind
        for _, process in running:
            process.terminate()
        for _, process in running:
            _await(process)
    return outcomes


def _await(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(run: Run, *, visible: bool) -> subprocess.Popen[bytes]:
    run.folder.mkdir(parents=True, exist_ok=True)
    recipe = run.folder / RECIPE
    text = yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True)
    write_text(recipe, text)
    command = [sys.executable, "-m", "phnn", "train", str(recipe), "--out", str(run.folder)]
    if visible:
        return subprocess.Popen(command)
    with (run.folder / LOG).open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _settle(outcome: Outcome, code: int, *, has_log: bool) -> None:
    outcome.result = read_result(outcome.run.folder)
    if outcome.result is None:
        failure = read_failure(outcome.run.folder)
        hint = f"; see {outcome.run.folder / LOG}" if has_log else ""
        outcome.error = failure or f"its process ended with exit code {code}{hint}"
