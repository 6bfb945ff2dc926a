"""Which size of each layer keeps a whole model within a number of parameters at the least error."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phnn import decompose
from phnn.conversion.sites import Choice, Slot

LARGEST = 16  # of the dimensions that are tried: the spectrum of n costs n⁴ memory and n⁶ time


class Option(NamedTuple):
    """One size that a layer could have; None is the dense layer itself."""

    parameters: int
    error: float
    choice: Choice | None


def choose_by_budget(
    model: nn.Module, slots: Sequence[Slot], budget: float, calibration: Any
) -> dict[str, Choice]:
    """Chooses n and terms of each layer; layers that are best kept dense get none.

    With e the relative error of a layer's weight, or with calibration of its output, 1 − e² of the
    signal's energy passes; along a chain the shares multiply, so −log(1 − e²) is what adds up. On
    the lower convex hull of a layer's sizes each further parameter buys less than the one before,
    so taking the best offer of all layers until the budget is spent is the optimum there.

    Args:
        model: The model whose parameters are counted.
        slots: Its layers.
        budget: Share of the parameters to keep.
        calibration: Input of the model, or None.
    """
    open_slots = [slot for slot in slots if slot.is_open]
    measure: Callable[[Slot, int], Tensor] = _weight_errors
    if calibration is not None:
        measure = _output_errors(_capture(model, open_slots, calibration))
    hulls = {slot.name: _hull(_options(slot, measure)) for slot in open_slots}
    total = sum(parameter.numel() for parameter in model.parameters())
    fixed = total - sum(slot.weight.numel() for slot in open_slots)
    chosen = _spend(hulls, limit=int(budget * total) - fixed)
    if chosen is None:
        least = fixed + sum(hull[0].parameters for hull in hulls.values())
        raise ValueError(
            f"budget={budget} of {total:,} parameters cannot be met: the smallest layers leave "
            f"{least:,}, {least / total:.1%}"
        )
    return {name: option.choice for name, option in chosen.items() if option.choice is not None}


def _options(slot: Slot, measure: Callable[[Slot, int], Tensor]) -> list[Option]:
    size = slot.weight.numel()
    options = [Option(size, 0.0, None)]
    for n in decompose.divisors(slot.weight.shape, slot.groups, most=LARGEST):
        # a layer that passes nothing costs as much as 28 layers that pass half
        curve = (1 - measure(slot, n).square()).clamp_min(1e-12).log().neg().tolist()
        for terms in range(1, n * n):
            parameters = terms * n * n + terms * size // (n * n)
            if parameters < size:
                options.append(Option(parameters, curve[terms], Choice(n, terms)))
    return options


def _hull(options: list[Option]) -> list[Option]:
    """The options that no mixture of two others beats, smallest first."""
    hull: list[Option] = []
    for option in sorted(options, key=itemgetter(0, 1)):
        if hull and option.error >= hull[-1].error:
            continue
        while len(hull) > 1 and _slope(hull[-2], option) >= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(option)
    return hull


def _slope(small: Option, large: Option) -> float:
    """Error removed by each parameter on the way from one option to the next."""
    return (small.error - large.error) / max(large.parameters - small.parameters, 1)


def _spend(hulls: dict[str, list[Option]], limit: int) -> dict[str, Option] | None:
    chosen = {name: hull[0] for name, hull in hulls.items()}
    left = limit - sum(option.parameters for option in chosen.values())
    if left < 0:
        return None
    offers = [(-_slope(hull[0], hull[1]), name, 1) for name, hull in hulls.items() if len(hull) > 1]
    heapq.heapify(offers)
    while offers:
        _, name, step = heapq.heappop(offers)
        hull = hulls[name]
        cost = hull[step].parameters - hull[step - 1].parameters
        if cost > left:
            continue  # what is left may still buy a step of another layer
        left -= cost
        chosen[name] = hull[step]
        if step + 1 < len(hull):
            heapq.heappush(offers, (-_slope(hull[step], hull[step + 1]), name, step + 1))
    return chosen


def _weight_errors(slot: Slot, n: int) -> Tensor:
    """Relative error of the weight after 0, 1, … n² terms."""
    values = decompose.spectrum(slot.weight, n, slot.groups, slot.transposed)
    return decompose.errors(values)


def _output_errors(inputs: dict[str, Tensor]) -> Callable[[Slot, int], Tensor]:
    """The same for the layer's output on the captured inputs."""

    def measure(slot: Slot, n: int) -> Tensor:
        assert slot.twin is not None
        x = inputs[slot.name]
        found = decompose.nearest(
            slot.weight, n, terms=n * n, groups=slot.groups, transposed=slot.transposed
        )
        term = slot.twin.like(slot.dense, n=n, terms=1).eval()
        filters = found.F.unflatten(0, (slot.groups, n * n, -1))
        with torch.no_grad():
            if term.bias is not None:
                term.bias.zero_()
            outputs = []
            for i in range(n * n):
                term.A.copy_(found.A[i : i + 1])
                term.F.copy_(filters[:, i].flatten(0, 1))
                outputs.append(term(x))
            # all terms together are the dense layer, so the tail is what is missing
            missing, errors = torch.zeros_like(outputs[0]), [0.0]
            for output in reversed(outputs):
                missing += output
                errors.append(missing.cpu().double().norm().item())
        curve = torch.tensor(errors[::-1], dtype=torch.float64)
        return curve / curve[0].clamp_min(torch.finfo(torch.float64).tiny)

    return measure


def _capture(model: nn.Module, slots: Sequence[Slot], calibration: Any) -> dict[str, Tensor]:
    """The first input that each layer receives when the model runs on the calibration data."""
    inputs: dict[str, Tensor] = {}
    handles = []
    for slot in slots:

        def keep(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = slot.name
        ) -> None:
            inputs.setdefault(name, (*args, *kwargs.values())[0].detach())

        handles.append(slot.module.register_forward_pre_hook(keep, with_kwargs=True))
    try:
        with _evaluating(model), torch.no_grad():
            model(*calibration) if isinstance(calibration, tuple) else model(calibration)
    finally:
        for handle in handles:
            handle.remove()
    unused = [slot.name for slot in slots if slot.name not in inputs]
    if unused:
        raise ValueError(
            f"the calibration input does not reach {', '.join(unused[:5])}; exclude these layers"
        )
    return inputs


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
