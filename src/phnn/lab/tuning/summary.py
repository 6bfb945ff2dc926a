"""The summary of a study: one file that its report reads, and the best recipes."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from phnn.io.atomic import write_text
from phnn.lab.recipe import Tree, build_recipe
from phnn.lab.runs import write_json
from phnn.lab.tuning import STUDY
from phnn.lab.tuning.objectives import Objective
from phnn.lab.tuning.space import Dimension, apply
from phnn.lab.tuning.study import find_best, is_counted
from phnn.lab.tuning.trials import describe

BEST = "best"  # the folder of the best recipes
CONFIRM = "confirm.yaml"  # the comparison that trains them again


@dataclass(frozen=True)
class About:
    """What a study is.

    Attributes:
        name: Its name.
        family: The name of its recipe.
        recipe: The recipe as a nested mapping.
        space: The options that are open.
        objectives: What is optimized.
        command: The command that carries it out.
        environment: The machine, the versions and the commit.
    """

    name: str
    family: str
    recipe: Tree
    space: tuple[Dimension, ...]
    objectives: tuple[Objective, ...]
    command: str
    environment: dict[str, Any]


def write_summary(
    study: optuna.Study, about: About, out: Path, *, ended: bool = False
) -> list[FrozenTrial]:
    """Write the state of a study as study.json, and its best recipes as YAML.

    Args:
        study: The study.
        about: What it is.
        out: The folder of the results.
        ended: Whether this is the end, and the importance of the options is worth its seconds.

    Returns:
        The best trial, or those of the Pareto front.
    """
    trials = study.get_trials(deepcopy=False)
    best = find_best(study)
    content = {
        "study": about.name,
        "title": f"Tuning of {about.family}",
        "task": build_recipe(about.recipe).task,
        "command": about.command,
        "environment": about.environment,
        "seed": about.recipe["seed"],
        "space": {dimension.key: dimension.show() for dimension in about.space},
        "logarithmic": [dimension.key for dimension in about.space if dimension.kind == "log"],
        "objectives": [asdict(objective.score) for objective in about.objectives],
        "best": [trial.number for trial in best],
        "importance": measure_importance(study, about.objectives) if ended else {},
        "trials": [describe(trial, about.objectives) for trial in trials],
    }
    write_json(out / STUDY, content)
    _write_recipes(best, about, out)
    return best


def measure_importance(
    study: optuna.Study, objectives: tuple[Objective, ...]
) -> dict[str, dict[str, float]]:
    """Return how much of each objective's variance each option explains, by fANOVA.

    It needs two finished trials that differ; without them it is empty.

    Args:
        study: The study.
        objectives: What is optimized.
    """
    ended = [
        trial
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if is_counted(trial)
    ]
    found: dict[str, dict[str, float]] = {}
    for number, objective in enumerate(objectives):
        if len({trial.values[number] for trial in ended}) < 2:
            continue

        def target(trial: FrozenTrial, number: int = number) -> float:
            return float(trial.values[number])

        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            found[objective.name] = optuna.importance.get_param_importances(
                study, evaluator=evaluator, target=target
            )
    return found


def _write_recipes(best: list[FrozenTrial], about: About, out: Path) -> None:
    folder = out / BEST
    names = {f"trial-{trial.number}.yaml": trial for trial in best}
    if folder.is_dir():
        for old in folder.iterdir():
            if old.name not in names:
                shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name, trial in names.items():
        tree = apply(about.recipe, trial.params)
        # the splits of the study: others could test what the search has seen
        tree["data"] = {"seed": about.recipe["seed"], **tree["data"]}
        write_text(folder / name, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def write_confirmation(best: list[FrozenTrial], about: About, seeds: int, out: Path) -> Path:
    """Write a comparison that trains the best recipes again, with several seeds, and tests them.

    The recipes keep the splits of the study, whatever the seed.

    Args:
        best: The trials.
        about: What the study is.
        seeds: The number of seeds. They follow that of the study, which was part of the choice.
        out: The folder of the results.

    Returns:
        The path of the comparison.
    """
    first = int(about.recipe["seed"]) + 1
    families = {}
    for trial in best:
        tree = apply(about.recipe, trial.params)
        model = tree.get("model", {})
        families[f"{BEST}/trial-{trial.number}.yaml"] = {"tuned": {"n": model.get("n")}}
    content = {
        "title": f"The best of {about.name}, trained again",
        "seeds": list(range(first, first + seeds)),
        "families": families,
    }
    path = out / CONFIRM
    write_text(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return path
