"""Figures of multiplication tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from phnn import algebra as algebras
from phnn.algebra import Algebra
from phnn.lab.drawing import COLOURS, tint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLACK, VERMILION, BLUE, GREEN, *_ = COLOURS
SIGNS = {-1: tint(BLUE, 0.25), 0: (1.0, 1.0, 1.0), 1: tint("#E69F00", 0.25)}
# the algebras inside the octonions, framed as in the paper
NESTED = {2: ("complex", GREEN), 4: ("quaternion", BLUE), 8: ("octonion", VERMILION)}
EXAMPLES = (
    algebras.complex,
    algebras.split_complex,
    algebras.dual,
    algebras.quaternion,
    algebras.split_quaternion,
    algebras.tessarine,
)
COLUMNS = 3  # of tables
UNKNOWN = "#888888"


def draw_nested_tables() -> Figure:
    """Draw the table of the octonions with frames around the algebras inside, as in Fig. 1.

    Dashed frames show dimensions for which no algebra is known. PH layers learn one.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(6.4, 6.6), layout="constrained")
    panel = figure.subplots()
    _draw_table(panel, algebras.octonion)
    for n in range(2, algebras.octonion.n):
        if n not in NESTED:
            _frame(panel, n, UNKNOWN, "--", 1.5)
    for n, (_, colour) in NESTED.items():
        _frame(panel, n, colour, "-", 3)
    panel.set_title("Multiplication of octonions and the algebras within")
    handles = [
        Line2D([], [], color=colour, linewidth=3, label=f"n = {n}: {name}")
        for n, (name, colour) in NESTED.items()
    ]
    learned = Line2D([], [], color=UNKNOWN, linestyle="--", label="n = 3, 5, 6, 7: learned")
    figure.legend(handles=[*handles, learned], loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_tables(shown: Sequence[Algebra] = EXAMPLES) -> Figure:
    """Draw multiplication tables side by side, row times column.

    Args:
        shown: The algebras.
    """
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(2.9 * columns, 0.5 + 3.1 * rows), layout="constrained")
    figure.suptitle("Multiplication tables: row times column")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, algebra in zip(panels, shown, strict=False):
        _draw_table(panel, algebra)
        panel.set_title(algebra.name.replace("_", "-"), fontsize="medium")
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    return figure


def _draw_table(panel: Axes, algebra: Algebra) -> None:
    """Draw a table; the colour of a cell shows its sign."""
    n = algebra.n
    # [row, column, component] of row times column
    products = np.asarray(algebra.constants).transpose(0, 2, 1)
    signs = np.sign(products.sum(-1)).astype(int)
    panel.imshow([[SIGNS[sign] for sign in row] for row in signs.tolist()], aspect="equal")
    size = min(13.0, 70 / n)
    for row, column in product(range(n), range(n)):
        text = _write_element(dict(zip(algebra.labels, products[row, column], strict=True)))
        panel.text(column, row, text, ha="center", va="center", fontsize=size)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_ticks(range(n), algebra.labels, fontsize=size, weight="bold")
        axis.set_ticks(np.arange(0.5, n - 1), minor=True)
        axis.set_tick_params(which="both", length=0)
    panel.xaxis.tick_top()
    panel.grid(which="minor", color="white", linewidth=1.5)
    panel.spines[:].set_color("#bbbbbb")


def _write_element(components: Mapping[str, float]) -> str:
    """Return a sum of basis elements as text.

    Example:
        >>> _write_element({"1": 0.0, "i": -1.0}), _write_element({"1": 2.0, "i": 1.0})
        ('−i', '2+i')
    """
    text = ""
    for label, value in components.items():
        if value:
            factor = "" if abs(value) == 1 else f"{abs(value):g}"
            sign = "−" if value < 0 else "+" if text else ""
            text += sign + (factor if label == "1" and factor else factor + label)
    return text or "0"


def _frame(panel: Axes, n: int, colour: str, style: str, width: float) -> None:
    from matplotlib.patches import Rectangle

    panel.add_patch(
        Rectangle(
            (-0.5, -0.5), n, n,
            fill=False, edgecolor=colour, linestyle=style, linewidth=width, clip_on=False, zorder=4,
        )
    )  # fmt: skip
