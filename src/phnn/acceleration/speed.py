"""What acceleration made of a model, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phnn.acceleration.plans import Way

HEAD = (
    "layer",
    "kind",
    "choice",
    "rank",
    "multiplications",
    "folded ms",
    "best other ms",
    "error",
    "note",
)


@dataclass(frozen=True)
class LayerSpeed:
    """One PH layer of the model.

    Attributes:
        name: Its name in the model.
        kind: What it was, as `PHConv2d n=4`.
        way: How it is computed now.
        folded_multiplications: What the plain layer needs for the example; a real layer as much.
        multiplications: What the chosen way needs.
        seconds: Time of each way that was tried, with the batch norm where it cannot be fused.
        error: Largest difference from the plain layer's output, relative to its largest value.
        note: Why some ways were not tried, or what else there is to know.
    """

    name: str
    kind: str
    way: Way
    folded_multiplications: int
    multiplications: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Acceleration:
    """All PH layers, and the times of the whole model; prints as a table.

    Attributes:
        entries: The layers.
        seconds: Of the whole model on the example: as it was given, folded, and accelerated. Empty
            when a plan was given, for then nothing is measured.
        difference: Largest difference of the outputs, relative to the largest output.
        fused: Number of batch norms that were multiplied into the layers before them.
        note: Why no batch norm was fused, or what else there is to know.
    """

    entries: tuple[LayerSpeed, ...]
    seconds: Mapping[str, float]
    difference: float
    fused: int
    note: str = ""

    @property
    def plan(self) -> dict[str, Any]:
        """The choices, ready for JSON; `accelerate(…, plan=…)` repeats them unmeasured."""
        return {entry.name: entry.way.to_dict() for entry in self.entries}

    def __str__(self) -> str:
        rows = [HEAD, *map(_cells, self.entries)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, "; ".join(self._totals())])

    def _totals(self) -> list[str]:
        bilinear = sum(entry.way.rank is not None for entry in self.entries)
        components = sum(entry.way.layout == "components" for entry in self.entries)
        tiles = sum(entry.way.has_tiles for entry in self.entries)
        before = sum(entry.folded_multiplications for entry in self.entries)
        after = sum(entry.multiplications for entry in self.entries)
        totals = [
            f"total: {bilinear} of {len(self.entries)} layers bilinear"
            + f", {components} by components" * (components > 0)
            + f"; {tiles} in tiles" * (tiles > 0),
            f"{_millions(before)} → {_millions(after)} multiplications "
            f"({after / max(before, 1):.1%})",
            f"{self.fused} batch norms fused",
        ]
        if self.seconds:
            times = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in self.seconds.items())
            totals.append(f"whole model {times}")
        totals.append(f"outputs differ by at most {self.difference:.1e} of the largest")
        return [*totals, self.note] if self.note else totals


def _cells(entry: LayerSpeed) -> tuple[str, ...]:
    multiplications = [entry.folded_multiplications, entry.multiplications]
    others = {layout: time for layout, time in entry.seconds.items() if layout != "folded"}
    rival = min(others, key=lambda layout: others[layout], default="")
    return (
        entry.name,
        entry.kind,
        entry.way.layout + " (channels last)" * entry.way.channels_last,
        "" if entry.way.rank is None else str(entry.way.rank),
        " → ".join(map(_millions, multiplications[:1] if entry.way.is_folded else multiplications)),
        f"{1e3 * entry.seconds['folded']:.3g}" if entry.seconds else "",
        f"{rival} {1e3 * others[rival]:.3g}" if rival else "",
        "" if entry.way.is_folded else f"{entry.error:.0e}",
        entry.note,
    )


def _millions(count: int) -> str:
    return f"{count / 1e6:.3g} M"
