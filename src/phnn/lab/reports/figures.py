"""The paper's figures, drawn from our own runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phnn.lab.recipe import Tree
from phnn.lab.reports.drawing import Picture, Say, save_figure
from phnn.lab.reports.evaluation import DataMissingError, Shelf, evaluate_runs
from phnn.lab.reports.kronecker import draw_kronecker
from phnn.lab.reports.multiplication import draw_nested_tables, draw_tables
from phnn.lab.reports.results import Results, read_results
from phnn.lab.reports.sections.algebra import draw_learned
from phnn.lab.reports.sections.attention import draw_attention
from phnn.lab.reports.sections.classes import draw_classes
from phnn.lab.reports.sections.events import draw_events
from phnn.lab.reports.sections.scores import draw_scores
from phnn.lab.reports.sections.training import draw_learning
from phnn.lab.tasks.sound import SOUND


def draw_figures(
    folder: Path | None, out: Path, overrides: Tree | None = None, say: Say | None = None
) -> list[Path]:
    """Draws every figure for which there is something to draw.

    Args:
        folder: Of the results of `phnn compare`, or of a run; None for the figures that need none.
        out: Where the figures go.
        overrides: Parts of the recipes to replace, such as where the data are.
        say: Is told what takes a while, and what cannot be drawn.

    Returns:
        The files.
    """
    say = say or (lambda text: None)
    if folder is None:
        pictures = draw_rules()
    else:
        pictures = _draw_results(read_results(folder), Shelf(overrides), say)
    return [path for drawn in pictures for path in save_figure(drawn.figure, out, drawn.name)]


def draw_rules() -> Iterator[Picture]:
    """Yields the figures about algebras, for which nothing is trained."""
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


def _draw_results(results: Results, shelf: Shelf, say: Say) -> Iterator[Picture]:
    yield from draw_scores(results)
    yield from draw_learning(results)
    here = [run for run in results.representatives() if run.has_model]
    yield from draw_learned(here)
    try:
        if results.task == SOUND:
            yield from draw_events(here, shelf)
        else:
            evaluated = evaluate_runs(here, shelf, say)
            yield from draw_classes(evaluated)
            yield from draw_attention(evaluated, shelf)
    except DataMissingError as error:
        say(f"what needs the data is not drawn: {error}")
