"""PH layers in the way that is fastest where the model runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from phnn.acceleration.calls import (
    compare,
    copy_tensors,
    find_reads,
    leaves,
    record_calls,
    split_arguments,
)
from phnn.acceleration.places import Place, check_plan, find_factors, find_places, put_last
from phnn.acceleration.plans import read_plan
from phnn.acceleration.speed import Acceleration, LayerSpeed
from phnn.acceleration.trials import Trial, race, try_formats
from phnn.conversion.folding import fold_layers, fuse_batch_norms, trace
from phnn.conversion.sites import Slot, find_ph_slots, hooks, replace_modules
from phnn.conversion.specs import LayerSpec
from phnn.forms.layouts import tile
from phnn.runtimes.timing import count_multiplications

LABELS = 0.01  # share of them that may differ, where two logits are equal up to rounding


@torch.inference_mode(False)
def accelerate(
    model: nn.Module,
    example_input: Any,
    *,
    plan: Mapping[str, Any] | str | Path | None = None,
    rank: int | None = None,
    tol: float | None = None,
    fuse: bool = True,
    tiles: bool = True,
    rounds: int = 7,
    seconds: float = 10.0,
    progress: Callable[[int, int], None] | None = None,
) -> nn.Module:
    """The fastest model that computes the same, for inference.

    Each PH layer is replaced by a module of torch alone: a plain layer with the assembled weight;
    a plain layer with the filters for every component, and the algebra after it; or the R products
    of the algebra, R/n² of the multiplications, between two mixings of the components. Convolutions
    of 3×3 places may also be computed in tiles, with a quarter of the multiplications. Which is the
    fastest depends on sizes and on the machine, so all are timed, on the inputs that the layer
    receives from the example. The result needs nothing of this library: it pickles (without
    this library installed, delete its `phnn_report` before), moves, compiles, and is exported by
    `torch.export` and to ONNX.

    Args:
        model: A model in evaluation mode with PH layers; it is not changed.
        example_input: What the model will be used on: a tensor, a tuple of arguments or a dict of
            named ones. Its sizes, device and type are those that are timed. Its memory format is
            kept when its channels are last; otherwise both formats are tried, for all
            convolutions and for each alone.
        plan: Choices to repeat, `model.phnn_report.plan` or a JSON file of it; nothing is timed, so
            the same plan gives the same model, however long it takes.
        rank: Number of products for all layers; the fewest that are found for each by default.
        tol: Largest difference of the outputs that is accepted, relative to the largest output;
            by default half of the digits of their type.
        fuse: Also multiply batch norms into plain layers before them. Where `torch.fx` cannot trace
            the model this is left out, and the report says so.
        tiles: Also try 3×3 convolutions in tiles. They take more memory, up to four times the
            weights, and round about twice as coarsely in float32, more in lower precision: leave
            them out for a model that will run in autocast, and for export with sizes of images
            left open.
        rounds: How often each way is timed at least, short ones more often; the least time counts.
        seconds: Processor time to find the products of each of the different algebras; those that
            take longer, as for large n, have none.
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
    _check(model, rounds)
    found = find_ph_slots(model)
    slots = [slot for slot in found if not slot.note]
    notes = [f"{slot.name} is left alone: {slot.note}" for slot in found if slot.note]
    if not slots:
        raise ValueError(
            f"{type(model).__name__} has no PH layers to accelerate; phnn.convert makes them, and "
            "phnn.to_dense(model, fuse=True) fuses batch norms alone"
            + "".join(f"; {note}" for note in notes)
        )
    ways = None if plan is None else read_plan(plan, [slot.name for slot in slots])
    graphs, note = _trace(model) if fuse else ((), "")
    args, kwargs = split_arguments(example_input)
    expected, calls = record_calls(model, slots, args, kwargs)
    if not leaves(expected):
        raise ValueError(
            f"the model returns {type(expected).__name__}, in which no tensors are found to compare"
        )
    # what cannot be copied is refused here, before any work
    read = find_reads(model, slots, args, kwargs)
    places = find_places(model, slots, calls, read, graphs)
    if ways is None:
        find_factors(places, dict.fromkeys(calls, rank), seconds)
        trials, folded = try_formats(model, places, args, kwargs, rounds, progress, tiles)
    else:
        ranks = {name: way.rank for name, way in ways.items() if way.rank is not None}
        find_factors(places, ranks, seconds=math.inf)
        check_plan(places, ways)
        trials, folded = [Trial(ways)], 0
    made = [_assemble(model, places, trial, graphs) for trial in trials]
    times: dict[str, float] = {}
    best = 0
    if ways is None:
        times, best = race(model, [fast for fast, _ in made], folded, args, kwargs, rounds)
    fast, fused = made[best]
    entries = tuple(_describe(place, trials[best]) for place in places)
    with torch.no_grad():
        actual = fast(*copy_tensors(args), **copy_tensors(kwargs))
    difference = _compare(expected, actual, tol, entries, bool(fused))
    note = "; ".join(filter(None, [note, *notes]))
    fast.phnn_report = Acceleration(entries, times, difference, fused, note)  # type: ignore[assignment]
    return fast


