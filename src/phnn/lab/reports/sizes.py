"""Bar charts of the parameters and storage of networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phnn.lab.drawing import assign_colours
from phnn.lab.reports.lines import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_sizes(lines: Sequence[Line], title: str) -> Figure:
    """Draw the number of parameters and the size of the saved file of each variant.

    Args:
        lines: The lines of one family. Lines without a result are left out, one at least must have
            a result.
        title: The title of the figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    known = [line for line in lines if line.parameters is not None]
    names = [line.variant for line in known]
    colours = [assign_colours(line.variant for line in lines)[name] for name in names]
    figure = Figure(figsize=(6.4, 1.3 + 0.36 * len(known)), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    left, right = figure.subplots(1, 2, sharey=True)
    counts = left.barh(names, [line.parameters or 0 for line in known], color=colours)
    shares = [line.parameters_percent for line in known]
    left.bar_label(counts, ["" if p is None else f"{p:.0f} %" for p in shares], padding=3)
    left.set_xlabel("parameters")
    left.xaxis.set_major_formatter(EngFormatter())
    left.invert_yaxis()
    files = right.barh(names, [line.storage_mb or 0 for line in known], color=colours)
    right.bar_label(files, [f"{line.storage_mb:.2f}" for line in known], padding=3)
    right.set_xlabel("saved file (MB)")
    for panel in (left, right):
        panel.margins(x=0.35)
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
    return figure
