"""Bar charts of the parameters and storage of networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phnn.lab.drawing import assign_colours
from phnn.lab.reports.summaries import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_sizes(summaries: Sequence[Summary], title: str) -> Figure:
    """Draw the number of parameters and the size of the saved file of each variant.

    Args:
        summaries: One family. Variants without a result are left out; at least one must have one.
        title: The title of the figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    known = [summary for summary in summaries if summary.parameters is not None]
    names = [summary.variant for summary in known]
    colours = [assign_colours(summary.variant for summary in summaries)[name] for name in names]
    figure = Figure(figsize=(6.4, 1.3 + 0.36 * len(known)), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    left, right = figure.subplots(1, 2, sharey=True)
    counts = left.barh(names, [summary.parameters or 0 for summary in known], color=colours)
    shares = [summary.parameters_percent for summary in known]
    left.bar_label(counts, ["" if p is None else f"{p:.0f} %" for p in shares], padding=3)
    left.set_xlabel("parameters")
    left.xaxis.set_major_formatter(EngFormatter())
    left.invert_yaxis()
    files = right.barh(names, [summary.storage_mib or 0 for summary in known], color=colours)
    right.bar_label(files, [f"{summary.storage_mib:.2f}" for summary in known], padding=3)
    right.set_xlabel("saved file (MiB)")
    for panel in (left, right):
        panel.margins(x=0.35)
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
    return figure
