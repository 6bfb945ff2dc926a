"""Figures of a weight as a sum of Kronecker products."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from phnn import algebra as algebras
from phnn.algebra import Algebra
from phnn.lab.drawing import COLOURS, tint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLACK, *TERMS = COLOURS
SHADE = {1: 0.55, 0: 0.0, -1: 0.25}  # share of the colour of a term, by its sign


def draw_kronecker(algebra: Algebra = algebras.quaternion) -> Figure:
    """Draw H = Σ A_i ⊗ F_i, as the paper's Fig. 2 does for quaternions.

    Each filter block F_i has one colour, also inside H. Negative blocks are lighter and hatched.

    Args:
        algebra: An algebra in which products of basis elements are ± a basis element.

    Raises:
        ValueError: The algebra is not of this kind, or n is too large.
    """
    constants = np.asarray(algebra.constants)
    if not np.isin(constants, (-1, 0, 1)).all() or (np.abs(constants).sum(0) > 1).any():
        raise ValueError(
            f"the blocks of H in {algebra.name} are not one ±F each; draw an algebra such as "
            "quaternion"
        )
    if algebra.n > len(TERMS):
        raise ValueError(
            f"{algebra.name} has n={algebra.n}; there are colours for n up to {len(TERMS)}"
        )
    from matplotlib.figure import Figure

    n = algebra.n
    figure = Figure(figsize=(1.6 + 2.4 * n, 6.6), layout="constrained")
    figure.suptitle(f"{algebra.name.capitalize()} convolution as a sum of Kronecker products")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1, 2)).ravel()
    panels = above.subplots(1, 3 * n - 1, width_ratios=([4, 1.6, 1] * n)[: 3 * n - 1])
    for i, matrix in enumerate(constants):
        A, F, *plus = panels[3 * i : 3 * i + 3]
        _draw_matrix(A, matrix, i)
        _draw_filters(F, i)
        for panel in plus:
            _write(panel, "+")
    _draw_weight(below.subplots(), constants)
    return figure


def _draw_matrix(panel: Axes, matrix: npt.NDArray[np.float64], i: int) -> None:
    for a, b in product(range(len(matrix)), repeat=2):
        value = int(matrix[a, b])
        _draw_block(panel, a, b, value, i, f"{value}".replace("-", "−"))
    _fit(panel, len(matrix))
    panel.set_title(f"$A_{{{i + 1}}}$")


def _draw_filters(panel: Axes, i: int) -> None:
    _draw_block(panel, 0, 0, 1, i, f"$F_{{{i + 1}}}$")
    _fit(panel, 1)
    panel.text(-0.45, 0.5, "⊗", ha="center", va="center", fontsize=16)


def _draw_weight(panel: Axes, constants: npt.NDArray[np.float64]) -> None:
    n = len(constants)
    for i, a, b in zip(*np.nonzero(constants), strict=True):
        value = int(constants[i, a, b])
        _draw_block(panel, a, b, value, i, f"${'-' if value < 0 else ''}F_{{{i + 1}}}$")
    _fit(panel, n)
    panel.set_ylabel("output components")
    panel.set_xlabel("input components")
    panel.text(-0.6, n / 2, "$H$ =", ha="right", va="center", fontsize=20)


def _draw_block(panel: Axes, row: int, column: int, sign: int, term: int, text: str) -> None:
    from matplotlib.patches import Rectangle

    colour, corner = TERMS[term], (column, row)
    if sign < 0:
        hatched = Rectangle(corner, 1, 1, hatch="///", facecolor=tint(colour, SHADE[sign]))
        hatched.set(edgecolor=tint(colour, 0.5), linewidth=0)
        panel.add_patch(hatched)
    else:
        panel.add_patch(Rectangle(corner, 1, 1, facecolor=tint(colour, SHADE[sign])))
    panel.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#555555", linewidth=0.8))
    panel.text(
        column + 0.5,
        row + 0.5,
        text,
        ha="center",
        va="center",
        fontsize=13,
        color="black" if sign else "#888888",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5}
        if sign < 0
        else None,
    )


def _fit(panel: Axes, n: int) -> None:
    panel.set_xlim(-0.02, n + 0.02)
    panel.set_ylim(n + 0.02, -0.02)
    panel.set_aspect("equal")
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_visible(False)


def _write(panel: Axes, text: str) -> None:
    panel.set_axis_off()
    panel.text(0.5, 0.5, text, ha="center", va="center", fontsize=18, transform=panel.transAxes)
