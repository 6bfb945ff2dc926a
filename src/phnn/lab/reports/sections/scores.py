"""What a comparison found: the table and its pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from phnn.lab.reports import page
from phnn.lab.reports.bubbles import draw_bubbles
from phnn.lab.reports.drawing import Picture
from phnn.lab.reports.page import Section
from phnn.lab.reports.radar import draw_radar
from phnn.lab.reports.results import Results
from phnn.lab.reports.sizes import draw_sizes
from phnn.lab.reports.successes import Contest, draw_successes
from phnn.lab.reports.tables import explain_columns, tabulate
from phnn.lab.tasks.sound import SOUND


def show_table(results: Results) -> Section:
    """Returns the section with the table."""
    head, *rows = tabulate(results.lines)
    explained = page.paragraph(explain_columns(results.task, results.power))
    parts = [page.table(head, rows), page.fold("What the columns mean", explained)]
    return Section("results", "Results", parts)


def show_scores(results: Results) -> Section:
    """Returns the section with the pictures of the table."""
    pictures = list(draw_scores(results))
    parts = [page.gallery(pictures) if pictures else page.note("No run has ended yet.")]
    return Section("scores", "Scores and sizes", parts)


def draw_scores(results: Results) -> Iterator[Picture]:
    """Yields the pictures of the table; none while no run has ended."""
    known = [line for line in results.lines if line.seeds]
    score = results.task.primary.label
    if len(known) > 1:  # one bubble alone says nothing
        yield Picture(
            "bubble",
            draw_bubbles(f"Test {score} against parameters", results.lines),
            f"The test {score} of each variant against its parameters. The area of a bubble is in "
            "proportion to the parameters; bars are the deviation over the seeds.",
        )
    for family in dict.fromkeys(line.family for line in known):
        lines = [line for line in results.lines if line.family == family]
        caption = f"{family}: parameters, and the size of the saved network."
        yield Picture(f"sizes-{family}", draw_sizes(lines, family), caption)
        if results.task == SOUND and sum(line.family == family for line in known) > 1:
            yield Picture(
                f"radar-{family}",
                draw_radar(lines, family),
                f"{family}: the larger the area, the better. Few parameters and short times are "
                "measured by the smallest of all, divided by the variant's own.",
            )
    contests = gather_contests(results)
    if len(contests) > 1:
        yield Picture(
            "successes",
            draw_successes(contests, "How often each variant is the best"),
            f"Of {len(contests)} contests, of all variants of a recipe with one seed, the part "
            f"in which each has the best {score}. Those who share the best share the success.",
        )


def gather_contests(results: Results) -> list[Contest]:
    """Returns the primary scores of all variants of a family that were trained with one seed.

    A seed with which some variant of the family has not ended is no contest. Scores are negative
    where lower is better, so that the highest is the best.

    Args:
        results: Of a comparison.
    """
    score = results.task.primary
    contests: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for run in results.runs:
        if run.result is not None:
            value = run.result[f"test_{score.name}"]
            contests[run.family, run.seed][run.variant] = value if score.higher else -value
    return [
        contest
        for (family, _), contest in contests.items()
        if len(contest) > 1
        and contest.keys() == {line.variant for line in results.lines if line.family == family}
    ]
