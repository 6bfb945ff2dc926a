"""The algebras that layers have learned, drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from phnn.nn import PHLayer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS = 3  # drawn of a network
TERMS = 8  # drawn of a layer


def list_learned(model: nn.Module) -> dict[str, PHLayer]:
    """Returns the layers of a model that have learned an algebra with n > 1, by name."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, PHLayer) and layer.learns_algebra and layer.n > 1
    }


def choose_spread(layers: Mapping[str, PHLayer], count: int = LAYERS) -> dict[str, PHLayer]:
    """Returns the first, the last and layers evenly between.

    Args:
        layers: In the order of the model.
        count: How many to choose at most.
    """
    names = list(layers)
    places = np.linspace(0, len(names) - 1, min(count, len(names))).round().astype(int)
    return {names[place]: layers[names[place]] for place in places}


def draw_algebras(layers: Mapping[str, PHLayer], title: str) -> Figure:
    """Draws the matrices A_i as heat maps: a row for each layer.

    Args:
        layers: What to draw, at least one.
        title: Of the figure.
    """
    from matplotlib.figure import Figure

    found = {
        name: layer.algebra_tensor.detach().double().cpu().numpy() for name, layer in layers.items()
    }
    columns = min(TERMS, max(len(A) for A in found.values()))
    figure = Figure(figsize=(1.2 + 1.25 * columns, 0.9 + 1.5 * len(found)), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    panels = figure.subplots(len(found), columns, squeeze=False)
    limit = max(float(np.abs(A).max()) for A in found.values()) or 1.0
    image = None
    for row, (layer, A) in zip(panels, found.items(), strict=True):
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
