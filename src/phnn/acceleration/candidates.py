"""The forms that are worth timing, for each layer of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from phnn.acceleration.calls import Call, record_calls
from phnn.acceleration.observation import Observation, ObservedLayer
from phnn.decompose import Declined, bilinear_many
from phnn.forms import Folded, Form, forms_of
from phnn.functional import Factors, each
from phnn.functional._formats import CHANNELS_LAST
from phnn.runtimes.nested import put_channels_last

LARGE = 2**27  # bytes of all folded layers, from which on the forms may at most double them
MOST_GROWTH = 2.0


@dataclass(frozen=True)
class Candidates:
    """The forms that a layer may take, and the inputs that they are timed on."""

    layer: ObservedLayer
    calls: Counter[Call]
    forms: tuple[Form, ...]


def find_candidates(
    seen: Observation, layers: Sequence[ObservedLayer], winograd: bool, has_formats: bool = True
) -> list[list[Candidates]]:
    """Return the forms that are worth timing, with the example as it is and with channels last.

    Args:
        seen: The model and the example.
        layers: Its layers, with what is known of their algebras.
        winograd: Whether Winograd forms are among them.
        has_formats: Whether the runtime minds the memory format; otherwise all have channels first.
    """
    calls = {layer.name: layer.calls for layer in layers}
    if not has_formats:
        first = {name: _put_first(received) for name, received in calls.items()}
        found = [_find_forms(layer, first[layer.name], winograd) for layer in layers]
        return [_leave_out_large([_leave_out_formats(candidates) for candidates in found])]
    formats = [calls]
    last = {name: put_channels_last(value) for name, value in seen.kwargs.items()}
    try:
        args = tuple(map(put_channels_last, seen.args))
        _, others = record_calls(seen.model, seen.sites, args, last)
    except RuntimeError:  # view, for one, wants the order of before
        others = calls
    if others != calls:
        formats.append(others)
    return [
        _leave_out_large([_find_forms(layer, received[layer.name], winograd) for layer in layers])
        for received in formats
    ]


def _leave_out_formats(candidates: Candidates) -> Candidates:
    """Return the forms that differ in more than the order of memory."""
    forms = tuple(form for form in candidates.forms if not form.minds_format)
    return replace(candidates, forms=forms)


def _leave_out_large(found: list[Candidates]) -> list[Candidates]:
    """Leave out the largest forms of a large model, as whole models of them would be timed."""
    sources = [one.layer.source for one in found]
    sizes = [source.sizes.assembled() * source.layer.F.element_size() for source in sources]
    growths = [max(form.growth(one.layer.source) for form in one.forms) for one in found]
    grown = sum(size * growth for size, growth in zip(sizes, growths, strict=True))
    if sum(sizes) <= LARGE or grown <= MOST_GROWTH * sum(sizes):
        return found
    return [
        replace(
            one,
            forms=tuple(f for f in one.forms if f.growth(one.layer.source) <= MOST_GROWTH),
        )
        for one in found
    ]


def _put_first(calls: Counter[Call]) -> Counter[Call]:
    """Return the same calls with channels first in memory."""
    found: Counter[Call] = Counter()
    for call, count in calls.items():
        found[replace(call, channels_last=False)] += count
    return found


def _find_forms(layer: ObservedLayer, calls: Counter[Call], winograd: bool) -> Candidates:
    """Return the forms of one layer, folded first."""
    dims = layer.layer.F.dim()
    last = dims in CHANNELS_LAST and bool(calls) and all(call.channels_last for call in calls)
    folded = Folded(channels_last=last)
    if layer.hindrance:
        return Candidates(layer, calls, (folded,))
    shapes = [call.shape for call in calls]
    others = [
        form
        for form in forms_of(layer.source, last)
        if form != folded
        and (winograd or not form.is_winograd)
        and form.is_promising(layer.source, shapes)
    ]
    return Candidates(layer, calls, (folded, *others))


def decompose_algebras(
    layers: Sequence[ObservedLayer], ranks: Mapping[str, int | None], seconds: float
) -> list[ObservedLayer]:
    """Return the layers with CP decompositions, or with the reason why they have none of use.

    Args:
        layers: The layers of a model.
        ranks: The CP rank, by the names of layers; None for the least that is found.
        seconds: Most time to search for one decomposition.
    """
    known = {layer.name: layer for layer in layers}
    waiting: dict[int | None, list[ObservedLayer]] = {}
    for layer in layers:
        if layer.hindrance or layer.name not in ranks:
            continue
        _, n_out, n_in = layer.layer.algebra_tensor.shape
        if n_out * n_in == 1:
            known[layer.name] = replace(layer, declined="n=1")
        elif layer.layer.rank is not None:
            factors = each(torch.Tensor.detach, layer.layer.factors)
            known[layer.name] = _with_factors(layer, factors)
        elif n_out != n_in:
            known[layer.name] = replace(layer, declined="its algebra is not square")
        else:
            waiting.setdefault(ranks[layer.name], []).append(layer)
    for rank, group in waiting.items():
        algebras = [layer.layer.algebra_tensor.detach() for layer in group]
        for layer, found in zip(group, bilinear_many(algebras, rank, seconds=seconds), strict=True):
            if isinstance(found, Declined):
                known[layer.name] = replace(layer, declined=found.reason)
            else:
                known[layer.name] = _with_factors(layer, found.factors)
    return list(known.values())


def _with_factors(layer: ObservedLayer, factors: Factors) -> ObservedLayer:
    _, n_out, n_in = factors.shape
    declined = ""
    if factors.rank >= n_out * n_in:
        full = f"n² = {n_in**2}" if n_out == n_in else f"n_out · n_in = {n_out * n_in}"
        declined = f"rank {factors.rank} is no fewer than {full} products"
    source = replace(layer.source, factors=factors)
    return replace(layer, source=source, declined=declined)
