"""The results of the toy problems, as a table, a file and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phnn.io.atomic import write_text
from phnn.lab.drawing import COLOURS, save_figure
from phnn.lab.tables import render
from phnn.lab.tasks.toy import TOLERANCE, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("-", "--", "-.", ":")
ROW = 9  # matrices beside each other, at most
# lengths in inches: side of a matrix, gap between two, left margin of a block, title from the top
MATRIX, GAP, LEFT, TITLE = 0.75, 0.1, 0.6, 0.25
TOP, BOTTOM, BAR = 0.55, 0.5, 0.9  # margins above and below a block; width of the colour bar
RANGE = 1.25  # of the colours; at their ends, red and blue are too dark to tell apart
BLOCK = BOTTOM + 2 * MATRIX + GAP + TOP


def render_toy(results: Sequence[Result]) -> str:
    """Return a table for the terminal."""
    head = ("problem", "n", "learned", "distance", "steps", "loss", "nearest algebra", "")
    return render(head, map(_cells, results))


def _cells(result: Result) -> tuple[str, ...]:
    problem, nearest = result.problem, result.nearest
    return (
        problem.name,
        str(problem.algebra.n),
        problem.learned,
        f"{result.distance:.1e}",
        str(len(result.losses)),
        f"{result.losses[-1]:.1e}",
        "" if nearest is None else f"{nearest.algebra.name} at {nearest.distance:.1e}",
        "passed" if result.passed else "FAILED",
    )


def write_toy(results: Sequence[Result], out: Path) -> Path:
    """Write toy.json: losses, learned and true matrices, distances.

    Args:
        results: The results so far.
        out: The folder, which is created if necessary.
    """
    content = {"tolerance": TOLERANCE, "results": [_content(result) for result in results]}
    out.mkdir(parents=True, exist_ok=True)
    path = out / "toy.json"
    write_text(path, json.dumps(content) + "\n")
    return path


def _content(result: Result) -> dict[str, Any]:
    problem, nearest = result.problem, result.nearest
    return {
        "problem": problem.name,
        "n": problem.algebra.n,
        "learned": problem.learned,
        "passed": result.passed,
        "distance": result.distance,
        "nearest": nearest and {"algebra": nearest.algebra.name, "distance": nearest.distance},
        "determined_columns": problem.determined.tolist(),
        "A": result.A.tolist(),
        "A_true": problem.truth.tolist(),
        "losses": result.losses,
    }


def draw_losses(results: Sequence[Result], out: Path) -> list[Path]:
    """Draw the losses as toy-loss: with given filters at the left, with learned ones at the right.

    Args:
        results: One result at least.
        out: The folder.

    Returns:
        The paths of the files.
    """
    from matplotlib.figure import Figure

    kinds = {False: "filters given, A learned", True: "filters and A learned"}
    shown = {learns: title for learns, title in kinds.items() if _select(results, learns)}
    figure = Figure(figsize=(0.6 + 4.4 * len(shown), 3.6), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    names = list(dict.fromkeys(result.problem.name for result in results))
    for panel, (learns, title) in zip(panels, shown.items(), strict=True):
        for result in _select(results, learns):
            index = names.index(result.problem.name)
            panel.plot(
                range(1, len(result.losses) + 1),
                result.losses,
                label=f"{result.problem.name}, n = {result.problem.algebra.n}",
                color=COLOURS[index % len(COLOURS)],
                linestyle=STYLES[index % len(STYLES)],
            )
        panel.set(title=title, xlabel="step", yscale="log")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    panels[0].set_ylabel("squared error / mean square of targets")
    return save_figure(figure, out, "toy-loss")


def draw_algebras(results: Sequence[Result], out: Path) -> list[Path]:
    """Draw the matrices that were learned with given filters above the true ones, as toy-algebra.

    Args:
        results: Results. Those with learned filters are left out: their A is one of many bases.
        out: The folder.

    Returns:
        The paths of the files; none when every result is left out.
    """
    shown = _select(results, learns_filters=False)
    if not shown:
        return []
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    rows = _fill_rows(shown)
    width = max(map(_width, rows)) + BAR
    figure = Figure(figsize=(width, BLOCK * len(rows)))
    colours: dict[str, Any] = {
        "norm": Normalize(-RANGE, RANGE),
        "cmap": colormaps["RdBu_r"].with_extremes(bad="0.75"),
    }
    for line, row in enumerate(rows):
        left, bottom = LEFT, BLOCK * (len(rows) - 1 - line)
        for result in row:
            _draw_algebra(figure, left, bottom, result, colours)
            left += _width([result])
    bar = _add_axes(figure, width - BAR + 0.2, BOTTOM, 0.15, BLOCK * len(rows) - BOTTOM - TOP)
    figure.colorbar(ScalarMappable(**colours), bar, label="entry of A", ticks=[-1, 0, 1])
    return save_figure(figure, out, "toy-algebra")


def _fill_rows(results: Sequence[Result]) -> list[list[Result]]:
    """Put each result into the first row with room for its matrices."""
    rows: list[list[Result]] = []
    for result in results:
        room = (row for row in rows if _count([*row, result]) <= ROW)
        row = next(room, None)
        if row is None:
            rows.append([result])
        else:
            row.append(result)
    return rows


def _count(results: Sequence[Result]) -> int:
    return sum(result.problem.algebra.n for result in results)


def _width(results: Sequence[Result]) -> float:
    return _count(results) * (MATRIX + GAP) + len(results) * LEFT


def _draw_algebra(
    figure: Figure, left: float, bottom: float, result: Result, colours: dict[str, Any]
) -> None:
    """Draw the learned matrices of a result above the true ones; the corner is in inches."""
    problem = result.problem
    both = {"true": problem.truth, "learned": result.A}
    for level, (title, A) in enumerate(both.items()):
        height = bottom + BOTTOM + level * (MATRIX + GAP)
        for i, matrix in enumerate(A):
            axes = _add_axes(figure, left + i * (MATRIX + GAP), height, MATRIX, MATRIX)
            known = problem.determined.expand_as(matrix)
            axes.imshow(np.ma.masked_array(matrix.numpy(), ~known.numpy()), **colours)
            _label(axes, problem.algebra.labels, outer=(i == 0, level == 0))
            if i == 0:
                axes.set_ylabel(f"{title}\noutput", fontsize=8)
            if level == 0:
                axes.set_xlabel("input", fontsize=8)
            else:
                axes.set_title(f"$A_{i}$", fontsize=9, pad=3)
    figure.text(
        left / figure.get_figwidth(),
        (bottom + BLOCK - TITLE) / figure.get_figheight(),
        _title(result),
        fontsize=10,
    )


def _title(result: Result) -> str:
    text = f"{result.problem.name}, distance {result.distance:.0e}"
    return text + "; grey: not determined" if result.problem.pure else text


def _label(axes: Axes, labels: Sequence[str], outer: tuple[bool, bool]) -> None:
    """Write the basis elements at the left and lower edges of a block."""
    ticks, nothing = range(len(labels)), [""] * len(labels)
    crowded = len(labels) > 4
    axes.set_yticks(ticks, labels if outer[0] else nothing, fontsize=5 if crowded else 7)
    axes.set_xticks(
        ticks,
        labels if outer[1] else nothing,
        fontsize=5 if crowded else 7,
        rotation=90 if crowded else 0,
    )
    axes.tick_params(length=0, pad=2)


def _add_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes at a position in inches."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def _select(results: Sequence[Result], learns_filters: bool) -> list[Result]:
    return [result for result in results if result.problem.learns_filters == learns_filters]
