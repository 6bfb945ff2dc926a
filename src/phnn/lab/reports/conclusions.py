"""What came out, in two sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phnn._screen import format_time
from phnn.lab.reports.results import Results
from phnn.lab.reports.summaries import Summary
from phnn.lab.tasks import Score


def conclude(results: Results) -> str:
    """Return two sentences that say what came out.

    Args:
        results: The runs, and the table that compares them.
    """
    known = [summary for summary in results.summaries if summary.score is not None]
    if not known:
        failed = sum(run.status == "failed" for run in results.runs)
        if failed == len(results.runs):
            return f"All {failed} runs failed. The section Runs says why."
        return f"No run has ended yet. {len(results.runs) - failed} are waiting, {failed} failed."
    score = results.task.primary
    if len(results.summaries) == 1:
        return _conclude_one(known[0], results, score)
    families = list(dict.fromkeys(summary.family for summary in known))
    groups = [[summary for summary in known if summary.family == family] for family in families]
    sentences = _compare(groups[0], score) if len(groups) == 1 else _compare_all(groups, score)
    missing = sum(run.result is None for run in results.runs)
    rest = f" {missing} of {len(results.runs)} runs have no result." if missing else ""
    return " ".join(sentences) + rest


def _conclude_one(summary: Summary, results: Results, score: Score) -> str:
    """Return the sentences about one variant."""
    ended = [run.result for run in results.runs if run.result is not None]
    seconds = sum(result["train_seconds"] for result in ended)
    epochs = ended[0].get("epochs")
    after = f" after {epochs} epochs" if epochs else ""
    return (
        f"{summary.variant} reaches {_show(summary, score)} on the test split of {summary.family}"
        f"{after}. It has {summary.parameters:,} parameters, its file takes "
        f"{summary.storage_mib:.2f} MiB, and training took {format_time(seconds)}."
    )


def _compare(summaries: Sequence[Summary], score: Score) -> list[str]:
    """Return the sentences about the variants of one recipe."""
    best = _find_best(summaries, score)
    smallest = min(summaries, key=lambda summary: summary.parameters or 0)
    first = f"The best network is {best.variant}, with {_show(best, score)} on the test split."
    if smallest is best:
        share = _share(smallest)
        return [first, f"It is also the smallest, with {smallest.parameters:,} parameters{share}."]
    return [
        first,
        f"The smallest, {smallest.variant}, comes to {_show(smallest, score)}, with "
        f"{smallest.parameters:,} parameters{_share(smallest) or _versus(smallest, best)}.",
    ]


def _compare_all(groups: Sequence[Sequence[Summary]], score: Score) -> list[str]:
    """Return the sentences about the variants of several recipes."""
    wins = Counter(_find_best(group, score).variant for group in groups)
    ranked = ", ".join(f"{variant} in {count}" for variant, count in wins.most_common())
    best = _find_best([summary for group in groups for summary in group], score)
    return [
        f"The best network of each of {len(groups)} recipes is {ranked}.",
        f"The best of all is {best.variant} of {best.family}, with {_show(best, score)} on the "
        "test split.",
    ]


def _find_best(summaries: Sequence[Summary], score: Score) -> Summary:
    choose = max if score.higher else min
    return choose(summaries, key=_read_score)


def _read_score(summary: Summary) -> float:
    assert summary.score is not None  # summaries without a result are left out
    return summary.score.mean


def _show(summary: Summary, score: Score) -> str:
    article = "an" if score.label[0].lower() in "aeiof" else "a"
    value = f"{_read_score(summary):.{score.digits}f} {score.unit}".rstrip()
    return f"{article} {score.label} of {value}"


def _share(summary: Summary) -> str:
    percent = summary.parameters_percent
    return "" if percent in (None, 100) else f", {percent:.0f} % of the real network's"


def _versus(summary: Summary, other: Summary) -> str:
    share = 100 * (summary.parameters or 0) / (other.parameters or 1)
    return f", {share:.0f} % of those of {other.variant}"
