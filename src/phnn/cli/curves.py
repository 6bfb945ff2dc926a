"""The option --curve: scores against sizes, as a table or a picture."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from phnn.cli.parser import UsageError

if TYPE_CHECKING:
    from phnn.conversion import Point

PICTURES = (".png", ".svg")


def check_target(path: Path) -> None:
    """Raise an error when a curve cannot be written to a file, before the work."""
    from phnn.io.atomic import check_output

    if path.suffix not in (".csv", *PICTURES):
        raise UsageError(f"--curve {path} must end in .csv, .png or .svg")
    if path.suffix in PICTURES and importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError(
            'pictures need matplotlib; pip install "phnn[train]", or give --curve FILE.csv',
            name="matplotlib",
        )
    check_output(path)


def choose(point: Point, budget: float) -> Point:
    """Return a point that knows whether it was chosen."""
    return replace(point, chosen=point.budget == budget)


def write(path: Path, points: Sequence[Point], score: str) -> None:
    """Write points as a table or a picture.

    Args:
        path: The file.
        points: The points.
        score: What the score is called.
    """
    from phnn.conversion import Point
    from phnn.io.atomic import replacing

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with replacing(path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Point)])
            writer.writeheader()
            writer.writerows(asdict(point) for point in points)
        return
    from phnn.lab.drawing import render_figure
    from phnn.lab.reports.tradeoffs import draw_tradeoff

    figure = draw_tradeoff(points, score=score)
    with replacing(path) as temporary:
        content = render_figure(figure, "svg" if path.suffix == ".svg" else "png", path.stem)
        temporary.write_bytes(content)
