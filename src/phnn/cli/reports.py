"""The commands that make results readable."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

Overrides = dict[str, Any]


def report(folder: Path, overrides: Overrides, out: Path | None = None) -> int:
    """Write one HTML file about a comparison or a run, with all its tables and pictures.

    Example: phnn report runs/digits

    Args:
        folder: Results of phnn compare, or the folder of a run; also when some runs have not ended.
        overrides: Parts of the recipes to replace, such as --data.root FOLDER.
        out: The file; report.html in the folder by default.
    """
    from phnn.lab.reports.report import write_report
    from phnn.lab.training.trainer import calm_lightning

    with calm_lightning():
        written = write_report(folder, out, overrides, say=print)
    print(f"wrote {written}")
    return 0


def figures(overrides: Overrides, results: Path | None = None, out: Path | None = None) -> int:
    """Draw the paper's figures, as PNG and SVG, from the library's own runs.

    Those of the learning tests are drawn by phnn toy.

    Example: phnn figures runs/digits

    Args:
        overrides: Parts of the recipes to replace, such as --data.root FOLDER.
        results: Results of phnn compare, or the folder of a run; without it, the figures are drawn
            that need no run.
        out: Folder of the figures; figures in the results or, without them, here by default.
    """
    from phnn.lab.reports.figures import draw_figures
    from phnn.lab.training.trainer import calm_lightning

    folder = out or (results or Path()) / "figures"
    with calm_lightning():
        written = draw_figures(results, folder, overrides, say=print)
    print("wrote", *written, sep="\n  ")
    return 0


def tables(format: Literal["text", "markdown", "csv"] = "text", only: str = "*") -> int:
    """Print the sizes of the paper's networks beside those that the paper prints.

    Args:
        format: Of the table.
        only: Pattern of the labels wanted, such as tab:sed_*.
    """
    from phnn.lab.paper import sizes as paper

    print(paper.render(paper.rows(only), format), end="")
    return 0
