"""How each layer of an accelerated model is computed, as values that a file can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDED_TILES = ("folded_tiles_2", "folded_tiles_4")
WITHOUT_PRODUCTS = ("folded", *FOLDED_TILES, "components")


@dataclass(frozen=True)
class Way:
    """One way to compute a PH layer.

    Attributes:
        layout: "folded" for one plain layer, "folded_tiles_2" and "folded_tiles_4" for the same in
            tiles of 2×2 and 4×4 places; "components" for one plain layer on every component, and
            the algebra after it; or how R products lie in memory.
        rank: Number of products; None where there are none.
        channels_last: Whether input and output have the channels last in memory.
    """

    layout: str = "folded"
    rank: int | None = None
    channels_last: bool = False

    @property
    def is_folded(self) -> bool:
        """Whether it is one plain layer."""
        return self.layout == "folded"

    @property
    def fuses(self) -> bool:
        """Whether it has one weight, which takes up a batch norm."""
        return self.is_folded or self.layout in FOLDED_TILES

    @property
    def has_tiles(self) -> bool:
        """Whether it is a convolution in tiles."""
        return "tiles" in self.layout

    def to_dict(self) -> dict[str, Any]:
        """Returns the entry of a plan, ready for JSON."""
        fields: dict[str, Any] = {"choice": self.layout}
        if self.rank is not None:
            fields = {"choice": "bilinear", "layout": self.layout, "rank": self.rank}
        return {**fields, "channels_last": True} if self.channels_last else fields

    @classmethod
    def from_dict(cls, name: str, fields: object) -> Way:
        """Reads the entry of a plan.

        Args:
            name: The layer, for the message of an error.
            fields: What the plan says of it.
        """
        if isinstance(fields, Mapping):
            rest = dict(fields)
            choice, last = rest.pop("choice", None), rest.pop("channels_last", False)
            if choice in WITHOUT_PRODUCTS and not rest and isinstance(last, bool):
                return cls(choice, channels_last=last)
            layout, rank = rest.pop("layout", None), rest.pop("rank", None)
            known = isinstance(layout, str) and layout not in WITHOUT_PRODUCTS
            known = known and type(rank) is int and isinstance(last, bool)
            if choice == "bilinear" and known and not rest:
                return cls(layout, rank, last)
        raise ValueError(
            f"the plan of {name!r} is {fields!r}; a layer has "
            f"""{{"choice": {" or ".join(f'"{choice}"' for choice in WITHOUT_PRODUCTS)}}} or """
            '{"choice": "bilinear", "layout": …, "rank": …}, and '
            '"channels_last": true where its channels are last in memory'
        )


def read_plan(plan: Mapping[str, Any] | str | Path, names: list[str]) -> dict[str, Way]:
    """Reads a plan for a model.

    Args:
        plan: Entries by the names of layers, or the JSON file that holds them.
        names: The layers that the model has.
    """
    where = "the plan"
    if isinstance(plan, str | Path):
        where = f"the plan {str(plan)!r}"
        try:
            plan = json.loads(Path(plan).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{where} is not JSON: {error}") from error
    if not isinstance(plan, Mapping):
        raise TypeError(f"{where} is a mapping from layers to choices, got {type(plan).__name__}")
    for missing, what in (
        ([name for name in plan if name not in names], "names layers that the model has not"),
        ([name for name in names if name not in plan], "says nothing of layers of the model"),
    ):
        if missing:
            raise ValueError(f"{where} {what}: {', '.join(map(repr, missing[:5]))}")
    return {name: Way.from_dict(name, plan[name]) for name in names}
