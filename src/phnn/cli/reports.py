"""The commands that report results."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from phnn._screen import ProgressBar, Screen

Overrides = dict[str, Any]


class Steps(Screen):
    """Says what a command does now."""

    def __init__(self) -> None:
        super().__init__(quiet=0.0)

    def __enter__(self) -> Steps:
        self.phase("reading the results")
        return self

    def __call__(self, text: str) -> None:
        """Show the next step; where nobody watches, each has a line."""
        if self.is_terminal:
            self.phase(text)
        else:
            self.say(text)


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

    with calm_lightning(), Steps() as steps:
        written = write_report(folder, out, overrides, say=steps)
    print(f"wrote {written}")
    return 0


def figures(
    overrides: Overrides,
    results: list[Path] | None = None,
    out: Path | None = None,
    paper: bool = False,
) -> int:
    """Draw the paper's figures from your own runs, as PNG and SVG.

    The command phnn toy draws the figures of the learning tests.

    Example: phnn figures runs/vgg runs/resnet

    Args:
        overrides: Parts of the recipes to replace, such as --data.root FOLDER.
        results: Folders of comparisons or runs. With several, there is also a figure of all
            together. Without any, the command draws the figures that need no run.
        out: Folder of the figures; by default the folder figures in the results, or here.
        paper: Draw the paper's own numbers in the same style, to lay beside yours.
    """
    from phnn.lab.reports.figures import draw_figures
    from phnn.lab.training.trainer import calm_lightning

    folders = results or []
    default = folders[0] / "figures" if len(folders) == 1 else Path("figures")
    with calm_lightning(), Steps() as steps:
        written = draw_figures(folders, out or default, overrides, say=steps, paper=paper)
    print("wrote", *written, sep="\n  ")
    return 0


def tables(format: Literal["text", "markdown", "csv"] = "text", only: str = "*") -> int:
    """Print the sizes of the paper's networks beside those printed in the paper.

    Args:
        format: Format of the table.
        only: Pattern of the tables wanted, such as tab:sed_*.
    """
    from phnn.lab.paper.sizes import derive_rows, render_rows

    with ProgressBar() as bar:  # a terminal has no room for the multiplications
        rows = derive_rows(only, work=format != "text", progress=bar)
    print(render_rows(rows, format), end="")
    return 0
