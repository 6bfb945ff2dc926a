"""Bubble charts of scores against parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from phnn.lab.drawing import assign_colours
from phnn.lab.reports.summaries import Summary
from phnn.lab.reports.tables import format_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3  # of panels
LARGEST = 900.0  # area of the largest bubble in square points
LABEL_GAP = 0.085  # between two labels, as a share of the height of a panel


def draw_bubbles(title: str, summaries: Sequence[Summary]) -> Figure:
    """Draw scores against parameters, one panel for each recipe.

    The area of a bubble is proportional to the parameters. Bars show the standard deviation over
    the seeds.

    Args:
        title: The title of the figure.
        summaries: The table. Variants without a result are left out; at least one must have one.
    """
    from matplotlib.figure import Figure

    known = [summary for summary in summaries if summary.score is not None]
    families = list(dict.fromkeys(summary.family for summary in known))
    colours = assign_colours(summary.variant for summary in summaries)
    columns = min(COLUMNS, math.ceil(math.sqrt(len(families))))
    rows = math.ceil(len(families) / columns)
    figure = Figure(figsize=(1 + 5.4 * columns, 0.6 + 3.8 * rows), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, family in zip_longest(panels, families):
        members = [summary for summary in known if summary.family == family]
        if members:
            _draw_panel(panel, members, colours)
        else:
            panel.set_axis_off()
    return figure


def _draw_panel(panel: Axes, summaries: Sequence[Summary], colours: dict[str, str]) -> None:
    from matplotlib.ticker import EngFormatter

    largest = max(_locate(summary)[0] for summary in summaries)
    for summary in summaries:
        (x, y), colour = _locate(summary), colours[summary.variant]
        panel.errorbar(x, y, summary.score and summary.score.std, color=colour, capsize=4, zorder=2)
        panel.scatter(x, y, s=LARGEST * x / largest, color=colour, alpha=0.75, zorder=3)
    score = summaries[0].task.primary
    whole = summaries[0].conv_parameters is None
    panel.set_title(summaries[0].family, fontsize="medium")
    panel.set_xlabel("parameters" if whole else "parameters of the convolutions")
    panel.set_ylabel(f"test {score.label}" + (f" ({score.unit})" if score.unit else ""))
    panel.set_xlim(0, 1.15 * largest)
    panel.margins(y=0.2)
    panel.xaxis.set_major_formatter(EngFormatter())
    panel.grid(alpha=0.3)
    _label(panel, summaries, colours)


def _locate(summary: Summary) -> tuple[int, float]:
    """Return the parameters that distinguish the variants, and the score."""
    assert summary.score is not None  # summaries without a result are not drawn
    whole = summary.conv_parameters is None
    return (summary.parameters if whole else summary.conv_parameters) or 0, summary.score.mean


def _label(panel: Axes, summaries: Sequence[Summary], colours: dict[str, str]) -> None:
    """Write the names in a column at the right, each with a line to its bubble."""
    bottom, top = panel.get_ylim()
    score = summaries[0].task.primary
    ordered = sorted(summaries, key=lambda summary: _locate(summary)[1])
    wanted = [(_locate(summary)[1] - bottom) / (top - bottom) for summary in ordered]
    for summary, height in zip(ordered, spread_out(wanted, LABEL_GAP), strict=True):
        panel.annotate(
            f"{summary.variant}  {format_score(summary, score)} {score.unit}".rstrip(),
            xy=_locate(summary),
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),
                "color": colours[summary.variant],
                "alpha": 0.5,
            },
        )


def spread_out(positions: Sequence[float], gap: float) -> list[float]:
    """Move ascending positions within 0..1 so that neighbours are at least `gap` apart.

    Args:
        positions: The positions wanted.
        gap: The smallest distance. It is reduced when there are too many positions for it.

    Example:
        >>> spread_out([0.5, 0.5, 0.98], 0.25)
        [0.5, 0.75, 1.0]
    """
    gap = min(gap, 1 / max(1, len(positions) - 1))
    moved: list[float] = []
    for position in positions:
        moved.append(max(position, moved[-1] + gap) if moved else max(position, 0.0))
    ceiling = 1.0
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], ceiling)
        ceiling = moved[i] - gap
    return moved
