"""Scores against parameters as in the paper: a bubble is as large as its standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phnn.lab.drawing import assign_colours
from phnn.lab.reports.summaries import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP"
# in this order, a variant has the colour that it has in the other figures of the paper's tables
VARIANTS = ("real", "complex", "quaternion", "n=2", "n=3", "n=4")
SMALLEST = 30.0  # area of a bubble without deviation, in square points
AREA = 700.0  # of the bubble with the largest deviation
FLOOR = 5.0  # a score this far below the real network would squeeze all others: the paper omits it


def split_family(family: str) -> tuple[str, str]:
    """Return the network and the data set of a recipe that is called NETWORK-DATASET.

    Example:
        >>> split_family("vgg16-cifar10"), split_family("mine")
        (('vgg16', 'cifar10'), ('mine', ''))
    """
    network, _, dataset = family.rpartition("-")
    return (network, dataset) if network else (family, "")


def find_datasets(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Return the variants that have deviations, by data set; only of several networks."""
    found: dict[str, list[Summary]] = {}
    for summary in summaries:
        if summary.score is not None and summary.score.std is not None and summary.parameters:
            found.setdefault(split_family(summary.family)[1], []).append(summary)
    return {
        dataset: members
        for dataset, members in found.items()
        if dataset and len({summary.family for summary in members}) > 1
    }


def draw_deviations(title: str, summaries: Sequence[Summary]) -> Figure:
    """Draw scores against parameters, all networks in one panel, as the paper's figure.

    The area of a bubble is proportional to the standard deviation over the runs. The shape is that
    of the network, the colour that of the variant. Variants far below all real networks are named
    instead of drawn, as in the paper.

    Args:
        title: The title of the figure.
        summaries: Variants of one data set, each with a deviation.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    score = summaries[0].task.primary
    networks = list(dict.fromkeys(split_family(summary.family)[0] for summary in summaries))
    colours = assign_colours([*VARIANTS, *(summary.variant for summary in summaries)])
    largest = max(_deviation(summary) for summary in summaries) or 1.0
    means = [summary.score.mean for summary in summaries if summary.score is not None]
    real = [s.score.mean for s in summaries if s.score is not None and s.variant == "real"]
    floor = min(real or means) - FLOOR
    figure = Figure(figsize=(7.4, 4.8), layout="constrained")
    panel = figure.subplots()
    omitted = []
    for summary in summaries:
        assert summary.score is not None
        network = split_family(summary.family)[0]
        if summary.score.mean < floor and score.higher and score.unit == "%":
            omitted.append(f"{network} {summary.variant} {summary.score.mean:.1f}")
            continue
        panel.scatter(
            summary.parameters or 0,
            summary.score.mean,
            s=SMALLEST + AREA * _deviation(summary) / largest,
            color=colours[summary.variant],
            marker=MARKERS[networks.index(network) % len(MARKERS)],
            alpha=0.65,
            edgecolors="white",
        )
    handles = [
        Line2D([], [], marker=MARKERS[i % len(MARKERS)], color="#777777", ls="", label=network)
        for i, network in enumerate(networks)
    ]
    variants = dict.fromkeys(summary.variant for summary in summaries)
    handles += [
        Line2D([], [], marker="o", color=colours[name], ls="", label=name) for name in variants
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    panel.set_title(title, fontsize="medium")
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(EngFormatter())
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel("parameters" + (f"\nnot drawn: {', '.join(omitted)}" if omitted else ""))
    panel.set_ylabel(f"test {score.label}" + (f" ({score.unit})" if score.unit else ""))
    panel.margins(0.08, 0.12)
    panel.grid(alpha=0.3)
    return figure


def _deviation(summary: Summary) -> float:
    return (summary.score.std or 0.0) if summary.score is not None else 0.0
