"""The algebras that networks have learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from phnn import analysis
from phnn.decompose import Decomposition
from phnn.io import load
from phnn.lab import pages
from phnn.lab.drawing import Picture
from phnn.lab.pages import Section
from phnn.lab.runs import Run
from phnn.lab.tasks.report import Say
from phnn.nn import PHLayer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS = 3  # drawn of a network
TERMS = 8  # drawn of a layer
RANKED = 4  # largest n for which the CP rank is searched
RANK_SECONDS = 1.0  # for each layer


def show_algebras(runs: Sequence[Run], say: Say) -> Section | None:
    """Return the section with A of some layers; None when no network has learned one.

    Args:
        runs: Runs with a saved network.
        say: Called with a message before each slow step.
    """
    pictures = list(draw_learned(runs))
    if not pictures:
        return None
    rows = []
    for run in runs:
        layers = choose_spread(list_learned(load(run.folder)))
        if layers:
            say(f"comparing the algebras of {run.name} with known ones")
        rows += [[run.name, name, *_describe(layer)] for name, layer in layers.items()]
    head = ["run", "layer", "effective terms", "multiplications", "nearest algebra", "distance"]
    about = pages.paragraph(
        "Distances to known algebras do not depend on the basis; 0 is the same algebra. Effective "
        "terms: the number of equally strong Kronecker terms with the same spread. "
        "Multiplications: the smallest number found for one product; the definition needs n²."
    )
    elements = [pages.gallery(pictures), pages.table(head, rows), about]
    return Section("algebras", "Learned algebras", elements)


def draw_learned(runs: Sequence[Run]) -> Iterator[Picture]:
    """Yield heat maps of A for each network that has learned one.

    Args:
        runs: Runs with a saved network.
    """
    for run in runs:
        layers = choose_spread(list_learned(load(run.folder)))
        if layers:
            yield Picture(
                f"algebras-{run.folder.name}",
                draw_algebras(layers, run.variant),
                f"{run.name}: the matrices A of the first, a middle and the last layer.",
            )


def _describe(layer: PHLayer) -> list[str]:
    is_small = max(layer.n_out, layer.n_in) <= RANKED
    (found,) = analysis.describe(layer, rank=is_small, seconds=RANK_SECONDS)
    nearest = found.neighbours[0] if found.neighbours else None
    rank = found.rank.rank if isinstance(found.rank, Decomposition) else None
    return [
        f"{found.effective_terms:.1f} of {found.terms}",
        "" if rank is None else f"{rank} of {found.A[0].numel()}",
        nearest.algebra.name if nearest else "",
        f"{nearest.distance:.3f}" if nearest else "",
    ]


def list_learned(model: nn.Module) -> dict[str, PHLayer]:
    """Return the layers of a model that have learned an algebra with n > 1, by name."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, PHLayer) and layer.learns_algebra and layer.n_out * layer.n_in > 1
    }


def choose_spread(layers: Mapping[str, PHLayer], count: int = LAYERS) -> dict[str, PHLayer]:
    """Return the first layer, the last one, and layers evenly between them.

    Args:
        layers: Layers in the order of the model.
        count: The largest number of layers to return.
    """
    names = list(layers)
    indices = np.linspace(0, len(names) - 1, min(count, len(names))).round().astype(int)
    return {names[index]: layers[names[index]] for index in indices}


def draw_algebras(layers: Mapping[str, PHLayer], title: str) -> Figure:
    """Draw the matrices A_i as heat maps, one row for each layer.

    Args:
        layers: The layers by name, one at least.
        title: The title of the figure.
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
