"""PH layers in the way that is fastest where the model runs."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from phnn.decompose import Declined, bilinear_many
from phnn.decompose.factors import Factors
from phnn.nn import PHLayer
from phnn.surgery import layouts
from phnn.surgery.calls import LAST, Call, leaves, put_channels_last, record_calls, split_arguments
from phnn.surgery.folding import find_norms, fold_layers, fuse_batch_norms, serves_attention, trace
from phnn.surgery.plans import Way, read_plan
from phnn.surgery.slots import PH_LAYERS, Slot, find_ph_slots, hooks, replace_modules
from phnn.surgery.specs import LayerSpec
from phnn.surgery.speed import Acceleration, LayerSpeed
from phnn.surgery.timing import count_multiplications, interleave, wait


@dataclass
class _Place:
    """A PH layer where it stands.

    Attributes:
        slot: Its names.
        folded: The plain layer that computes the same.
        calls: The inputs that it receives, and how often.
        norm: The batch norm that fuses with a plain layer here.
        reason: Why it can only be folded; empty while it need not.
        factors: U, V and W of its algebra, once they are known.
    """

    slot: Slot
    folded: nn.Module
    calls: Counter[Call]
    norm: nn.Module | None
    reason: str = ""
    factors: Factors | None = None

    @property
    def name(self) -> str:
        return self.slot.name

    @property
    def layer(self) -> PHLayer:
        assert isinstance(self.slot.module, PHLayer)
        return self.slot.module

    def build(self, way: Way) -> nn.Module:
        """The layer computed in a way."""
        if not way.is_folded:
            assert self.factors is not None
            return layouts.build(self.layer, self.factors, way.layout, way.channels_last)
        return _put_last(copy.deepcopy(self.folded)) if way.channels_last else self.folded


@dataclass(frozen=True)
class _Trial:
    """How each layer is computed, and what the alternatives took, by the names of the layers."""

    ways: Mapping[str, Way]
    seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def folded(self) -> _Trial:
        """The same with plain layers alone."""
        ways = {name: Way(channels_last=way.channels_last) for name, way in self.ways.items()}
        return _Trial(ways, self.seconds)


def accelerate(
    model: nn.Module,
    example_input: Any,
    *,
    plan: Mapping[str, Any] | str | Path | None = None,
    rank: int | None = None,
    tol: float | None = None,
    fuse: bool = True,
    rounds: int = 7,
    seconds: float = 10.0,
    progress: Callable[[int, int], None] | None = None,
) -> nn.Module:
    """The fastest model that computes the same, for inference.

    Each PH layer is replaced by a module of torch alone: a plain layer with the assembled weight,
    or the R products of its algebra, R/n² of the multiplications, between two mixings of its
    components. Which is faster depends on sizes and on the machine, so all are timed, on the
    inputs that the layer receives from the example. The result needs nothing of this library: it
    pickles, moves, compiles, and is exported by `torch.export` and to ONNX.

    Args:
        model: A model in evaluation mode with PH layers; it is not changed.
        example_input: What the model will be used on: a tensor, a tuple of arguments or a dict of
            named ones. Its sizes, device and type are those that are timed. Its memory format is
            kept when its channels are last; otherwise both formats are tried, and the faster one
            is that of all convolutions.
        plan: Choices to repeat, `model.phnn_report.plan` or a JSON file of it; nothing is timed, so
            the same plan gives the same model.
        rank: Number of products for all layers; the fewest that are found for each by default.
        tol: Largest difference of the outputs that is accepted, relative to the largest output;
            by default half of the digits of their type.
        fuse: Also multiply batch norms into plain layers before them. Where `torch.fx` cannot trace
            the model this is left out, and the report says so.
        rounds: How often each way is timed; the least time counts.
        seconds: Processor time to find the products of each of the different algebras; those that
            take longer, as for large n, are folded.
        progress: Called with the number of layers that are timed and the number of all; where both
            formats are tried, it counts twice.

    Returns:
        A new model. Its `phnn_report` says how each layer is computed and prints as a table.

    Raises:
        RuntimeError: The outputs differ by more than tol.

    Example:
        >>> import phnn
        >>> layer = phnn.PHConv2d(64, 64, 3, algebra=phnn.algebra.quaternion)
        >>> model, x = nn.Sequential(layer, nn.ReLU()).eval(), torch.randn(1, 64, 16, 16)
        >>> fast = accelerate(model, x)
        >>> torch.allclose(fast(x), model(x), atol=1e-4)
        True
        >>> again = accelerate(model, x, plan=fast.phnn_report.plan)
    """
    _check_mode(model)
    slots = find_ph_slots(model)
    if not slots:
        raise ValueError(
            f"{type(model).__name__} has no PH layers to accelerate; phnn.convert makes them, and "
            "phnn.to_dense(model, fuse=True) fuses batch norms alone"
        )
    ways = None if plan is None else read_plan(plan, [slot.name for slot in slots])
    graph, note = _trace(model) if fuse else (None, "")
    args, kwargs = split_arguments(example_input)
    expected, calls = record_calls(model, slots, args, kwargs)
    places = _find_places(model, slots, calls, graph)
    if ways is None:
        _decompose(places, dict.fromkeys(calls, rank), seconds)
        trials = _try_formats(model, places, args, kwargs, rounds, progress)
    else:
        _decompose(places, {n: way.rank for n, way in ways.items() if not way.is_folded}, seconds)
        _check_plan(places, ways)
        trials = [_Trial(ways)]
    made = [_assemble(model, places, trial, graph) for trial in trials]
    times: dict[str, float] = {}
    best = 0
    if ways is None:
        times, best = _race(model, [fast for fast, _ in made], args, kwargs, rounds)
    fast, fused = made[best]
    entries = tuple(_describe(place, trials[best]) for place in places)
    with torch.no_grad():
        difference = _compare(expected, fast(*args, **kwargs), tol, entries)
    fast.phnn_report = Acceleration(entries, times, difference, fused, note)  # type: ignore[assignment]
    return fast


def _check_mode(model: nn.Module) -> None:
    training = [name for name, module in model.named_modules() if module.training]
    if training:
        where = "the model is" if model.training else f"its module {training[0]!r} is"
        raise ValueError(
            f"acceleration is for inference and {where} in training mode; call model.eval() first"
        )


def _trace(model: nn.Module) -> tuple[fx.Graph | None, str]:
    try:
        return trace(model), ""
    except ValueError as error:
        reason = str(error.__cause__).splitlines() or [""]
        return None, f"no batch norms fused, as torch.fx cannot trace the model ({reason[0]})"


def _find_places(
    model: nn.Module, slots: list[Slot], calls: Mapping[str, Counter[Call]], graph: fx.Graph | None
) -> list[_Place]:
    norms = {} if graph is None else find_norms(model, graph)
    folded = fold_layers(model, slots)
    places = []
    for slot in slots:
        target = next((norms[name] for name in slot.names if name in norms), None)
        norm = None if target is None else model.get_submodule(target)
        place = _Place(slot, folded[slot.name], calls[slot.name], norm)
        place.reason = (
            "read by torch's attention" if serves_attention(model, slot) else _hindrance(place)
        )
        places.append(place)
    return places


def _hindrance(place: _Place) -> str:
    """Why a layer can only be folded; empty when it need not."""
    layer = place.layer
    if type(layer) not in PH_LAYERS:
        return f"{type(layer).__name__} is a subclass; what it adds is unknown"
    if layer.n == 1:
        return "n=1"
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
    if not layer.A.isfinite().all() or not layer.A.any():
        return "its algebra is zero or not finite"
    return ""


def _own_factors(layer: PHLayer) -> Factors | None:
    """U, V and W of a layer whose state they are."""
    if layer.rank is None:
        return None
    factors = layer.factors
    U = torch.eye(layer.terms) if factors.U is None else factors.U
    return Factors(U.detach(), factors.V.detach(), factors.W.detach())


def _decompose(places: list[_Place], ranks: Mapping[str, int | None], seconds: float) -> None:
    """Finds the factors of the layers that are named, in ranks that are given or the least."""
    waiting: dict[int | None, list[_Place]] = {}
    for place in places:
        if place.reason or place.name not in ranks:
            continue
        place.factors = _own_factors(place.layer)
        if place.factors is None:
            waiting.setdefault(ranks[place.name], []).append(place)
    for rank, group in waiting.items():
        algebras = [place.layer.A.detach() for place in group]
        for place, found in zip(group, bilinear_many(algebras, rank, seconds=seconds), strict=True):
            if isinstance(found, Declined):
                place.reason = found.reason
            else:
                place.factors = Factors(found.U, found.V, found.W)


def _check_plan(places: list[_Place], ways: Mapping[str, Way]) -> None:
    """Refuses a plan that the layers cannot follow."""
    for place in places:
        name, way = place.name, ways[place.name]
        if way.channels_last and place.layer.F.dim() not in LAST:
            raise ValueError(f"the plan has channels last for {name!r}, which has no such format")
        if way.is_folded:
            continue
        if place.reason:
            raise ValueError(f"the plan has {name!r} bilinear, which fails: {place.reason}")
        possible = layouts.layouts_for(place.layer, way.channels_last)
        if way.layout not in possible:
            raise ValueError(
                f"the plan has the layout {way.layout!r} for {name!r}; "
                f"{type(place.layer).__name__} has {', '.join(possible)} here"
            )
        assert place.factors is not None
        if place.factors.rank != way.rank:
            raise ValueError(
                f"the plan has rank {way.rank} for {name!r}, "
                f"which computes with rank {place.factors.rank}"
            )


def _try_formats(
    model: nn.Module,
    places: list[_Place],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rounds: int,
    progress: Callable[[int, int], None] | None,
) -> list[_Trial]:
    """The fastest ways with the example as it is and with channels last; then all folded."""
    calls = {place.name: place.calls for place in places}
    trials = [_choose(places, calls, rounds, progress)]
    last = {name: put_channels_last(value) for name, value in kwargs.items()}
    slots = [place.slot for place in places]
    _, others = record_calls(model, slots, tuple(map(put_channels_last, args)), last)
    if others != calls:
        trials.append(_choose(places, others, rounds, progress))
    return [*trials, trials[0].folded()]


def _choose(
    places: list[_Place],
    calls: Mapping[str, Counter[Call]],
    rounds: int,
    progress: Callable[[int, int], None] | None,
) -> _Trial:
    """Times the ways to compute each layer, those of equal layers once, and takes the fastest."""
    known: dict[object, Mapping[str, float]] = {}
    chosen: dict[str, Way] = {}
    seconds: dict[str, Mapping[str, float]] = {}
    for done, place in enumerate(places, 1):
        received = calls[place.name]
        ways = _ways(place, received)
        chosen[place.name] = ways[0]
        if len(ways) > 1:
            kind = _kind(place, received)
            if kind not in known:
                known[kind] = _time_layer(place, ways, received, rounds)
            times = seconds[place.name] = known[kind]
            chosen[place.name] = min(ways, key=lambda way: times[way.layout])
        if progress is not None:
            progress(done, len(places))
    return _Trial(chosen, seconds)


def _ways(place: _Place, calls: Counter[Call]) -> list[Way]:
    """The ways that are worth a trial, folded first."""
    last = place.layer.F.dim() in LAST and bool(calls) and all(call.is_last for call in calls)
    folded = Way(channels_last=last)
    if place.reason or place.factors is None:
        return [folded]
    rank, n = place.factors.rank, place.layer.n
    if rank >= n * n:
        place.reason = f"rank {rank} is no fewer than n² = {n * n} products"
        return [folded]
    names = layouts.layouts_for(place.layer, last)
    return [folded, *(Way(layout, rank, last) for layout in names)]


def _kind(place: _Place, calls: Counter[Call]) -> object:
    """What the time of a layer depends on."""
    layer = place.layer
    assert place.factors is not None
    arguments = tuple(str(getattr(layer, name)) for name in layer.dense_args)
    traits = (layer.n, place.factors.rank, layer.bias is None, place.norm is None)
    return (type(layer), arguments, *traits, frozenset(calls.items()))


def _time_layer(
    place: _Place, ways: list[Way], calls: Counter[Call], rounds: int
) -> dict[str, float]:
    inputs = [call.draw() for call in calls.elements()]
    contenders = {}
    for way in ways:
        module = place.build(way)
        if not way.is_folded and place.norm is not None:
            module = nn.Sequential(module, place.norm)  # fuses with the plain layer alone
        contenders[way.layout] = _runner(module, inputs)
    return interleave(contenders, rounds)


def _runner(module: nn.Module, inputs: list[Tensor]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            for x in inputs:
                module(x)
        wait(inputs)

    return run


def _race(
    model: nn.Module,
    made: list[nn.Module],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rounds: int,
) -> tuple[dict[str, float], int]:
    """Times of the model, of the last that was made and of the fastest; which that is."""

    def runner(contender: nn.Module) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                wait(contender(*args, **kwargs))

        return run

    contenders = {"assembled": model, **{str(i): fast for i, fast in enumerate(made)}}
    times = interleave({name: runner(m) for name, m in contenders.items()}, rounds, warmup=1)
    best = min(range(len(made)), key=lambda i: times[str(i)])
    found = {"assembled": "assembled", "folded": str(len(made) - 1), "accelerated": str(best)}
    return {name: times[key] for name, key in found.items()}, best


def _assemble(
    model: nn.Module, places: list[_Place], trial: _Trial, graph: fx.Graph | None
) -> tuple[nn.Module, int]:
    """A copy of the model with its layers computed as chosen, and the number of fused norms."""
    slots = [place.slot for place in places]
    layers = fold_layers(model, slots)  # anew, for fusing changes their weights
    for place in places:
        way = trial.ways[place.name]
        if not way.is_folded:
            layers[place.name] = place.build(way)
    fast = replace_modules(model, slots, layers, inplace=False)
    fused = [] if graph is None else fuse_batch_norms(fast, graph)
    if any(way.channels_last for way in trial.ways.values()):
        _put_last(fast)
    return fast, len(fused)


def _put_last(model: nn.Module) -> nn.Module:
    """Puts the channels of all convolutions last in memory, and so those of what they return."""
    for module in model.modules():
        if isinstance(module, nn.modules.conv._ConvNd) and module.weight.dim() in LAST:
            module.weight.data = put_channels_last(module.weight.data)
    return model


def _describe(place: _Place, trial: _Trial) -> LayerSpeed:
    way = trial.ways[place.name]
    chosen = place.build(way)
    inputs = [call.draw().to(place.layer.F.dtype) for call in place.calls.elements()]
    before, after = (count_multiplications(module, *inputs) for module in (place.folded, chosen))
    notes = [place.reason, *(f"its {kind} are lost" for kind in hooks(place.layer))]
    if place.norm is not None and not way.is_folded:
        # its scale differs between components, and what mixes them cannot take it up
        notes.append("batch norm kept")
    return LayerSpeed(
        name=place.name,
        kind=str(LayerSpec.of(place.layer)),
        way=way,
        folded_multiplications=before,
        multiplications=after,
        seconds=trial.seconds.get(place.name, {}),
        error=0.0 if way.is_folded else _difference(place.folded, chosen, inputs),
        note="; ".join(filter(None, notes)),
    )


def _difference(folded: nn.Module, chosen: nn.Module, inputs: list[Tensor]) -> float:
    with torch.no_grad():
        expected, actual = folded(inputs[0]).double(), chosen(inputs[0]).double()
    return float((expected - actual).abs().max() / expected.abs().max())


def _compare(
    expected: Any, actual: Any, tol: float | None, entries: tuple[LayerSpeed, ...]
) -> float:
    """The largest difference of the outputs, relative to the largest output.

    Raises:
        RuntimeError: It is larger than the tolerance.
    """
    pairs = list(zip(leaves(actual), leaves(expected), strict=True))
    if not pairs:
        raise ValueError(
            f"the model returns {type(expected).__name__}, in which no tensors are found to compare"
        )
    largest = 0.0
    for ours, theirs in pairs:
        if not theirs.is_floating_point() or not theirs.numel():
            continue  # a label may change where two logits are equal up to rounding
        allowed = math.sqrt(torch.finfo(theirs.dtype).eps) if tol is None else tol
        ours, theirs = ours.cpu().double(), theirs.cpu().double()
        scale = theirs[theirs.isfinite()].abs().max().item() if theirs.isfinite().any() else 0.0
        differences = torch.where(ours == theirs, 0.0, (ours - theirs).abs())  # infinite ones, too
        difference = differences.max().item()
        if not difference <= allowed * scale:  # nan is no agreement either
            worst = max(entries, key=lambda entry: entry.error)
            raise RuntimeError(
                f"the accelerated model differs from the model by {difference:.2g} in outputs of "
                f"up to {scale:.2g}, more than tol={allowed:.1g} allows; of its layers "
                f"{worst.name!r}, {worst.way.layout}, differs most, by {worst.error:.1e}"
            )
        largest = max(largest, difference / scale if scale else 0.0)
    return largest
