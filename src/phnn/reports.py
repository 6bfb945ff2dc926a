"""Comparisons made readable: runs in, tables and pictures out."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import cycle, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phnn.io import replacing
from phnn.tasks.compare import Comparison, Outcome, Variant
from phnn.tasks.training.energy import PAPER_INTENSITY, PAPER_POWER, estimate_co2

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEGABYTE = 10**6


@dataclass(frozen=True)
class Line:
    """One variant of a table, over its seeds.

    Attributes:
        family: The recipe.
        variant: The variant's name.
        seeds: Of the runs that have ended.
        failed: Number of runs that failed.
        waiting: Number of runs that have not ended yet.
        parameters: Number of parameters.
        parameters_percent: Of the baseline's.
        storage_mb: Size of the saved file in megabytes.
        accuracy: On the test part, in percent, mean over the seeds.
        accuracy_std: Standard deviation over the seeds; None with one run.
        paper: The paper's accuracy, as printed.
        p_value: Of a paired t-test against the baseline; None where it is undefined.
        train_seconds_per_100: Seconds for 100 iterations, mean over an epoch and the seeds.
        train_seconds_per_100_std: Standard deviation over the iterations of an epoch.
        test_seconds: Seconds to answer for the test part.
        hours: Of training, all seeds together.
        energy_kwh: Measured by codecarbon, all seeds together.
        co2_kg: Measured by codecarbon, all seeds together.
        co2_kg_paper: By the paper's estimate: hours × power × 0.445 kg/kWh.
        threads: CPU threads of a run.
    """

    family: str
    variant: str
    seeds: tuple[int, ...]
    failed: int
    waiting: int
    parameters: int | None = None
    parameters_percent: float | None = None
    storage_mb: float | None = None
    accuracy: float | None = None
    accuracy_std: float | None = None
    paper: str | None = None
    p_value: float | None = None
    train_seconds_per_100: float | None = None
    train_seconds_per_100_std: float | None = None
    test_seconds: float | None = None
    hours: float | None = None
    energy_kwh: float | None = None
    co2_kg: float | None = None
    co2_kg_paper: float | None = None
    threads: int | None = None


def summarize(
    comparison: Comparison, outcomes: Sequence[Outcome], power: float = PAPER_POWER
) -> list[Line]:
    """Returns the lines of a comparison's table.

    Args:
        comparison: What was compared.
        outcomes: What became of its runs.
        power: Of the hardware in watts, for the paper's estimate of CO2.
    """
    baselines = {
        variant.family: _results(variant, outcomes)
        for variant in comparison.variants
        if variant.baseline
    }
    return [
        _line(variant, outcomes, baselines.get(variant.family, {}), power)
        for variant in comparison.variants
    ]


def _results(variant: Variant, outcomes: Sequence[Outcome]) -> dict[int, dict[str, Any]]:
    """Returns the results of a variant by their seeds."""
    mine = [outcome for outcome in outcomes if outcome.run.variant == variant]
    return {outcome.run.seed: outcome.result for outcome in mine if outcome.result is not None}


def _line(
    variant: Variant,
    outcomes: Sequence[Outcome],
    baseline: dict[int, dict[str, Any]],
    power: float,
) -> Line:
    results = _results(variant, outcomes)
    failed = sum(o.run.variant == variant and o.error is not None for o in outcomes)
    waiting = len(variant.seeds) - len(results) - failed
    if not results:
        return Line(variant.family, variant.name, (), failed, waiting, paper=variant.paper)
    runs = list(results.values())
    accuracies = [100 * run["test_accuracy"] for run in runs]
    whole = next((run["parameters"] for run in baseline.values()), None)
    seconds = sum(run["train_seconds"] for run in runs)
    return Line(
        family=variant.family,
        variant=variant.name,
        seeds=tuple(results),
        failed=failed,
        waiting=waiting,
        parameters=runs[0]["parameters"],
        parameters_percent=None if whole is None else 100 * runs[0]["parameters"] / whole,
        storage_mb=runs[0]["storage_bytes"] / MEGABYTE,
        accuracy=statistics.mean(accuracies),
        accuracy_std=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        paper=variant.paper,
        p_value=None if variant.baseline else paired_p_value(results, baseline),
        train_seconds_per_100=_mean(runs, "train_seconds_per_100"),
        train_seconds_per_100_std=_mean(runs, "train_seconds_per_100_std"),
        test_seconds=_mean(runs, "test_seconds"),
        hours=seconds / 3600,
        energy_kwh=_total(runs, "energy_kwh"),
        co2_kg=_total(runs, "co2_kg"),
        co2_kg_paper=estimate_co2(seconds, power),
        threads=runs[0]["threads"],
    )


def _mean(runs: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run[key] is not None]
    return statistics.mean(values) if values else None


def _total(runs: Sequence[dict[str, Any]], key: str) -> float | None:
    """Returns the sum, or None when a run lacks the value: a part would look like the whole."""
    values = [run[key] for run in runs]
    return None if None in values else sum(values)


def paired_p_value(
    results: dict[int, dict[str, Any]], baseline: dict[int, dict[str, Any]]
) -> float | None:
    """Returns the p-value of a paired t-test over the seeds that both have.

    Args:
        results: By seed.
        baseline: By seed.

    Returns:
        None with fewer than two pairs, or when all differences are equal: it is undefined then.
    """
    seeds = sorted(results.keys() & baseline.keys())
    ours = [results[seed]["test_accuracy"] for seed in seeds]
    theirs = [baseline[seed]["test_accuracy"] for seed in seeds]
    if len({a - b for a, b in zip(ours, theirs, strict=True)}) < 2:
        return None
    from scipy.stats import ttest_rel

    return float(ttest_rel(ours, theirs).pvalue)


# --- tables --------------------------------------------------------------------------------------


def render_text(lines: Sequence[Line]) -> str:
    """Returns a table for the terminal."""
    cells = _cells(lines)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def render_markdown(
    comparison: Comparison, lines: Sequence[Line], outcomes: Sequence[Outcome], power: float
) -> str:
    """Returns a Markdown page: the table, what its columns mean, and the runs that failed."""
    head, *rows = _cells(lines)
    table = ["| " + " | ".join(row) + " |" for row in ([head, ["---"] * len(head), *rows])]
    page = [f"# {comparison.title}", "", *table, "", _explain(power)]
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        page += ["", "## Failed runs", ""]
        page += [f"- {_name(outcome)}: {outcome.error}" for outcome in failed]
    return "\n".join(page) + "\n"


def render_csv(lines: Sequence[Line]) -> str:
    """Returns one row for each line with full precision."""
    file = io.StringIO()
    writer = csv.DictWriter(file, [f.name for f in fields(Line)], lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({**asdict(line), "seeds": " ".join(map(str, line.seeds))})
    return file.getvalue()


def render_json(comparison: Comparison, lines: Sequence[Line], outcomes: Sequence[Outcome]) -> str:
    """Returns the table and every run behind it."""
    runs = [
        {
            "family": o.run.variant.family,
            "variant": o.run.variant.name,
            "seed": o.run.seed,
            "folder": o.run.folder.name,
            "status": "failed" if o.error else "waiting" if o.result is None else "finished",
            "error": o.error,
            "result": o.result,
        }
        for o in outcomes
    ]
    content = {
        "comparison": comparison.name,
        "title": comparison.title,
        "table": [asdict(line) for line in lines],
        "runs": runs,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _name(outcome: Outcome) -> str:
    variant = outcome.run.variant
    return f"{variant.family} {variant.name}, seed {outcome.run.seed}"


def _cells(lines: Sequence[Line]) -> list[list[str]]:
    """Returns the head of the table and its rows; columns that say nothing are left out."""
    columns = {
        "recipe": [line.family for line in lines],
        "variant": [line.variant for line in lines],
        "parameters": [_parameters(line) for line in lines],
        "storage MB": [_number(line.storage_mb, 2) for line in lines],
        "accuracy %": [_spread(line.accuracy, line.accuracy_std, 2) for line in lines],
        "paper %": [line.paper or "" for line in lines],
        "p": [_p_value(line) for line in lines],
        "runs": [_runs(line) for line in lines],
        "train s/100": [
            _spread(line.train_seconds_per_100, line.train_seconds_per_100_std, 2) for line in lines
        ],
        "test s": [_number(line.test_seconds, 2) for line in lines],
        "hours": [_number(line.hours, 3) for line in lines],
        "kWh": [_number(line.energy_kwh, 5) for line in lines],
        "CO2 g": [_number(line.co2_kg, 2, 1000) for line in lines],
        "CO2 g (paper's way)": [_number(line.co2_kg_paper, 2, 1000) for line in lines],
    }
    told = {name: column for name, column in columns.items() if any(column)}
    return [list(told), *map(list, zip(*told.values(), strict=True))]


def _number(value: float | None, digits: int, scale: float = 1) -> str:
    return "" if value is None else f"{scale * value:.{digits}f}"


def _spread(mean: float | None, std: float | None, digits: int) -> str:
    if mean is None or std is None:
        return _number(mean, digits)
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


def _parameters(line: Line) -> str:
    if line.parameters is None:
        return ""
    share = "" if line.parameters_percent is None else f" ({line.parameters_percent:.0f} %)"
    return f"{line.parameters:,}{share}"


def _p_value(line: Line) -> str:
    if line.p_value is not None:
        return f"{line.p_value:.4f}"
    return "undefined" if line.seeds and line.parameters_percent != 100 else ""


def _runs(line: Line) -> str:
    parts = [(len(line.seeds), ""), (line.failed, " failed"), (line.waiting, " waiting")]
    return ", ".join(f"{count}{what}" for count, what in parts if count) or "0"


def _explain(power: float) -> str:
    return (
        "accuracy: on the test part, mean ± standard deviation over the seeds. p: paired t-test "
        "against the real network over common seeds, undefined with fewer than two. train s/100: "
        "seconds for 100 iterations, mean ± standard deviation over the iterations of the last "
        "epoch. test s: seconds for the test part. hours, kWh, CO2: all seeds together; kWh and "
        f"CO2 by codecarbon, the paper's way: hours × {power:g} W × {PAPER_INTENSITY} kg/kWh."
    )


def write_tables(
    comparison: Comparison, outcomes: Sequence[Outcome], out: Path, power: float = PAPER_POWER
) -> list[Path]:
    """Writes the table as results.csv, results.json and results.md.

    Args:
        comparison: What was compared.
        outcomes: What became of its runs.
        out: The folder.
        power: Of the hardware in watts, for the paper's estimate of CO2.

    Returns:
        The files.
    """
    lines = summarize(comparison, outcomes, power)
    texts = {
        "results.csv": render_csv(lines),
        "results.json": render_json(comparison, lines, outcomes),
        "results.md": render_markdown(comparison, lines, outcomes, power),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with replacing(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [out / name for name in texts]


# --- the picture ---------------------------------------------------------------------------------

# Okabe and Ito's colours: told apart by colour-blind readers, and in grey
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
COLUMNS = 3  # of panels
LARGEST = 900.0  # area of the largest bubble in square points
LABEL_GAP = 0.085  # between two labels, of a panel's height


def draw_bubbles(comparison: Comparison, lines: Sequence[Line], out: Path) -> list[Path]:
    """Draws accuracy against parameters, one panel for each recipe, as bubble.png and bubble.svg.

    The area of a bubble is in proportion to the parameters; bars show the deviation over the seeds.

    Args:
        comparison: Whose title to use.
        lines: Those without a result are left out.
        out: The folder.

    Returns:
        The files; none while no run has ended.
    """
    known = [line for line in lines if line.accuracy is not None]
    if not known:
        return []
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    families = list(dict.fromkeys(line.family for line in known))
    colours = dict(zip(dict.fromkeys(line.variant for line in known), cycle(COLOURS), strict=False))
    columns = min(COLUMNS, math.ceil(math.sqrt(len(families))))
    rows = math.ceil(len(families) / columns)
    # fixed names inside the SVG: the same runs give the same file
    with rc_context({"svg.hashsalt": comparison.name, "svg.fonttype": "none"}):
        figure = Figure(figsize=(1 + 5.4 * columns, 0.6 + 3.8 * rows), layout="constrained")
        figure.suptitle(comparison.title)
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for panel, family in zip_longest(panels, families):
            members = [line for line in known if line.family == family]
            if members:
                _draw_panel(panel, members, colours)
            else:
                panel.set_axis_off()
        paths = [out / f"bubble.{suffix}" for suffix in ("png", "svg")]
        for path in paths:
            with replacing(path) as temporary:
                figure.savefig(temporary, format=path.suffix[1:], dpi=150, metadata=_undated(path))
    return paths


def _undated(path: Path) -> dict[str, None]:
    return {"Date": None} if path.suffix == ".svg" else {}


def _draw_panel(panel: Axes, lines: Sequence[Line], colours: dict[str, str]) -> None:
    from matplotlib.ticker import EngFormatter

    largest = max(line.parameters or 0 for line in lines)
    for line in lines:
        x, y, colour = line.parameters or 0, line.accuracy or 0.0, colours[line.variant]
        panel.errorbar(x, y, line.accuracy_std, color=colour, capsize=4, zorder=2)
        panel.scatter(x, y, s=LARGEST * x / largest, color=colour, alpha=0.75, zorder=3)
    panel.set_title(lines[0].family, fontsize="medium")
    panel.set_xlabel("parameters")
    panel.set_ylabel("test accuracy (%)")
    panel.set_xlim(0, 1.15 * largest)
    panel.margins(y=0.2)
    panel.xaxis.set_major_formatter(EngFormatter())
    panel.grid(alpha=0.3)
    _label(panel, lines, colours)


def _label(panel: Axes, lines: Sequence[Line], colours: dict[str, str]) -> None:
    """Writes the names in a column at the right, each tied to its bubble, so that none overlap."""
    bottom, top = panel.get_ylim()
    ordered = sorted(lines, key=lambda line: line.accuracy or 0.0)
    wanted = [((line.accuracy or 0.0) - bottom) / (top - bottom) for line in ordered]
    for line, height in zip(ordered, spread_out(wanted, LABEL_GAP), strict=True):
        panel.annotate(
            f"{line.variant}  {_spread(line.accuracy, line.accuracy_std, 1)} %",
            xy=(line.parameters or 0, line.accuracy or 0.0),
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),
                "color": colours[line.variant],
                "alpha": 0.5,
            },
        )


def spread_out(places: Sequence[float], gap: float) -> list[float]:
    """Moves ascending places within 0..1 so that neighbours are at least `gap` apart.

    Args:
        places: Where things want to be.
        gap: The least distance; lowered when there are too many things for it.

    Example:
        >>> spread_out([0.5, 0.5, 0.98], 0.25)
        [0.5, 0.75, 1.0]
    """
    gap = min(gap, 1 / max(1, len(places) - 1))
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else max(place, 0.0))
    ceiling = 1.0
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], ceiling)
        ceiling = moved[i] - gap
    return moved
