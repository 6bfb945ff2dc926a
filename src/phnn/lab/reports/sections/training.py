"""How the networks learned."""

from __future__ import annotations

from collections.abc import Iterator

from phnn.lab.reports import page
from phnn.lab.reports.curves import draw_curves, list_quantities, read_curve
from phnn.lab.reports.drawing import Picture
from phnn.lab.reports.page import Section
from phnn.lab.reports.results import Results


def show_learning(results: Results) -> Section:
    """Returns the section with the learning curves, also of runs that have not ended."""
    pictures = list(draw_learning(results))
    missing = "No run has finished an epoch, or the folders of the runs are not here."
    parts = [page.gallery(pictures) if pictures else page.note(missing)]
    return Section("learning", "Learning curves", parts)


def draw_learning(results: Results) -> Iterator[Picture]:
    """Yields the learning curves of each family, one picture for each quantity."""
    for family in dict.fromkeys(run.family for run in results.runs):
        runs = [run for run in results.runs if run.family == family]
        curves = [(run.variant, read_curve(run.folder)) for run in runs]
        for quantity in list_quantities([curve for _, curve in curves]):
            score = next((s for s in results.task.scores if s.name == quantity), None)
            name = score.label if score else quantity
            yield Picture(
                f"learning-{family}-{quantity}",
                draw_curves(curves, quantity, score),
                f"{family}: {name} after each epoch, a line for each run.",
            )
