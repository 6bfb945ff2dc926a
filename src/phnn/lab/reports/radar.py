"""Scores, sizes and times of a comparison in one picture, a radar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from phnn.lab.reports.drawing import assign_colours
from phnn.lab.reports.lines import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Names stand beside the circle, not on it: at its left they end there, at its right they begin.
SIDES: dict[int, Literal["left", "center", "right"]] = {-1: "right", 0: "center", 1: "left"}


def rate(lines: Sequence[Line]) -> dict[str, list[float]]:
    """Returns what is good about each line, between 0 and 1, by the name of the axis.

    A score that should be high stands for itself, one that should be low for what it lacks to 1;
    parameters and times are the smallest of all, divided by the line's own.

    Args:
        lines: With results, of one task whose scores lie between 0 and 1.
    """
    axes: dict[str, list[float]] = {}
    for score in lines[0].task.scores:
        means = [line.scores[score.name].mean / score.scale for line in lines]
        name = score.label if score.higher else f"1 − {score.label}"
        axes[name] = [min(1.0, max(0.0, x if score.higher else 1 - x)) for x in means]
    costs: dict[str, Sequence[float | None]] = {
        "fewness of\nparameters": [line.parameters for line in lines],
        "speed of\ntraining": [line.train_seconds_per_100 for line in lines],
        "speed of\ntesting": [line.test_seconds for line in lines],
    }
    for name, values in costs.items():
        known = [value for value in values if value]
        if len(known) == len(lines):  # an axis that some lines lack says nothing
            axes[name] = [min(known) / value for value in known]
    return axes


def draw_radar(lines: Sequence[Line], title: str) -> Figure:
    """Draws a polygon for each line, as the paper's Fig. 8: the larger its area, the better.

    Args:
        lines: Of one family; those without a result are left out, one or more must have one.
        title: Of the figure.
    """
    from matplotlib.figure import Figure

    known = [line for line in lines if line.scores]
    axes = rate(known)
    angles = [2 * math.pi * i / len(axes) for i in range(len(axes))]
    colours = assign_colours(line.variant for line in lines)
    figure = Figure(figsize=(5.6, 5.6), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    panel = figure.subplots(subplot_kw={"projection": "polar"})
    for line, *values in zip(known, *axes.values(), strict=True):
        colour = colours[line.variant]
        panel.plot([*angles, 0], [*values, values[0]], color=colour, label=line.variant)
        panel.fill(angles, values, color=colour, alpha=0.08)
    panel.set_xticks(angles, list(axes))
    panel.tick_params(axis="x", pad=8)
    for label, angle in zip(panel.get_xticklabels(), angles, strict=True):
        label.set_horizontalalignment(SIDES[round(math.cos(angle))])
    panel.set_ylim(0, 1)
    panel.set_yticks([0.25, 0.5, 0.75, 1], ["", "0.5", "", "1"], fontsize="small")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
