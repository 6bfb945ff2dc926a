"""The commands that report results."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

Overrides = dict[str, Any]


def report(folder: Path, overrides: Overrides, out: Path | None = None) -> int:
    """Write one HTML file about a comparison, a run or a study, with tables and figures.

    Example: phnn report runs/digits

    Args:
        folder: Folder of a comparison, a run or a study of phnn tune. The runs need not have ended.
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
    """Draw the paper's figures from your own runs, as PNG and SVG.

    The command phnn toy draws the figures of the learning tests.

    Example: phnn figures runs/digits

    Args:
        overrides: Parts of the recipes to replace, such as --data.root FOLDER.
        results: Folder of a comparison or a run. Without it, the command draws the figures that
            need no run.
        out: Folder of the figures; by default the folder figures in the results, or here.
    """
    from phnn.lab.reports.figures import draw_figures
    from phnn.lab.training.trainer import calm_lightning

    folder = out or (results or Path()) / "figures"
    with calm_lightning():
        written = draw_figures(results, folder, overrides, say=print)
    print("wrote", *written, sep="\n  ")
    return 0


def tables(format: Literal["text", "markdown", "csv"] = "text", only: str = "*") -> int:
    """Print the sizes of the paper's networks beside those printed in the paper.

    Args:
        format: Format of the table.
        only: Pattern of the tables wanted, such as tab:sed_*.
    """
    from phnn.lab.paper.sizes import derive_rows, render_rows

    print(render_rows(derive_rows(only), format), end="")
    return 0
