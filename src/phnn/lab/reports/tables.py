"""The table of a comparison, as text and as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from phnn._tables import keep_columns
from phnn.io.atomic import write_text
from phnn.lab.comparison import Comparison
from phnn.lab.paper.emissions import INTENSITY, POWER
from phnn.lab.reports.summaries import Summary, summarize
from phnn.lab.runs import Run
from phnn.lab.tables import render
from phnn.lab.tasks import Score, Task

RESULTS = "results.json"


def render_text(summaries: Sequence[Summary]) -> str:
    """Return the table for a terminal of 80 columns: the names, the scores, and what else fits."""
    head, *rows = keep_columns(tabulate(summaries, with_recipe=False), first=2)
    return render(head, rows)


def write_tables(
    comparison: Comparison,
    runs: Sequence[Run],
    out: Path,
    power: float = POWER,
    command: str = "",
    scored: bool = True,
) -> list[Path]:
    """Write the table as results.csv, results.json and results.md.

    Args:
        comparison: Gives the title, the task and the variants.
        runs: The runs of the comparison.
        out: The folder.
        power: The power of the hardware in watts, for the paper's estimate of CO2.
        command: The command that started the comparison, to be kept with the results.
        scored: Whether the table has our scores; those of a dry run mean nothing.

    Returns:
        The paths of the files.
    """
    summaries = summarize(comparison, runs, power)
    if not scored:
        summaries = [replace(s, scores={}, validation=None, p_value=None) for s in summaries]
    table = [summary.to_row() for summary in summaries]
    content = {
        "comparison": comparison.name,
        "title": comparison.title,
        "task": comparison.task.name,
        "command": command,
        "power": power,
        "table": table,
        "runs": [run.to_row() for run in runs],
    }
    texts = {
        # full precision
        "results.csv": render(
            list(table[0]),
            [list({**row, "seeds": " ".join(map(str, row["seeds"]))}.values()) for row in table],
            "csv",
        ),
        RESULTS: json.dumps(content, indent=2, ensure_ascii=False),
        "results.md": _render_markdown(comparison, summaries, runs, power),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(out / name, text + "\n")
    return [out / name for name in texts]


def _render_markdown(
    comparison: Comparison, summaries: Sequence[Summary], runs: Sequence[Run], power: float
) -> str:
    """Return the table, what its columns mean, and the runs that failed."""
    head, *rows = tabulate(summaries)
    explained = explain_columns(comparison.task, power)
    page = [f"# {comparison.title}", "", render(head, rows, "markdown"), "", explained]
    failed = [f"- {run.name}: {run.error}" for run in runs if run.error is not None]
    return "\n".join([*page, "", "## Failed runs", "", *failed] if failed else page)


def tabulate(summaries: Sequence[Summary], *, with_recipe: bool = True) -> list[list[str]]:
    """Return the head of the table and its rows, without empty columns.

    Args:
        summaries: The rows.
        with_recipe: Whether to name the recipe, even if all have the same.
    """
    columns = {
        "recipe": [summary.family for summary in summaries],
        "variant": [summary.variant for summary in summaries],
        **{
            name: [str(summary.options.get(name, "")) for summary in summaries]
            for name in summaries[0].task.shown
        },
        _name_validation(summaries): [_format_validation(summary) for summary in summaries],
        **_tabulate_scores(summaries),
        "parameters": [
            _share(summary.parameters, summary.parameters_percent) for summary in summaries
        ],
        "storage MiB": [_number(summary.storage_mib, 2) for summary in summaries],
        "runs": [_runs(summary) for summary in summaries],
        "p": [_p_value(summary) for summary in summaries],
        "conv parameters": [
            _share(summary.conv_parameters, summary.conv_parameters_percent)
            for summary in summaries
        ],
        **_tabulate_times(summaries),
        "hours": [_number(summary.hours, 3) for summary in summaries],
        "kWh": [_number(summary.energy_kwh, 5) for summary in summaries],
        "CO2 g": [_number(summary.co2_kg, 2, 1000) for summary in summaries],
        "CO2 g (estimate)": [_number(summary.co2_kg_paper, 2, 1000) for summary in summaries],
    }
    if not with_recipe and len(set(columns["recipe"])) == 1:
        del columns["recipe"]
    filled = {name: column for name, column in columns.items() if any(column)}
    return [list(filled), *map(list, zip(*filled.values(), strict=True))]


def _tabulate_scores(summaries: Sequence[Summary]) -> dict[str, list[str]]:
    """Return a column for each score, and one for what the paper has."""
    task = summaries[0].task
    columns: dict[str, list[str]] = {}
    for score in task.scores:
        columns[_head(score)] = [format_score(summary, score) for summary in summaries]
        name = f"paper {score.unit or score.label}"
        columns[name] = [summary.paper.get(score.name, "") for summary in summaries]
    return columns


def _tabulate_times(summaries: Sequence[Summary]) -> dict[str, list[str]]:
    """Return the times, for as many iterations as the paper has them, beside the paper's."""
    timed = summaries[0].task.timed
    share = timed / 100
    ours = {
        "train": [
            _format_spread(
                _scale(summary.train_seconds_per_100, share),
                _scale(summary.train_seconds_per_100_std, share),
                2 if timed > 1 else 3,
            )
            for summary in summaries
        ],
        "val": [_number(summary.val_seconds, 3) for summary in summaries],
        "test": [_number(summary.test_seconds, 2) for summary in summaries],
    }
    heads = {"train": f"train s/{timed}", "val": "val s/1", "test": "test s"}
    columns: dict[str, list[str]] = {}
    for key, head in heads.items():
        columns[head] = ours[key]
        columns[f"paper {head}"] = [summary.paper.get(key, "") for summary in summaries]
    return columns


