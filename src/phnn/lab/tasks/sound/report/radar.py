"""Scores, size and speed of networks in one figure, a radar."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from phnn.lab.drawing import assign_colours
from phnn.lab.tasks.task import Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# labels stand beside the circle: those at its left end there, those at its right begin there
SIDES: dict[int, Literal["left", "center", "right"]] = {-1: "right", 0: "center", 1: "left"}
COSTS = {
    "fewness of\nparameters": "parameters",
    "speed of\ntraining": "train_seconds_per_100",
    "speed of\ntesting": "test_seconds",
}

Results = Sequence[Mapping[str, Any]]


def rate(variants: Sequence[Results], scores: Sequence[Score]) -> dict[str, list[float]]:
    """Return how good each variant is, between 0 and 1, for each axis of the radar.

    A score that should be high is itself, one that should be low is 1 minus itself. Parameters and
    times become the smallest of all divided by the variant's own.

    Args:
        variants: The results of the runs of each variant.
        scores: Scores between 0 and 1.
    """
    axes: dict[str, list[float]] = {}
    for score in scores:
        means = [_mean(results, f"test_{score.name}") or 0.0 for results in variants]
        name = score.label if score.higher else f"1 − {score.label}"
        axes[name] = [min(1.0, max(0.0, x if score.higher else 1 - x)) for x in means]
    for name, key in COSTS.items():
        known = [value for value in (_mean(results, key) for results in variants) if value]
        if len(known) == len(variants):  # an axis that some variants lack compares nothing
            axes[name] = [min(known) / value for value in known]
    return axes


def _mean(results: Results, key: str) -> float | None:
    values = [result[key] for result in results if result.get(key) is not None]
    return statistics.mean(values) if values else None


def draw_radar(variants: Mapping[str, Results], scores: Sequence[Score], title: str) -> Figure:
    """Draw a polygon for each variant, as the paper's Fig. 8: the larger its area, the better.

    Args:
        variants: The results of the runs of each variant, by its name. Variants without results
            are left out, but keep their colours.
        scores: Scores between 0 and 1.
        title: The title of the figure.
    """
    from matplotlib.figure import Figure

    known = {name: results for name, results in variants.items() if results}
    axes = rate(list(known.values()), scores)
    angles = [2 * math.pi * i / len(axes) for i in range(len(axes))]
    colours = assign_colours(variants)
    figure = Figure(figsize=(5.6, 5.6), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    panel = figure.subplots(subplot_kw={"projection": "polar"})
    for name, *values in zip(known, *axes.values(), strict=True):
        panel.plot([*angles, 0], [*values, values[0]], color=colours[name], label=name)
        panel.fill(angles, values, color=colours[name], alpha=0.08)
    panel.set_xticks(angles, list(axes))
    panel.tick_params(axis="x", pad=8)
    for label, angle in zip(panel.get_xticklabels(), angles, strict=True):
        label.set_horizontalalignment(SIDES[round(math.cos(angle))])
    panel.set_ylim(0, 1)
    panel.set_yticks([0.25, 0.5, 0.75, 1], ["", "0.5", "", "1"], fontsize="small")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
