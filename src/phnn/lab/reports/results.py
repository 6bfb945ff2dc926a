"""Read the folder of a comparison or a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from phnn.lab.comparison import Outcome
from phnn.lab.recipe import Tree, build_recipe
from phnn.lab.reports.lines import Line, make_line
from phnn.lab.reports.tables import RESULTS
from phnn.lab.tasks.task import TASKS, Task
from phnn.lab.training.energy import PAPER_POWER
from phnn.lab.training.folder import CONFIG, MODEL, name_start, read_failure, read_result


@dataclass(frozen=True)
class RunRecord:
    """One run.

    Attributes:
        family: The recipe.
        variant: The network.
        seed: The seed of the run.
        folder: The folder of the run, which may be missing.
        status: "finished", "failed" or "waiting".
        error: What stopped the run.
        result: The contents of `result.json`; None before the run has ended.
    """

    family: str
    variant: str
    seed: int
    folder: Path
    status: str
    error: str | None
    result: dict[str, Any] | None

    @property
    def name(self) -> str:
        """The name of the run, for people."""
        return f"{self.family} {self.variant}, seed {self.seed}"

    @property
    def recipe(self) -> Tree | None:
        """The recipe of the run; None when its folder is missing."""
        path = self.folder / CONFIG
        return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None

    @property
    def has_model(self) -> bool:
        """Whether the trained network is in the folder."""
        return (self.folder / MODEL).is_file()

    @property
    def is_real(self) -> bool:
        """Whether the network has no algebra. One that starts from a file may have one."""
        model = (self.result or {}).get("model", {})
        started = (self.recipe or {}).get("start") is not None
        return not started and model.get("n") is None and model.get("algebra") is None


def record_outcome(outcome: Outcome) -> RunRecord:
    """Return the outcome of a planned run as a run."""
    run, result, error = outcome.run, outcome.result, outcome.error
    family, variant = run.variant.family, run.variant.name
    return RunRecord(family, variant, run.seed, run.folder, _status(result, error), error, result)


def _status(result: dict[str, Any] | None, error: str | None) -> str:
    return "failed" if error else "waiting" if result is None else "finished"


@dataclass(frozen=True)
class Results:
    """Runs, and the table that compares them.

    Attributes:
        name: The name of the comparison or the run.
        title: The title, for people.
        task: The task of the networks.
        command: The command that repeats the runs; empty when it is not known.
        power: The power in watts behind the paper's estimate of CO2.
        lines: The table.
        runs: All runs, also those that have not ended.
    """

    name: str
    title: str
    task: Task
    command: str
    power: float
    lines: list[Line]
    runs: list[RunRecord]


def read_results(folder: Path) -> Results:
    """Read the results of a comparison or a run.

    Args:
        folder: The folder of a comparison or a run.

    Raises:
        ValueError: The table of the comparison is damaged.
        FileNotFoundError: The folder holds neither a comparison nor a run.
    """
    if (folder / RESULTS).is_file():
        try:
            return _read_comparison(folder)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{folder / RESULTS} is damaged or from another version of phnn ({error!r}); run "
                "phnn compare again, which rewrites it without repeating finished runs"
            ) from error
    if (folder / CONFIG).is_file():
        return _read_run(folder)
    raise FileNotFoundError(
        f"{folder} has neither {RESULTS} nor {CONFIG}; give a folder written by phnn compare or "
        "phnn train"
    )


def _read_comparison(folder: Path) -> Results:
    content = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    return Results(
        name=content["comparison"],
        title=content["title"],
        task=TASKS[content["task"]],
        command=content["command"],
        power=content["power"],
        lines=[Line.from_row(row) for row in content["table"]],
        runs=[
            RunRecord(**{**run, "folder": folder / "runs" / run["folder"]})
            for run in content["runs"]
        ],
    )


def _read_run(folder: Path) -> Results:
    recipe = build_recipe(yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8")))
    task, result, error = TASKS[recipe.task], read_result(folder), read_failure(folder)
    variant = describe_network(recipe.model)
    if recipe.start is not None:  # its layers may differ from the description
        variant += f" from {name_start(recipe.start)}"
    family = str(recipe.data.get("name", recipe.task))
    error = None if result else error
    status = _status(result, error)
    run = RunRecord(family, variant, recipe.seed, folder, status, error, result)
    return Results(
        name=folder.resolve().name,
        title=f"{variant} on {family}",
        task=task,
        command=(result or {}).get("command", ""),
        power=PAPER_POWER,
        lines=[make_line(task, family, variant, [run])],
        runs=[run],
    )


def describe_network(model: Tree) -> str:
    """Return the name of a network and what its layers are.

    Example:
        >>> describe_network({"name": "resnet20", "n": 4})
        'resnet20 n=4'
    """
    kind = model.get("algebra") or ("real" if model.get("n") is None else f"n={model['n']}")
    return f"{model.get('name', 'network')} {kind}"
