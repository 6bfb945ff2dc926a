"""Each number of the paper beside ours, with its deviation and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from phnn.lab.paper.sizes import Row
from phnn.lab.reports.printed import parse_spread
from phnn.lab.reports.summaries import Spread, Summary
from phnn.lab.tasks import Score

AGREES, DIFFERS, NOT_RUN, RAN = "agrees", "differs", "not run", "ran (tiny)"
DEVIATIONS = 2.0  # a difference of this many standard deviations is still agreement
# deviations that are assumed where none is printed or known: percent points, and scores up to 1
UNKNOWN_PERCENT, UNKNOWN_SCORE = 0.5, 0.02
TIMES = 0.25  # relative difference of times, each divided by the baseline's, that is agreement
RULE = (
    f"A score agrees when it differs by at most {DEVIATIONS:g} standard deviations, those of the "
    f"paper and ours together; where one is not known, {UNKNOWN_PERCENT:g} percent points or "
    f"{UNKNOWN_SCORE:g} of a score up to 1 are assumed. A size agrees within one unit of its last "
    "printed digit. Times are divided by those of the baseline of the table, since machines "
    f"differ, and agree within {100 * TIMES:.0f} %."
)


class Verdict(NamedTuple):
    """One number of the paper.

    Attributes:
        table: The table, or the recipe.
        row: The network.
        column: What the number is.
        paper: What the paper prints.
        ours: What came out; empty before a run has ended.
        deviation: Ours minus the paper's; empty where there is nothing to compare.
        verdict: AGREES, DIFFERS, NOT_RUN, or RAN for a tiny run, which says nothing.
    """

    table: str
    row: str
    column: str
    paper: str
    ours: str
    deviation: str
    verdict: str


def judge_sizes(rows: Iterable[Row]) -> Iterator[Verdict]:
    """Yield a verdict for each printed size and percentage; networks need not be trained."""
    for row in rows:
        name = row.model + ("" if row.n is None or " " in row.model else f" n={row.n}")
        millions = row.params_with_biases / 1e6
        cells: list[tuple[str, float | None, str | None, bool | None, str]] = [
            ("parameters (M)", millions, row.paper_params, row.agrees, ".3f"),
            ("reduction (%)", row.reduction, row.paper_reduction, row.reduction_agrees, ".1f"),
            ("storage (MiB)", row.storage, row.paper_storage, row.storage_agrees, ".1f"),
            (
                "reduction of storage (%)",
                row.storage_reduction,
                row.paper_storage_reduction,
                row.storage_reduction_agrees,
                ".1f",
            ),
        ]
        for column, ours, paper, agrees, digits in cells:
            if ours is not None and paper is not None:
                yield Verdict(
                    row.table,
                    name,
                    column,
                    paper,
                    format(ours, digits),
                    format(ours - float(paper), f"+{digits}"),
                    AGREES if agrees else DIFFERS,
                )


def judge_scores(summaries: Sequence[Summary], *, tiny: bool = False) -> Iterator[Verdict]:
    """Yield a verdict for each printed score and time of a comparison.

    Args:
        summaries: Our table, with the paper's numbers in it.
        tiny: Whether the runs were tiny: their numbers are not shown.
    """
    for summary in summaries:
        for score in summary.task.scores:
            if score.name in summary.paper:
                yield _judge_score(summary, score, tiny)
        for key in ("train", "val", "test"):
            baseline = _find_baseline(summaries, summary.family)
            if key in summary.paper and baseline is not None and baseline is not summary:
                yield _judge_time(summary, baseline, key, tiny)


def judge_score(ours: Spread, paper: Spread, unknown: float) -> bool:
    """Return whether two scores agree.

    Args:
        ours: Our mean and deviation.
        paper: The paper's.
        unknown: The deviation that is assumed where there is none.

    Example:
        >>> judge_score(Spread(89.0, 0.3), Spread(89.5, 0.3), 0.5)
        True
        >>> judge_score(Spread(88.0, 0.3), Spread(89.5, 0.3), 0.5)
        False
    """
    spreads = [unknown if each.std is None else each.std for each in (ours, paper)]
    return abs(ours.mean - paper.mean) <= DEVIATIONS * math.hypot(*spreads)


def _judge_score(summary: Summary, score: Score, tiny: bool) -> Verdict:
    text = summary.paper[score.name]
    head = (summary.family, summary.variant, f"{score.label} {score.unit}".rstrip(), text)
    ours = summary.scores.get(score.name)
    if ours is None or tiny:
        return Verdict(*head, "", "", RAN if ours is not None else NOT_RUN)
    paper = parse_spread(text)
    unknown = UNKNOWN_PERCENT if score.unit == "%" else UNKNOWN_SCORE
    shown = f"{ours.mean:.3f}" + ("" if ours.std is None else f" ± {ours.std:.3f}")
    verdict = AGREES if judge_score(ours, paper, unknown) else DIFFERS
    return Verdict(*head, shown, f"{ours.mean - paper.mean:+.3f}", verdict)


def _judge_time(summary: Summary, baseline: Summary, key: str, tiny: bool) -> Verdict:
    paper, whole = (parse_spread(each.paper[key]).mean for each in (summary, baseline))
    expected = paper / whole
    column = f"{key} time / {baseline.variant}"
    head = (summary.family, summary.variant, column, f"{expected:.2f}")
    mine, theirs = _time(summary, key), _time(baseline, key)
    if mine is None or not theirs or tiny:
        return Verdict(*head, "", "", RAN if mine is not None else NOT_RUN)
    ratio = mine / theirs
    verdict = AGREES if abs(ratio - expected) <= TIMES * expected else DIFFERS
    return Verdict(*head, f"{ratio:.2f}", f"{ratio - expected:+.2f}", verdict)


def _find_baseline(summaries: Sequence[Summary], family: str) -> Summary | None:
    members = [summary for summary in summaries if summary.family == family]
    return next((each for each in members if each.variant == "real"), None)


def _time(summary: Summary, key: str) -> float | None:
    times = {
        "train": summary.train_seconds_per_100,
        "val": summary.val_seconds,
        "test": summary.test_seconds,
    }
    return times[key]
