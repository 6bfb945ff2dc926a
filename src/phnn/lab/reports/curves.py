"""Learning curves of runs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from phnn.lab.reports.drawing import assign_colours
from phnn.lab.tasks import Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = "metrics.csv"  # in the folder of a run
# how each part of the data is drawn
PARTS: dict[str, Literal[":", "-"]] = {"train": ":", "val": "-"}

Curve = Mapping[str, Sequence[float]]


def read_curve(folder: Path) -> dict[str, list[float]]:
    """Returns each column of a run's metrics; nothing while no epoch has ended.

    Args:
        folder: Of the run.
    """
    path = folder / METRICS
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = rows[0] if rows else {}
    return {name: [float(row[name] or "nan") for row in rows] for name in columns}


def list_quantities(curves: Sequence[Curve]) -> list[str]:
    """Returns what was measured of the training or the validation part, such as "loss".

    Example:
        >>> list_quantities([{"epoch": [0], "train_loss": [1.0], "val_loss": [2.0]}])
        ['loss']
    """
    columns = [name.partition("_") for curve in curves for name in curve]
    return list(dict.fromkeys(what for part, _, what in columns if part in PARTS))


def draw_curves(
    curves: Sequence[tuple[str, Curve]], quantity: str, score: Score | None = None
) -> Figure:
    """Draws how a quantity changed from epoch to epoch.

    Args:
        curves: Each with the name of what was trained, for its colour; some may be empty.
        quantity: One of `list_quantities`.
        score: How people read it.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    colours = assign_colours(name for name, _ in curves)
    figure = Figure(figsize=(5.2, 4.0), layout="constrained")
    panel = figure.subplots()
    drawn: dict[tuple[str, str], None] = {}
    for name, curve in curves:
        for part, style in PARTS.items():
            values = curve.get(f"{part}_{quantity}")
            if values:
                epochs = [epoch + 1 for epoch in curve["epoch"]]
                scaled = [value * (score.scale if score else 1) for value in values]
                panel.plot(epochs, scaled, style, color=colours[name], marker=".", alpha=0.85)
                drawn[name, part] = None
    label = score.label if score else quantity
    panel.set_title(f"{label[0].upper()}{label[1:]} during training")
    panel.set_xlabel("epoch")
    panel.set_ylabel(f"{label} ({score.unit})" if score and score.unit else label)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.grid(alpha=0.3)
    names = {"train": "training part", "val": "validation part"}
    handles = [
        Line2D([], [], color=colours[name], label=name)
        for name in dict.fromkeys(name for name, _ in drawn)
    ]
    handles += [
        Line2D([], [], color="#777777", linestyle=PARTS[part], label=names[part])
        for part in dict.fromkeys(part for _, part in drawn)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure
