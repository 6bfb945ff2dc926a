"""The algebras that layers have learned, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import nn

from phnn.nn import PHLayer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS = 3  # drawn of a network
TERMS = 8  # drawn of a layer


class LayerAlgebra(NamedTuple):
    """The algebra A (terms, n, n) of a layer."""

    layer: str
    A: npt.NDArray[np.float64]


def list_algebras(model: nn.Module) -> list[LayerAlgebra]:
    """Returns the learned algebras of a model with n > 1, in the order of its layers."""
    return [
        LayerAlgebra(name, layer.A.detach().double().cpu().numpy())
        for name, layer in model.named_modules()
        if isinstance(layer, PHLayer) and layer.learns_algebra and layer.n > 1
    ]


def choose_spread(found: Sequence[LayerAlgebra], count: int = LAYERS) -> list[LayerAlgebra]:
    """Returns the first, the last and layers evenly between.

    Args:
        found: In the order of the layers.
        count: How many to choose at most.
    """
    places = np.linspace(0, len(found) - 1, min(count, len(found))).round().astype(int)
    return [found[place] for place in places]


def draw_algebras(found: Sequence[LayerAlgebra], title: str) -> Figure:
    """Draws the matrices A_i as heat maps: a row for each layer.

    Args:
        found: The layers to draw, at least one.
        title: Of the figure.
    """
    from matplotlib.figure import Figure

    columns = min(TERMS, max(len(A) for _, A in found))
    figure = Figure(figsize=(1.2 + 1.25 * columns, 0.9 + 1.5 * len(found)), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    panels = figure.subplots(len(found), columns, squeeze=False)
    limit = max(float(np.abs(A).max()) for _, A in found) or 1.0
    image = None
    for row, (layer, A) in zip(panels, found, strict=True):
        for i, panel in enumerate(row):
            panel.set_xticks([])
            panel.set_yticks([])
            if i >= len(A):
                panel.set_axis_off()
                continue
            image = panel.imshow(A[i], cmap="PuOr", vmin=-limit, vmax=limit)
            panel.set_title(f"$A_{{{i + 1}}}$", fontsize="small")
        row[0].set_ylabel(layer, fontsize="small")
    assert image is not None
    figure.colorbar(image, ax=panels, shrink=0.8, label="value")
    return figure
