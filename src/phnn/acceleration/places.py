"""The PH layers of a model where they stand, and the ways to compute each."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

from phnn.acceleration.calls import LAST, Call, put_channels_last
from phnn.acceleration.plans import Way
from phnn.conversion.folding import find_norms, fold_layers, serves_attention
from phnn.conversion.sites import PH_LAYERS, Slot
from phnn.decompose import Declined, bilinear_many
from phnn.forms import layouts
from phnn.functional import Factors, each
from phnn.nn import PHLayer


@dataclass
class Place:
    """A PH layer where it stands.

    Attributes:
        slot: Its names.
        folded: The plain layer that computes the same.
        calls: The inputs that it receives, and how often.
        norm: The batch norm that fuses with a plain layer here.
        hindrance: Why it can only be folded; empty when it need not.
        factors: U, V and W of its algebra, once they are known.
        declined: Why it has no factors, or none that are of use; empty while it may.
    """

    slot: Slot
    folded: nn.Module
    calls: Counter[Call]
    norm: nn.Module | None
    hindrance: str = ""
    factors: Factors | None = None
    declined: str = ""

    @property
    def name(self) -> str:
        """Its first name in the model."""
        return self.slot.name

    @property
    def has_format(self) -> bool:
        """Whether it can have the channels of its inputs last in memory."""
        return self.layer.F.dim() in LAST and any(call.has_format for call in self.calls)

    @property
    def layer(self) -> PHLayer:
        """The layer itself."""
        assert isinstance(self.slot.module, PHLayer)
        return self.slot.module

    def build(self, way: Way) -> nn.Module:
        """The layer computed in a way."""
        if not way.is_folded:
            return layouts.build(self.layer, self.factors, way.layout, way.channels_last)
        return put_last(copy.deepcopy(self.folded)) if way.channels_last else self.folded


def find_places(
    model: nn.Module,
    slots: list[Slot],
    calls: Mapping[str, Counter[Call]],
    read: Mapping[str, str],
    graphs: Sequence[fx.Graph],
) -> list[Place]:
    """The PH layers of a model.

    Args:
        model: The model.
        slots: Their names.
        calls: The inputs of each, by its first name.
        read: What the model reads of layers besides calling them, by their first names.
        graphs: The model as torch.fx traces it, to find the batch norms that fuse; none for none.
    """
    norms = find_norms(model, graphs) if graphs else {}
    folded = fold_layers(model, slots)
    places = []
    for slot in slots:
        target = next((norms[name] for name in slot.names if name in norms), None)
        norm = None if target is None else model.get_submodule(target)
        place = Place(slot, folded[slot.name], calls[slot.name], norm)
        if serves_attention(model, slot):
            place.hindrance = "read by torch's attention"
        elif slot.name in read:
            place.hindrance = f"the model reads its {read[slot.name]}"
        else:
            place.hindrance = _hindrance(place)
        places.append(place)
    return places


def _hindrance(place: Place) -> str:
    """Why a layer can only be folded; empty when it need not."""
    layer = place.layer
    if type(layer) not in PH_LAYERS:
        return f"{type(layer).__name__} is a subclass; what it adds is unknown"
    if not place.calls:
        return "does not run on the example"
    for call in place.calls:
        if not call.is_alone:
            return "called with more than its input"
        if call.dtype != layer.F.dtype:
            return f"its input is {call.dtype}, its weight {layer.F.dtype}"
        if layer.F.dim() > 2 and len(call.shape) != layer.F.dim():
            return f"its input {call.shape} has no batch"
        if 0 in call.shape:
            return f"its input {call.shape} is empty"
    if not layer.algebra_tensor.isfinite().all() or not layer.algebra_tensor.any():
        return "its algebra is zero or not finite"
    return ""


def _own_factors(layer: PHLayer) -> Factors | None:
    """U, V and W of a layer whose state they are."""
    if layer.rank is None:
        return None
    return each(torch.Tensor.detach, layer.factors)


def find_factors(places: list[Place], ranks: Mapping[str, int | None], seconds: float) -> None:
    """Finds the factors of layers, and notes those that are of no use.

    Args:
        places: The layers.
        ranks: The number of products, by the names of layers; None for the least.
        seconds: Most time to search for the factors of one algebra.
    """
    waiting: dict[int | None, list[Place]] = {}
    for place in places:
        if place.hindrance or place.name not in ranks:
            continue
        if place.layer.n == 1:
            place.declined = "n=1"
            continue
        place.factors = _own_factors(place.layer)
        if place.factors is None:
            waiting.setdefault(ranks[place.name], []).append(place)
    for rank, group in waiting.items():
        algebras = [place.layer.algebra_tensor.detach() for place in group]
        for place, found in zip(group, bilinear_many(algebras, rank, seconds=seconds), strict=True):
            if isinstance(found, Declined):
                place.declined = found.reason
            else:
                place.factors = found.factors
    for place in places:
        if place.factors is not None and place.factors.rank >= place.layer.n**2:
            place.declined = (
                f"rank {place.factors.rank} is no fewer than n² = {place.layer.n**2} products"
            )


def check_plan(places: list[Place], ways: Mapping[str, Way]) -> None:
    """Refuses a plan that the layers cannot follow."""
    for place in places:
        name, way = place.name, ways[place.name]
        if way.channels_last and place.layer.F.dim() not in LAST:
            raise ValueError(f"the plan has channels last for {name!r}, which has no such format")
        if way.is_folded:
            continue
        reason = place.hindrance
        if way.rank is not None and place.factors is None:
            reason = reason or place.declined
        if reason:
            raise ValueError(f"the plan has {way.layout!r} for {name!r}, which fails: {reason}")
        possible = layouts.layouts_for(place.layer, way.channels_last)
        if way.layout not in possible:
            raise ValueError(
                f"the plan has the layout {way.layout!r} for {name!r}; "
                f"{type(place.layer).__name__} has {', '.join(possible)} here"
            )
        if way.rank is not None and place.factors is not None and place.factors.rank != way.rank:
            raise ValueError(
                f"the plan has rank {way.rank} for {name!r}, "
                f"which computes with rank {place.factors.rank}"
            )


def put_last(model: nn.Module, besides: Container[nn.Module] = ()) -> nn.Module:
    """Puts the channels of convolutions last in memory, and so those of what they return.

    Args:
        model: A model, which changes.
        besides: Modules of it that stay as they are.
    """
    for module in model.modules():
        if not isinstance(module, nn.modules.conv._ConvNd) or module in besides:
            continue
        if module.weight.dim() in LAST:
            module.weight.data = put_channels_last(module.weight.data)
    return model
