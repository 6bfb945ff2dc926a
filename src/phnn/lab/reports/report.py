"""The report of a comparison or a run: one HTML file that opens anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phnn.io.atomic import check_output, write_text
from phnn.lab import pages
from phnn.lab.pages import Section, render_page
from phnn.lab.recipe import Tree
from phnn.lab.reports.algebras import show_algebras
from phnn.lab.reports.conclusions import conclude
from phnn.lab.reports.curves import show_curves
from phnn.lab.reports.loader import CachingRunLoader
from phnn.lab.reports.provenance import show_provenance, show_runs
from phnn.lab.reports.results import Results, read_results
from phnn.lab.reports.scores import show_scores, show_table
from phnn.lab.reports.shipped import show_shipped
from phnn.lab.reports.study import read_study, show_study
from phnn.lab.runs import MODEL
from phnn.lab.tasks.report import DataMissingError, Say, find_trained
from phnn.lab.tasks.task import resolve
from phnn.lab.tuning import STUDY

REPORT = "report.html"


def write_report(
    folder: Path, out: Path | None = None, overrides: Tree | None = None, say: Say | None = None
) -> Path:
    """Write the report of a comparison, a run or a study, which need not have ended.

    The answers of the networks for their test data are computed once and kept in the folders of the
    runs.

    Args:
        folder: The folder of a comparison, a run or a study.
        out: The file; report.html in the folder by default.
        overrides: Parts of the recipes to replace, such as the folder of the data.
        say: Called with a message before each slow step.

    Returns:
        The path of the file.
    """
    out = folder / REPORT if out is None else out
    if (folder / STUDY).is_file():
        study = read_study(folder)
        check_output(out)  # before the figures
        count = len(study.ended)
        about = f"{study.content['study']}: {count} trials have finished."
        return _write(out, study.content["title"], about, list(show_study(study)))
    results = read_results(folder)
    check_output(out)
    sections = _make_sections(
        folder, results, CachingRunLoader(overrides), say or (lambda text: None)
    )
    return _write(out, results.title, conclude(results), list(sections))


def _write(out: Path, title: str, about: str, sections: list[Section]) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, render_page(title, about, sections))
    return out


def _make_sections(
    folder: Path, results: Results, loader: CachingRunLoader, say: Say
) -> Iterator[Section]:
    yield show_table(results)
    shipped = show_shipped(folder, results, loader, say)
    if shipped is not None:
        yield shipped
    yield show_scores(results)
    yield show_curves(results)
    trained = find_trained(results.runs)
    try:
        if results.task.sections is not None:
            yield from resolve(results.task.sections)(results.runs, loader, say)
    except DataMissingError as error:
        yield Section("missing", "Sections that need the data", [pages.note(f"Missing: {error}.")])
    if not trained and any(run.result is not None for run in results.runs):
        reason = f"Missing: there is no {MODEL} in the folders of the runs. Train them again."
        yield Section("missing", "Sections that need the networks", [pages.note(reason)])
    algebras = show_algebras(trained, say)
    if algebras is not None:
        yield algebras
    yield show_runs(results)
    yield show_provenance(results)