def _scale(value: float | None, share: float) -> float | None:
    return None if value is None else share * value


def _name_validation(summaries: Sequence[Summary]) -> str:
    name = next((each.validation_name for each in summaries if each.validation_name), "score")
    score = next((each for each in summaries[0].task.scores if each.name == name), None)
    return f"val {_head(score)}" if score is not None else f"val {name}"


def _format_validation(summary: Summary) -> str:
    if summary.validation is None:
        return ""
    scores = {score.name: score.digits for score in summary.task.scores}
    return _format_spread(*summary.validation, scores.get(summary.validation_name or "", 4))


def _head(score: Score) -> str:
    return f"{score.label} {score.unit}".rstrip() + ("" if score.higher else " ↓")


def format_score(summary: Summary, score: Score) -> str:
    """Return a score of a summary as "mean ± std"; empty before a run has ended."""
    spread = summary.scores.get(score.name)
    return "" if spread is None else _format_spread(*spread, score.digits)


def _number(value: float | None, digits: int, scale: float = 1) -> str:
    return "" if value is None else f"{scale * value:.{digits}f}"


def _format_spread(mean: float | None, std: float | None, digits: int) -> str:
    """Return "mean ± std", or the mean alone when there is no deviation."""
    if mean is None or std is None:
        return _number(mean, digits)
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


def _share(count: int | None, percent: float | None) -> str:
    if count is None:
        return ""
    return f"{count:,}" if percent is None else f"{count:,} ({percent:.0f} %)"


def _p_value(summary: Summary) -> str:
    return _number(summary.p_value, 4)


def _runs(summary: Summary) -> str:
    parts = [(len(summary.seeds), ""), (summary.failed, " failed"), (summary.waiting, " waiting")]
    return ", ".join(f"{count}{what}" for count, what in parts if count) or "0"


def explain_columns(task: Task, power: float) -> str:
    """Return what the columns of the table mean.

    Args:
        task: The task of the networks.
        power: The power in watts behind the paper's estimate of CO2.
    """
    labels = ", ".join(score.label for score in task.scores)
    arrow = "" if all(score.higher for score in task.scores) else "; ↓: lower is better"
    return (
        f"{labels}: on the test split, mean ± standard deviation over the seeds{arrow}. "
        f"p: paired t-test of the {task.primary.label} against the network with 100 % of the "
        f"parameters, over common seeds, two at least. train s/{task.timed}: "
        f"seconds for {task.timed} training iterations, mean ± standard deviation over the "
        "iterations of the last epoch. val: on the validation split, where there is one; choose "
        "between variants by this column, never by test scores. val s/1: seconds for an iteration "
        "on the validation split. test s: seconds for the test split. paper: what the paper prints "
        "for this row. hours, kWh, CO2: all seeds together; kWh and CO2 measured by "
        f"codecarbon; the estimate is the paper's: hours × {power:g} W × {INTENSITY} kg/kWh. "
        f"{task.note}"
    ).strip()
