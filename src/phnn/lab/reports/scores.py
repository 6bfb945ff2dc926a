"""The scores in a report, as a table and as figures."""

from __future__ import annotations

from collections.abc import Iterator

from phnn.lab import pages
from phnn.lab.drawing import Picture
from phnn.lab.pages import Section
from phnn.lab.reports.bubbles import draw_bubbles
from phnn.lab.reports.results import Results
from phnn.lab.reports.sizes import draw_sizes
from phnn.lab.reports.successes import draw_successes, gather_contests
from phnn.lab.reports.tables import explain_columns, tabulate


def show_table(results: Results) -> Section:
    """Return the section with the table."""
    head, *rows = tabulate(results.summaries, with_recipe=False)
    explained = pages.paragraph(explain_columns(results.task, results.power))
    elements = [pages.table(head, rows), pages.fold("What the columns mean", explained)]
    return Section("results", "Results", elements)


def show_scores(results: Results) -> Section:
    """Return the section with the figures of the table."""
    pictures = list(draw_scores(results))
    element = pages.gallery(pictures) if pictures else pages.note("No run has ended yet.")
    return Section("scores", "Scores and sizes", [element])


def draw_scores(results: Results) -> Iterator[Picture]:
    """Yield the figures of the table; none before a run has ended."""
    known = [summary for summary in results.summaries if summary.seeds]
    score = results.task.primary
    if len(known) > 1:  # one bubble alone compares nothing
        yield Picture(
            "bubble",
            draw_bubbles(f"Test {score.label} against parameters", results.summaries),
            f"The test {score.label} of each variant against its parameters. The area of a bubble "
            "is proportional to the parameters, bars show the standard deviation over the seeds.",
        )
    for family in dict.fromkeys(summary.family for summary in known):
        summaries = [summary for summary in results.summaries if summary.family == family]
        caption = f"{family}: parameters, and the size of the saved network."
        yield Picture(f"sizes-{family}", draw_sizes(summaries, family), caption)
    contests = gather_contests(results.runs, score)
    if len(contests) > 1:
        yield Picture(
            "successes",
            draw_successes(contests, "How often each variant is the best"),
            f"There are {len(contests)} contests, one for each recipe and seed. The bars show how "
            f"often each variant has the best {score.label}; equally good winners share a win.",
        )
