"""The figure files that `phnn figures` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phnn.lab.drawing import Picture, save_figure
from phnn.lab.recipe import Tree
from phnn.lab.reports.algebras import draw_learned
from phnn.lab.reports.curves import draw_families
from phnn.lab.reports.kronecker import draw_kronecker
from phnn.lab.reports.loader import CachingRunLoader
from phnn.lab.reports.multiplication import draw_nested_tables, draw_tables
from phnn.lab.reports.results import Results, read_results
from phnn.lab.reports.scores import draw_scores
from phnn.lab.reports.study import draw_study, read_study
from phnn.lab.tasks.report import DataMissingError, Say, find_trained
from phnn.lab.tasks.task import resolve
from phnn.lab.tuning import STUDY


def draw_figures(
    folder: Path | None, out: Path, overrides: Tree | None = None, say: Say | None = None
) -> list[Path]:
    """Draw every figure for which there are results.

    Args:
        folder: The folder of a comparison, a run or a study; None for the figures that need no run.
        out: The folder of the figures.
        overrides: Parts of the recipes to replace, such as the folder of the data.
        say: Called with a message before each slow step, and for each missing figure.

    Returns:
        The paths of the files.
    """
    say = say or (lambda text: None)
    if folder is None:
        pictures = _draw_rules()
    elif (folder / STUDY).is_file():
        pictures = draw_study(read_study(folder))
    else:
        pictures = _draw_results(read_results(folder), CachingRunLoader(overrides), say)
    return [path for drawn in pictures for path in save_figure(drawn.figure, out, drawn.name)]


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
