"""The figure files that `phnn figures` writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from phnn.io import check_output
from phnn.lab.drawing import Picture, save_figure
from phnn.lab.recipe import Tree
from phnn.lab.reports.algebras import draw_learned
from phnn.lab.reports.curves import draw_families
from phnn.lab.reports.deviations import draw_deviations, find_datasets
from phnn.lab.reports.kronecker import draw_kronecker
from phnn.lab.reports.loader import CachingRunLoader
from phnn.lab.reports.multiplication import draw_nested_tables, draw_tables
from phnn.lab.reports.printed import draw_paper
from phnn.lab.reports.results import Results, read_results
from phnn.lab.reports.scores import draw_scores
from phnn.lab.reports.study import draw_study, read_study
from phnn.lab.tasks.report import DataMissingError, Say, find_trained
from phnn.lab.tasks.task import resolve
from phnn.lab.tuning import STUDY


def draw_figures(
    folders: Sequence[Path],
    out: Path,
    overrides: Tree | None = None,
    say: Say | None = None,
    *,
    paper: bool = False,
) -> list[Path]:
    """Draw every figure for which there are results.

    Args:
        folders: The folders of comparisons, runs or studies; none for the figures that need no run.
            With several, each has its figures in a folder of its own, beside those of all together.
        out: The folder of the figures.
        overrides: Parts of the recipes to replace, such as the folder of the data.
        say: Called with a message before each slow step, and for each missing figure.
        paper: Whether to draw the paper's own numbers as well.

    Returns:
        The paths of the files.
    """
    check_output(out / "figure.png")
    say = say or (lambda text: None)
    written: list[Path] = []
    found: list[Results] = []
    for folder in folders:
        own = out / folder.resolve().name if len(folders) > 1 else out
        if (folder / STUDY).is_file():
            written += _save(draw_study(read_study(folder)), own)
            continue
        found.append(read_results(folder))
        written += _save(_draw_results(found[-1], CachingRunLoader(overrides), say), own)
    if paper:
        written += _save(draw_paper(), out)
    if len(found) > 1:
        written += _save(draw_together(found), out)
    if not folders and not paper:
        written += _save(_draw_rules(), out)
    return written


def _save(pictures: Iterator[Picture], out: Path) -> list[Path]:
    return [path for drawn in pictures for path in save_figure(drawn.figure, out, drawn.name)]


def draw_together(found: Sequence[Results]) -> Iterator[Picture]:
    """Yield the figures of several comparisons together, as the paper draws VGG and ResNet."""
    summaries = [summary for results in found for summary in results.summaries]
    for dataset, members in find_datasets(summaries).items():
        yield Picture(
            f"deviation-{dataset}",
            draw_deviations(f"{dataset}, all networks", members),
            "The area of a bubble is proportional to the standard deviation over the seeds.",
        )


def _draw_rules() -> Iterator[Picture]:
    """Yield the figures about algebras, which need no run."""
    yield Picture(
        "multiplication",
        draw_nested_tables(),
        "Multiplication of complex numbers, quaternions and octonions, each within the next.",
    )
    yield Picture("algebras", draw_tables(), "Multiplication tables, row times column.")
    yield Picture(
        "kronecker",
        draw_kronecker(),
        "The weight of a quaternion convolution as a sum of Kronecker products.",
    )


def _draw_results(results: Results, loader: CachingRunLoader, say: Say) -> Iterator[Picture]:
    yield from draw_scores(results)
    yield from draw_families(results)
    yield from draw_learned(find_trained(results.runs))
    try:
        if results.task.figures is not None:
            yield from resolve(results.task.figures)(results.runs, loader, say)
    except DataMissingError as error:
        say(f"figures that need the data are missing: {error}")
