"""Which way to compute the PH layers of a model is the fastest here: a matter of measuring."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from phnn.acceleration.calls import LAST, Call, copy_tensors, put_channels_last, record_calls
from phnn.acceleration.places import Place
from phnn.acceleration.plans import WITHOUT_PRODUCTS, Way
from phnn.forms import layouts
from phnn.runtimes.timing import interleave, wait

# least time of a round on average, in which short calls are repeated
LAYER_SECONDS, MODEL_SECONDS = 0.02, 0.1


@dataclass(frozen=True)
class Trial:
    """How each layer is computed, and what the alternatives took, by the names of the layers."""

    ways: Mapping[str, Way]
    seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def folded(self) -> Trial:
        """The same with plain layers alone."""
        ways = {name: Way(channels_last=way.channels_last) for name, way in self.ways.items()}
        return Trial(ways, self.seconds)


def try_formats(
    model: nn.Module,
    places: list[Place],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rounds: int,
    progress: Callable[[int, int], None] | None,
    tiles: bool,
) -> tuple[list[Trial], int]:
    """The fastest ways for the layers of a model, by what is known of each alone.

    Returns:
        The fastest with the example as it is, with channels last, and, for each layer that was
        timed, with the better of both; the same without tiles, whose many weights cost more in a
        whole model than alone, and with one weight for each layer, as the real model has; all
        folded, and which of them that is.
    """
    calls = {place.name: place.calls for place in places}
    measured = [_measure(places, calls, rounds, progress, tiles)]
    last = {name: put_channels_last(value) for name, value in kwargs.items()}
    slots = [place.slot for place in places]
    try:
        _, others = record_calls(model, slots, tuple(map(put_channels_last, args)), last)
    except RuntimeError:  # view, for one, wants the order of before
        others = calls
    if others != calls:
        measured.append(_measure(places, others, rounds, progress, tiles))
    trials: list[Trial] = []
    for allow in (lambda way: True, lambda way: not way.has_tiles, lambda way: way.fuses):
        found = [_choose(times, allow) for times in measured]
        if len(found) > 1:
            found.append(_merge(*found))
        for trial in found:
            if trial.ways not in [other.ways for other in trials]:
                trials.append(trial)
    folded = trials[0].folded()
    ways = [trial.ways for trial in trials]
    if folded.ways in ways:
        return trials, ways.index(folded.ways)
    return [*trials, folded], len(trials)


def _choose(measured: Mapping[str, Mapping[Way, float]], allow: Callable[[Way], bool]) -> Trial:
    """The fastest way for each layer.

    Args:
        measured: Seconds of the ways, by the names of the layers.
        allow: Which ways to choose from, the folded one among them.
    """
    ways, seconds = {}, {}
    for name, times in measured.items():
        ways[name] = min(filter(allow, times), key=times.__getitem__)
        if len(times) > 1:
            seconds[name] = {way.layout: time for way, time in times.items()}
    return Trial(ways, seconds)


def _merge(one: Trial, other: Trial) -> Trial:
    """The faster of two for each layer; what it costs to change between formats is left out."""
    ways, seconds = dict(one.ways), dict(one.seconds)
    for name, way in other.ways.items():
        if name in seconds and other.seconds[name][way.layout] < seconds[name][ways[name].layout]:
            ways[name], seconds[name] = way, other.seconds[name]
    return Trial(ways, seconds)


def _measure(
    places: list[Place],
    calls: Mapping[str, Counter[Call]],
    rounds: int,
    progress: Callable[[int, int], None] | None,
    tiles: bool,
) -> dict[str, Mapping[Way, float]]:
    """Times the ways to compute each layer, those of equal layers once; one way alone takes 0."""
    known: dict[object, Mapping[Way, float]] = {}
    measured: dict[str, Mapping[Way, float]] = {}
    for done, place in enumerate(places, 1):
        received = calls[place.name]
        ways = _ways(place, received, tiles)
        if len(ways) == 1:
            measured[place.name] = {ways[0]: 0.0}
        else:
            kind = _kind(place, received)
            if kind not in known:
                known[kind] = _time_layer(place, ways, received, rounds)
            measured[place.name] = known[kind]
        if progress is not None:
            progress(done, len(places))
    return measured


def _ways(place: Place, calls: Counter[Call], tiles: bool) -> list[Way]:
    """The ways that are worth a trial, folded first."""
    layer = place.layer
    last = layer.F.dim() in LAST and bool(calls) and all(call.is_last for call in calls)
    ways = [Way(channels_last=last)]
    if place.hindrance:
        return ways
    rank = None if place.factors is None or place.declined else place.factors.rank
    for layout in layouts.layouts_for(layer, last):
        products = None if layout in WITHOUT_PRODUCTS else rank
        if layout not in WITHOUT_PRODUCTS and products is None:
            continue
        if _is_promising(layout, place, calls, tiles):
            ways.append(Way(layout, products, last))
    return ways


def _is_promising(layout: str, place: Place, calls: Counter[Call], tiles: bool) -> bool:
    layer = place.layer
    if layout == "components":
        return layer.n > 1 and all(_is_small(place, call) for call in calls)
    if "padded" in layout:
        return not layouts.has_whole_vectors(layer)
    if "tiles" in layout:
        if not tiles or torch.is_autocast_enabled(layer.F.device.type):
            return False
        largest = max(max(layouts.output_size(layer, call.shape)) for call in calls)
        return largest <= 4 if layout.endswith("2") else largest > 2
    return True


def _is_small(place: Place, call: Call) -> bool:
    """Whether all filtered components are at most about twice as large as the folded weight.

    Layers in training filter first where they are smaller; here it is timed, so the border is wide.
    """
    layer = place.layer
    inputs, outputs = (getattr(layer, name) for name in layer.dense_args[:2])
    places = math.prod(call.shape) // inputs // math.prod(getattr(layer, "stride", ()))
    weight = place.folded.get_parameter("weight")
    return bool(places * outputs * layer.terms <= 2 * weight.numel())


def _kind(place: Place, calls: Counter[Call]) -> object:
    """What the time of a layer depends on."""
    layer = place.layer
    arguments = tuple(str(getattr(layer, name)) for name in layer.dense_args)
    rank = None if place.factors is None else place.factors.rank
    traits = (layer.n, layer.terms, rank, layer.bias is None, place.norm is None)
    return (type(layer), arguments, *traits, frozenset(calls.items()))


def _time_layer(
    place: Place, ways: list[Way], calls: Counter[Call], rounds: int
) -> dict[Way, float]:
    inputs = [call.draw() for call in calls.elements()]
    contenders = {}
    for way in ways:
        module = place.build(way)
        if not way.fuses and place.norm is not None:
            module = nn.Sequential(module, place.norm)  # fuses with the plain layer alone
        contenders[way.layout] = _runner(module, inputs)
    times = interleave(contenders, rounds, seconds=rounds * LAYER_SECONDS)
    return {way: times[way.layout] for way in ways}


def _runner(module: nn.Module, inputs: list[Tensor]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            for x in inputs:
                module(x)
        wait(inputs)

    return run


def race(
    model: nn.Module,
    made: list[nn.Module],
    folded: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rounds: int,
) -> tuple[dict[str, float], int]:
    """Times whole models.

    Args:
        model: The original.
        made: What was made of it.
        folded: Which of these is the folded one.
        args: Arguments of a call.
        kwargs: Named ones.
        rounds: Timed calls of each.

    Returns:
        The times of the original, of the folded and of the fastest, and which that is. Those that
        do not run, as where a view wants another order in memory, take no part.
    """
    args, kwargs = copy_tensors(args), copy_tensors(kwargs)  # of which some models change theirs

    def runner(contender: nn.Module) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                wait(contender(*args, **kwargs))

        return run

    contenders = {"assembled": runner(model)}
    for i, fast in enumerate(made):
        run = runner(fast)
        try:
            run()
        except RuntimeError:
            if i == folded:
                raise
        else:
            contenders[str(i)] = run
    times = interleave(contenders, rounds, warmup=1, seconds=rounds * MODEL_SECONDS)
    best = min((i for i in range(len(made)) if str(i) in times), key=lambda i: times[str(i)])
    found = {"assembled": "assembled", "folded": str(folded), "accelerated": str(best)}
    return {name: times[key] for name, key in found.items()}, best
