"""What a folder of `phnn compare` or `phnn train` holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from phnn.lab.comparison import Comparison, Outcome, Run, Variant
from phnn.lab.recipe import Tree, build_recipe
from phnn.lab.reports.lines import Line, summarize
from phnn.lab.reports.tables import RESULTS
from phnn.lab.tasks.task import TASKS, Task
from phnn.lab.training.energy import PAPER_POWER
from phnn.lab.training.folder import CONFIG, MODEL, name_start, read_failure, read_result


@dataclass(frozen=True)
class RunRecord:
    """One run.

    Attributes:
        family: The recipe.
        variant: The variant's name.
        seed: Of the run.
        folder: Where it is, or was.
        status: "finished", "failed" or "waiting".
        error: What stopped it.
        result: What `result.json` holds, of a finished run.
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
        """Of the run, for people."""
        return f"{self.family} {self.variant}, seed {self.seed}"

    @property
    def recipe(self) -> Tree | None:
        """What the run was made by; None when its folder is not here."""
        path = self.folder / CONFIG
        return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None

    @property
    def has_model(self) -> bool:
        """Whether the trained network is here."""
        return (self.folder / MODEL).is_file()

    @property
    def is_real(self) -> bool:
        """Whether the network has neither a learned nor a fixed algebra; a start may have one."""
        model = (self.result or {}).get("model", {})
        started = (self.recipe or {}).get("start") is not None
        return not started and model.get("n") is None and model.get("algebra") is None


@dataclass(frozen=True)
class Results:
    """What was run, and what came of it.

    Attributes:
        name: Of the comparison or the run.
        title: For people.
        task: What the networks were trained for.
        command: What repeats it; empty when it is not known.
        power: In watts, by which CO2 was reckoned.
        lines: The table.
        runs: All of them, also those that have not ended.
    """

    name: str
    title: str
    task: Task
    command: str
    power: float
    lines: list[Line]
    runs: list[RunRecord]

    def representatives(self) -> list[RunRecord]:
        """Returns the first finished run of each variant."""
        first: dict[tuple[str, str], RunRecord] = {}
        for run in self.runs:
            if run.result is not None:
                first.setdefault((run.family, run.variant), run)
        order = [(line.family, line.variant) for line in self.lines]
        return [first[key] for key in order if key in first]


def read_results(folder: Path) -> Results:
    """Reads what a folder holds.

    Args:
        folder: Of the results of a comparison, or of a run.
    """
    if (folder / RESULTS).is_file():
        try:
            return _read_comparison(folder)
        except (KeyError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{folder / RESULTS} is damaged or of another version of phnn ({error!r}); phnn "
                "compare writes it anew, without repeating runs that have ended"
            ) from error
    if (folder / CONFIG).is_file():
        return _read_run(folder)
    raise FileNotFoundError(
        f"{folder} has neither {RESULTS} nor {CONFIG}; give a folder that phnn compare or phnn "
        "train has written"
    )


def _read_comparison(folder: Path) -> Results:
    content = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    runs = [
        RunRecord(**{**run, "folder": folder / "runs" / run["folder"]}) for run in content["runs"]
    ]
    return Results(
        name=content["comparison"],
        title=content["title"],
        task=TASKS[content["task"]],
        command=content["command"],
        power=content["power"],
        lines=[Line.from_row(row) for row in content["table"]],
        runs=runs,
    )


def _read_run(folder: Path) -> Results:
    name = folder.resolve().name
    recipe = build_recipe(yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8")))
    result, error = read_result(folder), read_failure(folder)
    network = describe_network(recipe.model)
    if recipe.start is not None:  # which may have other layers
        network += f" from {name_start(recipe.start)}"
    variant = Variant(
        family=str(recipe.data.get("name", recipe.task)),
        recipe=str(folder / CONFIG),
        name=network,
        options=recipe.model,
        seeds=(recipe.seed,),
        paper=None,
        baseline=False,
    )
    comparison = Comparison(name, f"{network} on {variant.family}", TASKS[recipe.task], (variant,))
    outcome = Outcome(Run(variant, recipe.seed, folder, recipe.to_dict()), result, error)
    status = "finished" if result else "failed" if error else "waiting"
    return Results(
        name=name,
        title=comparison.title,
        task=comparison.task,
        command=(result or {}).get("command", ""),
        power=PAPER_POWER,
        lines=summarize(comparison, [outcome]),
        runs=[
            RunRecord(variant.family, network, recipe.seed, folder, status, error, result),
        ],
    )


def describe_network(model: Tree) -> str:
    """Returns the name of a network with what its layers are.

    Example:
        >>> describe_network({"name": "resnet20", "n": 4})
        'resnet20 n=4'
    """
    kind = model.get("algebra") or ("real" if model.get("n") is None else f"n={model['n']}")
    return f"{model.get('name', 'network')} {kind}"
