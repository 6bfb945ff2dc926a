"""The algebras that the networks learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phnn import analysis
from phnn.decompose import Decomposition
from phnn.io import load
from phnn.lab.reports import page
from phnn.lab.reports.algebras import choose_spread, draw_algebras, list_learned
from phnn.lab.reports.drawing import Picture, Say
from phnn.lab.reports.page import Section
from phnn.lab.runs import Run
from phnn.nn import PHLayer

RANKED = 4  # n up to which the fewest multiplications are searched
RANK_SECONDS = 1.0  # for each layer


def show_algebras(runs: Sequence[Run], say: Say) -> Section | None:
    """Returns the section with A of some layers; None when no network has learned one.

    Args:
        runs: Whose networks are here.
        say: Is told what takes a while.
    """
    pictures = list(draw_learned(runs))
    if not pictures:
        return None
    rows = []
    for run in runs:
        layers = choose_spread(list_learned(load(run.folder)))
        if layers:
            say(f"compares the algebras of {run.name} with known ones")
        rows += [[run.name, name, *_describe(layer)] for name, layer in layers.items()]
    head = ["run", "layer", "effective terms", "multiplications", "nearest algebra", "distance"]
    about = page.paragraph(
        "Distances to known algebras do not depend on the bases: 0 is the same algebra. Effective "
        "terms: how many equally strong Kronecker terms would spread as these do. Multiplications: "
        "the fewest that were found for one product, where n² is what the definition needs."
    )
    parts = [page.gallery(pictures), page.table(head, rows), about]
    return Section("algebras", "Learned algebras", parts)


def draw_learned(runs: Sequence[Run]) -> Iterator[Picture]:
    """Yields the heat maps of A of each network that has learned one.

    Args:
        runs: Whose networks are here.
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
    (found,) = analysis.describe(layer, rank=layer.n <= RANKED, seconds=RANK_SECONDS)
    nearest = found.neighbours[0] if found.neighbours else None
    return [
        f"{found.effective_terms:.1f} of {found.terms}",
        f"{found.rank.rank} of {found.n**2}" if isinstance(found.rank, Decomposition) else "",
        nearest.algebra.name if nearest else "",
        f"{nearest.distance:.3f}" if nearest else "",
    ]
