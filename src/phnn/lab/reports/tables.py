"""The table of a comparison, for the terminal and as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from phnn.io.atomic import write_text
from phnn.lab.comparison import Comparison
from phnn.lab.reports.lines import Line, summarize
from phnn.lab.runs import Run
from phnn.lab.tables import render
from phnn.lab.tasks import Score, Task
from phnn.lab.training.energy import PAPER_INTENSITY, PAPER_POWER

RESULTS = "results.json"


def render_text(lines: Sequence[Line]) -> str:
    """Return the table for the terminal."""
    head, *rows = tabulate(lines)
    return render(head, rows)


def write_tables(
    comparison: Comparison,
    runs: Sequence[Run],
    out: Path,
    power: float = PAPER_POWER,
    command: str = "",
) -> list[Path]:
    """Write the table as results.csv, results.json and results.md.

    Args:
        comparison: Gives the title, the task and the variants.
        runs: The runs of the comparison.
        out: The folder.
        power: The power of the hardware in watts, for the paper's estimate of CO2.
        command: The command that started the comparison, to be kept with the results.

    Returns:
        The paths of the files.
    """
    lines = summarize(comparison, runs, power)
    table = [line.to_row() for line in lines]
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
        "results.md": _render_markdown(comparison, lines, runs, power),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(out / name, text + "\n")
    return [out / name for name in texts]


def _render_markdown(
    comparison: Comparison, lines: Sequence[Line], runs: Sequence[Run], power: float
) -> str:
    """Return the table, what its columns mean, and the runs that failed."""
    head, *rows = tabulate(lines)
    explained = explain_columns(comparison.task, power)
    page = [f"# {comparison.title}", "", render(head, rows, "markdown"), "", explained]
    failed = [f"- {run.name}: {run.error}" for run in runs if run.error is not None]
    return "\n".join([*page, "", "## Failed runs", "", *failed] if failed else page)


def tabulate(lines: Sequence[Line]) -> list[list[str]]:
    """Return the head of the table and its rows, without empty columns."""
    scores, primary = lines[0].task.scores, lines[0].task.primary
    columns = {
        "recipe": [line.family for line in lines],
        "variant": [line.variant for line in lines],
        "conv parameters": [
            _share(line.conv_parameters, line.conv_parameters_percent) for line in lines
        ],
        "parameters": [_share(line.parameters, line.parameters_percent) for line in lines],
        "storage MB": [_number(line.storage_mb, 2) for line in lines],
        **{_head(score): [format_score(line, score) for line in lines] for score in scores},
        f"paper {primary.unit or primary.label}": [line.paper or "" for line in lines],
        "p": [_p_value(line) for line in lines],
        "runs": [_runs(line) for line in lines],
        "train s/100": [
            _format_spread(line.train_seconds_per_100, line.train_seconds_per_100_std, 2)
            for line in lines
        ],
        "test s": [_number(line.test_seconds, 2) for line in lines],
        "hours": [_number(line.hours, 3) for line in lines],
        "kWh": [_number(line.energy_kwh, 5) for line in lines],
        "CO2 g": [_number(line.co2_kg, 2, 1000) for line in lines],
        "CO2 g (estimate)": [_number(line.co2_kg_paper, 2, 1000) for line in lines],
    }
    filled = {name: column for name, column in columns.items() if any(column)}
    return [list(filled), *map(list, zip(*filled.values(), strict=True))]


def _head(score: Score) -> str:
    return f"{score.label} {score.unit}".rstrip() + ("" if score.higher else " ↓")


def format_score(line: Line, score: Score) -> str:
    """Return a score of a line as "mean ± std"; empty before a run has ended."""
    spread = line.scores.get(score.name)
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


def _p_value(line: Line) -> str:
    if line.p_value is not None:
        return f"{line.p_value:.4f}"
    return "" if line.parameters_percent in (None, 100) else "undefined"


def _runs(line: Line) -> str:
    parts = [(len(line.seeds), ""), (line.failed, " failed"), (line.waiting, " waiting")]
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
        "parameters, over common seeds; undefined with fewer than two. train s/100: seconds for "
        "100 iterations, mean ± standard deviation over the iterations of the last epoch. test s: "
        "seconds for the test split. hours, kWh, CO2: all seeds together; kWh and CO2 measured by "
        f"codecarbon; the estimate is the paper's: hours × {power:g} W × {PAPER_INTENSITY} kg/kWh. "
        f"{task.note}"
    ).strip()
