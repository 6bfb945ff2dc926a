"""The report of a comparison or a run: one HTML file that opens anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phnn.io import replacing
from phnn.lab.recipe import Tree
from phnn.lab.reports import page
from phnn.lab.reports.drawing import Say
from phnn.lab.reports.evaluation import DataMissingError, Shelf, evaluate_runs
from phnn.lab.reports.page import Section, render_page
from phnn.lab.reports.results import Results, read_results
from phnn.lab.reports.sections.algebra import show_algebras
from phnn.lab.reports.sections.attention import show_attention
from phnn.lab.reports.sections.classes import show_classes
from phnn.lab.reports.sections.events import show_events
from phnn.lab.reports.sections.origin import show_origin, show_runs
from phnn.lab.reports.sections.scores import show_scores, show_table
from phnn.lab.reports.sections.training import show_learning
from phnn.lab.runs import MODEL, Run
from phnn.lab.tasks import Task
from phnn.lab.tasks.sound import SOUND

REPORT = "report.html"


def write_report(
    folder: Path, out: Path | None = None, overrides: Tree | None = None, say: Say | None = None
) -> Path:
    """Writes the report of a comparison or a run, whatever part of it has ended.

    What networks answer for the test part of their data is computed once and kept in the folders of
    the runs.

    Args:
        folder: Of the results of `phnn compare`, or of a run.
        out: The file; report.html in the folder by default.
        overrides: Parts of the recipes to replace, such as where the data are.
        say: Is told what takes a while.

    Returns:
        The file.
    """
    results = read_results(folder)
    sections = _make_sections(results, Shelf(overrides), say or (lambda text: None))
    ended = sum(run.result is not None for run in results.runs)
    about = f"{results.name}: {ended} of {len(results.runs)} runs have ended."
    text = render_page(results.title, about, list(sections))
    out = folder / REPORT if out is None else out
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return out


def _make_sections(results: Results, shelf: Shelf, say: Say) -> Iterator[Section]:
    yield show_table(results)
    yield show_scores(results)
    yield show_learning(results)
    here = [run for run in results.representatives() if run.has_model]
    if here:
        yield from _show_answers(results.task, here, shelf, say)
    elif any(run.result is not None for run in results.runs):
        reason = f"Not shown: the folders of the runs hold no {MODEL}; train them again to see it."
        yield Section("missing", "What needs the networks", [page.note(reason)])
    algebras = show_algebras(here, say)
    if algebras is not None:
        yield algebras
    yield show_runs(results)
    yield show_origin(results)


def _show_answers(task: Task, runs: list[Run], shelf: Shelf, say: Say) -> Iterator[Section]:
    """Yields the sections that need the test part of the data, or why there are none."""
    try:
        if task == SOUND:
            say("listens to what the networks hear")
            yield show_events(runs, shelf)
            return
        evaluated = evaluate_runs(runs, shelf, say)
        yield show_classes(evaluated)
        say("looks where the networks look")
        yield show_attention(evaluated, shelf)
    except DataMissingError as error:
        yield Section("missing", "What needs the data", [page.note(f"Not shown: {error}.")])
