"""A curve of what a model keeps against its size and its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phnn.conversion import Point
from phnn.lab.drawing import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#888888"


def draw_tradeoff(points: Sequence[Point], *, title: str = "", score: str = "score") -> Figure:
    """Draw scores against parameters and against multiplications, with the chosen point.

    Without scores the distance of the outputs is drawn: their squared difference on held-out data,
    relative to their variation.

    Args:
        points: `model.phnn_report.curve`, or what `phnn.conversion.tradeoff` yields.
        title: The title of the figure.
        score: What the score is called.
    """
    from matplotlib.figure import Figure

    points = sorted(points, key=lambda point: point.parameters)
    has_scores = bool(points) and all(point.score is not None for point in points)
    heights = [point.score if has_scores else point.distance for point in points]
    if not points or any(height is None for height in heights):
        raise ValueError("there is nothing to draw: the points have neither scores nor distances")
    has_work = all(point.multiplications is not None for point in points)
    figure = Figure(figsize=(10.4 if has_work else 5.6, 4.2), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, 2 if has_work else 1, squeeze=False, sharey=True)[0]
    values = [height for height in heights if height is not None]
    sizes = [float(point.parameters) for point in points]
    _draw(panels[0], points, sizes, values, "parameters", is_named=True)
    if has_work:
        work = [point.multiplications or 0.0 for point in points]
        _draw(panels[1], points, work, values, "multiplications for one sample", is_named=False)
    panels[0].set_ylabel(score if has_scores else "distance of the outputs")
    return figure


def _draw(
    panel: Axes,
    points: Sequence[Point],
    sizes: Sequence[float],
    values: Sequence[float],
    label: str,
    *,
    is_named: bool,
) -> None:
    from matplotlib.ticker import EngFormatter

    colour = COLOURS[2]
    ordered = sorted(zip(sizes, values, points, strict=True), key=lambda each: each[0])
    rises = ordered[-1][1] >= ordered[0][1]
    shift = (6, -13) if rises else (7, 5)  # to the side of the curve that is free
    panel.plot([x for x, *_ in ordered], [y for _, y, _ in ordered], color=colour, zorder=2)
    for x, y, point in ordered:
        is_original = point.budget >= 1
        fill = "white" if is_original else COLOURS[1] if point.chosen else colour
        size = 110 if point.chosen else 36
        panel.scatter(x, y, s=size, color=fill, edgecolors=colour, zorder=3)
        text = "original" if is_original else f"{point.budget:.3g}" + " chosen" * point.chosen
        if is_named or is_original or point.chosen:
            panel.annotate(
                text, (x, y), shift, textcoords="offset points", fontsize="small", color=GREY
            )
    panel.set_xlabel(label)
    panel.set_xlim(0, 1.22 * max(sizes))
    panel.margins(y=0.12)
    panel.xaxis.set_major_formatter(EngFormatter())
    panel.grid(alpha=0.3)
