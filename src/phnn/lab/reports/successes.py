"""How often each variant is the best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from phnn.lab.reports.drawing import assign_colours

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Contest = Mapping[str, float]  # the score of each variant in one contest; higher is better


def count_successes(contests: Sequence[Contest]) -> dict[str, float]:
    """Returns how many contests each variant wins; the best share a tie.

    Args:
        contests: The scores of the variants that were trained alike, with one seed.

    Example:
        >>> count_successes([{"real": 0.9, "n=2": 0.9, "n=4": 0.8}, {"real": 0.7, "n=2": 0.8}])
        {'real': 0.5, 'n=2': 1.5, 'n=4': 0.0}
    """
    wins: dict[str, float] = defaultdict(float)
    for contest in contests:
        best = max(contest.values())
        winners = sum(score == best for score in contest.values())
        for variant, score in contest.items():
            wins[variant] += (score == best) / winners
    return dict(wins)


def draw_successes(contests: Sequence[Contest], title: str) -> Figure:
    """Draws the part of the contests that each variant wins, as the paper's bars.

    Args:
        contests: As for `count_successes`, at least one.
        title: Of the figure.
    """
    from matplotlib.figure import Figure

    wins = count_successes(contests)
    colours = assign_colours(wins)
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    panel = figure.subplots()
    shares = [100 * count / len(contests) for count in wins.values()]
    bars = panel.bar(list(wins), shares, color=list(colours.values()))
    panel.bar_label(bars, [f"{count:g}" for count in wins.values()], padding=2)
    panel.set_title(title, fontsize="medium")
    panel.set_xlabel(f"numbers above the bars: best of {len(contests)} contests")
    panel.set_ylabel("successes (%)")
    panel.margins(y=0.15)
    panel.grid(axis="y", alpha=0.3)
    panel.set_axisbelow(True)
    return figure
