"""The learning curves of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from phnn.lab import pages
from phnn.lab.drawing import Picture, assign_colours
from phnn.lab.files import read_number, read_table
from phnn.lab.pages import Section
from phnn.lab.reports.results import Results
from phnn.lab.runs import METRICS
from phnn.lab.tasks import Score
from phnn.lab.tasks.report import group_families

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# the line style and the name of each split
SPLITS: dict[str, tuple[Literal[":", "-"], str]] = {
    "train": (":", "training split"),
    "val": ("-", "validation split"),
}

Curve = Mapping[str, Sequence[float]]


def show_curves(results: Results) -> Section:
    """Return the section with the learning curves, also of runs that have not ended."""
    pictures = list(draw_families(results))
    missing = "No run has finished an epoch, or the folders of the runs are missing."
    element = pages.gallery(pictures) if pictures else pages.note(missing)
    return Section("learning", "Learning curves", [element])


def draw_families(results: Results) -> Iterator[Picture]:
    """Yield the learning curves of each family, one picture for each quantity."""
    for family, members in group_families(results.runs).items():
        curves = [(run.variant, read_curve(run.folder)) for run in members]
        for quantity in list_quantities([curve for _, curve in curves]):
            score = next((s for s in results.task.scores if s.name == quantity), None)
            yield Picture(
                f"learning-{family}-{quantity}",
                draw_curves(curves, quantity, score),
                f"{family}: {score.label if score else quantity} after each epoch, one line for "
                "each run.",
            )


def read_curve(folder: Path) -> dict[str, list[float]]:
    """Return the columns of a run's metrics; none before an epoch has ended.

    Args:
        folder: The folder of the run.
    """
    path = folder / METRICS
    if not path.is_file():
        return {}
    rows = read_table(path)
    columns = rows[0] if rows else {}
    return {name: [read_number(path, row, name) for row in rows] for name in columns}


def list_quantities(curves: Sequence[Curve]) -> list[str]:
    """Return what was measured on the training or the validation split, such as "loss".

    Example:
        >>> list_quantities([{"epoch": [0], "train_loss": [1.0], "val_loss": [2.0]}])
        ['loss']
    """
    columns = [name.partition("_") for curve in curves for name in curve]
    return list(dict.fromkeys(quantity for split, _, quantity in columns if split in SPLITS))


def draw_curves(
    curves: Sequence[tuple[str, Curve]], quantity: str, score: Score | None = None
) -> Figure:
    """Draw how a quantity changed from epoch to epoch.

    Args:
        curves: The name of the variant, which chooses the colour, and its curve. It may be empty.
        quantity: One of `list_quantities`.
        score: Gives the label and the unit of the quantity.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    colours = assign_colours(name for name, _ in curves)
    figure = Figure(figsize=(5.2, 4.0), layout="constrained")
    panel = figure.subplots()
    drawn: dict[tuple[str, str], None] = {}
    for name, curve in curves:
        for split, (style, _) in SPLITS.items():
            values = curve.get(f"{split}_{quantity}")
            if values:
                epochs = [epoch + 1 for epoch in curve["epoch"]]
                scaled = [value * (score.scale if score else 1) for value in values]
                panel.plot(epochs, scaled, style, color=colours[name], marker=".", alpha=0.85)
                drawn[name, split] = None
    label = score.label if score else quantity
    panel.set_title(f"{label[0].upper()}{label[1:]} during training")
    panel.set_xlabel("epoch")
    panel.set_ylabel(f"{label} ({score.unit})" if score and score.unit else label)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.grid(alpha=0.3)
    handles = [
        Line2D([], [], color=colours[name], label=name)
        for name in dict.fromkeys(name for name, _ in drawn)
    ]
    handles += [
        Line2D([], [], color="#777777", linestyle=style, label=text)
        for style, text in (SPLITS[split] for split in dict.fromkeys(split for _, split in drawn))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure
