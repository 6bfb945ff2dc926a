"""Networks that were made of those of a comparison: converted ones, programs, and their speed."""

from __future__ import annotations

from pathlib import Path

from phnn.io import inspect
from phnn.lab import pages
from phnn.lab.files import read_number, read_table
from phnn.lab.pages import Element, Section
from phnn.lab.reports.loader import CachingRunLoader
from phnn.lab.reports.results import Results
from phnn.lab.runs import MODEL
from phnn.lab.tasks.report import DataMissingError, Say
from phnn.lab.trained import load_trained

BENCH = "bench.csv"  # what phnn bench --out wrote beside the results
PROGRAMS = (".onnx", ".pt2")


def show_shipped(
    folder: Path, results: Results, loader: CachingRunLoader, say: Say
) -> Section | None:
    """Return the section about the files beside the results; None where there are none.

    Args:
        folder: The folder of a comparison or a run.
        results: The results, for the task.
        loader: Reads the data.
        say: Called with a message before each slow step.
    """
    models = [path for path in sorted(folder.glob("*.safetensors")) if path.name != MODEL]
    programs = [path for path in sorted(folder.iterdir()) if path.suffix in PROGRAMS]
    if not models and not programs:
        return None
    rows = [_describe(path, results, loader, say) for path in models]
    rows += [[path.name, "", "", _megabytes(path)] for path in programs]
    score = results.task.primary
    head = ["file", f"test {score.label} {score.unit}".rstrip(), "parameters", "MB"]
    elements: list[Element] = [pages.table(head, rows)]
    if (folder / BENCH).is_file():
        elements += [pages.heading("Speed"), _show_speed(folder / BENCH)]
    return Section("shipped", "Shrunk and shipped", elements)


def _describe(path: Path, results: Results, loader: CachingRunLoader, say: Say) -> list[str]:
    """Return the row of a saved network, with its score on the test split."""
    parameters = f"{inspect(path).parameters:,}"
    say(f"testing {path.name}")
    try:
        value = _test(path, results, loader)
    except (DataMissingError, ValueError) as error:
        return [path.name, str(error), parameters, _megabytes(path)]
    score = results.task.primary
    return [path.name, f"{score.scale * value:.{score.digits}f}", parameters, _megabytes(path)]


def _test(path: Path, results: Results, loader: CachingRunLoader) -> float:
    from phnn.lab.trained import evaluate

    scores = evaluate(load_trained(path), loader.overrides, progress=False)
    return scores[f"test_{results.task.primary.name}"]


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.3f}"


def _show_speed(path: Path) -> Element:
    """Return the table of phnn bench."""
    numbers = ("inference_seconds", "inference_ratio", "bytes")
    found = read_table(path, ["form", "runtime", *numbers])
    head = ["form", "ms", "of the real one", "runtime", "file MB"]
    rows = [
        [
            row["form"],
            f"{1e3 * seconds:.2f}",
            f"{ratio:.2f}",
            row["runtime"],
            f"{size / 1e6:.2f}",
        ]
        for row in found
        for seconds, ratio, size in [[read_number(path, row, name) for name in numbers]]
    ]
    return pages.table(head, rows)
