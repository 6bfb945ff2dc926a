"""The results of a comparison or a run, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phnn.lab.files import FileError, read_json
from phnn.lab.paper.emissions import POWER
from phnn.lab.reports.summaries import Row, Summary, summarize_row, summarize_rows
from phnn.lab.reports.tables import RESULTS
from phnn.lab.runs import CONFIG, Run
from phnn.lab.tasks import Task, find_task


@dataclass(frozen=True)
class Results:
    """Runs, and the table that compares them.

    Attributes:
        name: The name of the comparison or the run.
        title: The title, for people.
        task: The task of the networks.
        command: The command that repeats the runs; empty when it is not known.
        power: The power in watts behind the paper's estimate of CO2.
        summaries: The table.
        runs: All runs, also those that have not ended.
    """

    name: str
    title: str
    task: Task
    command: str
    power: float
    summaries: list[Summary]
    runs: list[Run]


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
        except (AttributeError, KeyError, TypeError, FileError) as error:
            raise ValueError(
                f"{folder / RESULTS} is damaged or from another version of phnn ({error!r}); run "
                "phnn compare again, which rewrites it without repeating finished runs"
            ) from error
    if (folder / CONFIG).is_file():
        return _read_run(folder)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise FileNotFoundError(
            f"{folder} {what}; give a folder written by phnn compare or phnn train"
        )
    raise FileNotFoundError(
        f"{folder} has neither {RESULTS} nor {CONFIG}; give a folder written by phnn compare or "
        "phnn train"
    )


def _read_comparison(folder: Path) -> Results:
    content = read_json(folder / RESULTS)
    task, power = find_task(content["task"]), content["power"]
    runs = [Run.from_row(row, folder / "runs") for row in content["runs"]]
    rows = [Row.read(row, task) for row in content["table"]]
    return Results(
        name=content["comparison"],
        title=content["title"],
        task=task,
        command=content["command"],
        power=power,
        summaries=summarize_rows(task, rows, runs, power),
        runs=runs,
    )


def _read_run(folder: Path) -> Results:
    run = Run.open(folder)
    assert run.recipe is not None  # a run that was opened has one
    task = find_task(run.recipe["task"])
    return Results(
        name=folder.resolve().name,
        title=f"{run.variant} on {run.family}",
        task=task,
        command=(run.result or {}).get("command", ""),
        power=POWER,
        summaries=[summarize_row(task, Row(run.family, run.variant, False, {}), [run])],
        runs=[run],
    )
