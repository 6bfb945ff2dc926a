"""Tables of a comparison: for the terminal, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from phnn.io import replacing
from phnn.lab.comparison import Comparison
from phnn.lab.reports.lines import Line, summarize
from phnn.lab.runs import Run
from phnn.lab.tasks import Score, Task
from phnn.lab.training.energy import PAPER_INTENSITY, PAPER_POWER

RESULTS = "results.json"


def render_text(lines: Sequence[Line]) -> str:
    """Returns a table for the terminal."""
    cells = tabulate(lines)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def render_markdown(
    comparison: Comparison, lines: Sequence[Line], outcomes: Sequence[Run], power: float
) -> str:
    """Returns a Markdown page: the table, what its columns mean, and the runs that failed."""
    head, *rows = tabulate(lines)
    table = ["| " + " | ".join(row) + " |" for row in ([head, ["---"] * len(head), *rows])]
    page = [f"# {comparison.title}", "", *table, "", explain_columns(comparison.task, power)]
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        page += ["", "## Failed runs", ""]
        page += [f"- {outcome.name}: {outcome.error}" for outcome in failed]
    return "\n".join(page) + "\n"


def render_csv(lines: Sequence[Line]) -> str:
    """Returns one row for each line with full precision."""
    file = io.StringIO()
    rows = [{**line.to_row(), "seeds": " ".join(map(str, line.seeds))} for line in lines]
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def render_json(
    comparison: Comparison,
    lines: Sequence[Line],
    outcomes: Sequence[Run],
    power: float,
    command: str,
) -> str:
    """Returns the table and every run behind it."""
    runs = [run.to_row() for run in outcomes]
    content = {
        "comparison": comparison.name,
        "title": comparison.title,
        "task": comparison.task.name,
        "command": command,
        "power": power,
        "table": [line.to_row() for line in lines],
        "runs": runs,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def tabulate(lines: Sequence[Line]) -> list[list[str]]:
    """Returns the head of the table and its rows; columns that say nothing are left out."""
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
        "CO2 g (paper's way)": [_number(line.co2_kg_paper, 2, 1000) for line in lines],
    }
    told = {name: column for name, column in columns.items() if any(column)}
    return [list(told), *map(list, zip(*told.values(), strict=True))]


def _head(score: Score) -> str:
    return f"{score.label} {score.unit}".rstrip() + ("" if score.higher else " ↓")


def format_score(line: Line, score: Score) -> str:
    """Returns a score of a line as "mean ± std", or nothing before a run has ended."""
    spread = line.scores.get(score.name)
    return "" if spread is None else _format_spread(*spread, score.digits)


def _number(value: float | None, digits: int, scale: float = 1) -> str:
    return "" if value is None else f"{scale * value:.{digits}f}"


def _format_spread(mean: float | None, std: float | None, digits: int) -> str:
    """Returns "mean ± std", the mean alone when it has no deviation, or nothing."""
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
    """Returns what the columns of the table mean."""
    labels = ", ".join(score.label for score in task.scores)
    arrow = "" if all(score.higher for score in task.scores) else "; ↓: lower is better"
    return (
        f"{labels}: on the test part, mean ± standard deviation over the seeds{arrow}. "
        f"p: paired t-test of the {task.primary.label} against the network with 100 % of the "
        "parameters, over common seeds, undefined with fewer than two. train s/100: "
        "seconds for 100 iterations, mean ± standard deviation over the iterations of the last "
        "epoch. test s: seconds for the test part. hours, kWh, CO2: all seeds together; kWh and "
        f"CO2 by codecarbon, the paper's way: hours × {power:g} W × {PAPER_INTENSITY} kg/kWh. "
        f"{task.note}"
    ).strip()


def write_tables(
    comparison: Comparison,
    outcomes: Sequence[Run],
    out: Path,
    power: float = PAPER_POWER,
    command: str = "",
) -> list[Path]:
    """Writes the table as results.csv, results.json and results.md.

    Args:
        comparison: What was compared.
        outcomes: What became of its runs.
        out: The folder.
        power: Of the hardware in watts, for the paper's estimate of CO2.
        command: How the comparison was started, to be kept with the results.

    Returns:
        The files.
    """
    lines = summarize(comparison, outcomes, power)
    texts = {
        "results.csv": render_csv(lines),
        RESULTS: render_json(comparison, lines, outcomes, power, command),
        "results.md": render_markdown(comparison, lines, outcomes, power),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with replacing(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [out / name for name in texts]
