"""How often each variant is the best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from phnn.lab.drawing import assign_colours
from phnn.lab.runs import Run
from phnn.lab.tasks import Score
from phnn.lab.tasks.report import group_families

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Contest = Mapping[str, float]  # the score of each variant in one contest; higher is better


def gather_contests(runs: Sequence[Run], score: Score) -> list[Contest]:
    """Return the scores of all variants of a family that were trained with the same seed.

    A seed is left out until all variants of its family have ended.

    Args:
        runs: The runs of a comparison.
        score: The score to compare. It changes its sign where lower is better.
    """
    contests: list[Contest] = []
    for members in group_families(runs).values():
        variants = {run.variant for run in members}
        for seed in dict.fromkeys(run.seed for run in members):
            contest = {
                run.variant: run.result[f"test_{score.name}"] * (1 if score.higher else -1)
                for run in members
                if run.seed == seed and run.result is not None
            }
            if len(contest) > 1 and contest.keys() == variants:
                contests.append(contest)
    return contests


def count_successes(contests: Sequence[Contest]) -> dict[str, float]:
    """Return how many contests each variant wins; equally good winners share a win.

    Args:
        contests: In each, the scores of variants that were trained with the same seed.

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
    """Draw the percentage of the contests that each variant wins, as the paper does.

    Args:
        contests: One contest at least, see `count_successes`.
        title: The title of the figure.
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