def _check(model: nn.Module, rounds: int) -> None:
    if rounds < 1:
        raise ValueError(f"rounds is at least 1, got rounds={rounds}")
    for module in model.modules():
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise ValueError(
                "the model is compiled, and does not show what its layers receive; accelerate it "
                "first and compile the result"
            )
    training = [name for name, module in model.named_modules() if module.training]
    if training:
        where = "the model is" if model.training else f"its module {training[0]!r} is"
        raise ValueError(
            f"acceleration is for inference and {where} in training mode; call model.eval() first"
        )


def _trace(model: nn.Module) -> tuple[Sequence[fx.Graph], str]:
    try:
        return trace(model), ""
    except ValueError as error:
        reason = str(error.__cause__).splitlines() or [""]
        return (), f"no batch norms fused, as torch.fx cannot trace the model ({reason[0]})"


def _assemble(
    model: nn.Module, places: list[Place], trial: Trial, graphs: Sequence[fx.Graph]
) -> tuple[nn.Module, int]:
    """A copy of the model with its layers computed as chosen, and the number of fused norms."""
    slots = [place.slot for place in places]
    layers = fold_layers(model, slots)  # anew, for fusing changes their weights
    for place in places:
        way = trial.ways[place.name]
        if not way.fuses:
            layers[place.name] = place.build(way)
    fast = replace_modules(model, slots, layers, inplace=False)
    fused = fuse_batch_norms(fast, graphs) if graphs else []
    for place in places:
        way = trial.ways[place.name]
        if way.is_folded and way.channels_last:
            put_last(layers[place.name])
    formats = [trial.ways[place.name].channels_last for place in places if place.has_format]
    if formats and all(formats):  # then the convolutions that are no PH layers, too
        made = {module for layer in layers.values() for module in layer.modules()}
        put_last(fast, besides=made)
    return _tile(fast, layers, trial), len(fused)


def _tile(fast: nn.Module, layers: Mapping[str, nn.Module], trial: Trial) -> nn.Module:
    """The model with the plain layers in tiles that are to be: only now have they their norms."""
    tiled = dict(layers)  # all of them, so that none is copied
    for name, layer in layers.items():
        way = trial.ways[name]
        if way.fuses and way.has_tiles:
            assert isinstance(layer, nn.Conv2d)
            tiled[name] = tile(layer, way.layout, way.channels_last)
    if tiled == layers:
        return fast
    slots = [Slot(layer, [name], None) for name, layer in layers.items()]
    return replace_modules(fast, slots, tiled, inplace=False)


def _describe(place: Place, trial: Trial) -> LayerSpeed:
    way = trial.ways[place.name]
    chosen = place.build(way)
    inputs = [call.draw().to(place.layer.F.dtype) for call in place.calls.elements()]
    before, after = (count_multiplications(module, *inputs) for module in (place.folded, chosen))
    notes = [
        place.hindrance or place.declined,
        *(f"its {kind} are lost" for kind in hooks(place.layer)),
    ]
    if place.norm is not None and not way.fuses:
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
        expected, actual = (module(inputs[0]).cpu().double() for module in (folded, chosen))
    difference, scale = (float(value.abs().max()) for value in (expected - actual, expected))
    if not scale:
        return math.inf if difference else 0.0
    return difference / scale


def _compare(
    expected: Any,
    actual: Any,
    tol: float | None,
    entries: tuple[LayerSpeed, ...],
    has_fused: bool,
) -> float:
    """The largest difference of the outputs, relative to the largest output.

    Raises:
        RuntimeError: It is larger than the tolerance.
    """
    pairs = list(zip(leaves(actual), leaves(expected), strict=True))
    numbers = [pair for pair in pairs if pair[1].is_floating_point() or pair[1].is_complex()]
    if not numbers:
        return _compare_labels(pairs)
    largest = 0.0
    for ours, theirs in numbers:  # labels may change where two logits are equal up to rounding
        allowed = math.sqrt(torch.finfo(theirs.dtype).eps) if tol is None else tol
        difference, scale = compare(ours, theirs)
        if not difference <= allowed * scale:  # nan is no agreement either
            worst = max(entries, key=lambda entry: entry.error)
            raise RuntimeError(
                f"the accelerated model differs from the model by {difference:.2g} in outputs of "
                f"up to {scale:.2g}, more than tol={allowed:.1g} allows; of its layers "
                f"{worst.name!r}, {worst.way.layout}, differs most, by {worst.error:.1e}"
                + ("; batch norms were fused, which fuse=False leaves out" if has_fused else "")
            )
        largest = max(largest, difference / scale if scale else 0.0)
    return largest


def _compare_labels(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """The largest share of labels that differ, where a model returns nothing else.

    Raises:
        RuntimeError: It is larger than what ties explain.
    """
    largest = 0.0
    for ours, theirs in pairs:
        share = float((ours != theirs).double().mean()) if theirs.numel() else 0.0
        if share > LABELS:
            raise RuntimeError(
                f"the accelerated model returns other labels than the model for {share:.0%}, more "
                f"than the {LABELS:.0%} that ties may explain; fuse=False or rank= may help"
            )
        largest = max(largest, share)
    return largest
