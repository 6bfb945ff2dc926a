"""What a folder of `phnn compare` or `phnn train` holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from phnn.lab.comparison import Comparison, Variant
from phnn.lab.reports.lines import Line, summarize
from phnn.lab.reports.tables import RESULTS
from phnn.lab.runs import CONFIG, Run
from phnn.lab.tasks import Task, find_task
from phnn.lab.training.energy import PAPER_POWER


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
    runs: list[Run]

    def representatives(self) -> list[Run]:
        """Returns the first finished run of each variant."""
        first: dict[tuple[str, str], Run] = {}
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
    runs = [Run.from_row(row, folder / "runs") for row in content["runs"]]
    return Results(
        name=content["comparison"],
        title=content["title"],
        task=find_task(content["task"]),
        command=content["command"],
        power=content["power"],
        lines=[Line.from_row(row) for row in content["table"]],
        runs=runs,
    )


def _read_run(folder: Path) -> Results:
    run = Run.open(folder)
    assert run.recipe is not None
    variant = Variant(
        family=run.family,
        recipe=str(folder / CONFIG),
        name=run.variant,
        options=run.recipe["model"],
        seeds=(run.seed,),
        paper=None,
        baseline=False,
    )
    task = find_task(run.recipe["task"])
    name = folder.resolve().name
    comparison = Comparison(name, f"{run.variant} on {run.family}", task, (variant,))
    return Results(
        name=name,
        title=comparison.title,
        task=task,
        command=(run.result or {}).get("command", ""),
        power=PAPER_POWER,
        lines=summarize(comparison, [run]),
        runs=[run],
    )
