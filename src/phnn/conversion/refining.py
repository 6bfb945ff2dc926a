"""All layers together: a short descent on the calibration data, without labels.

Layers that were fitted one after the other do not know what later layers can mend. A few passes of
gradient descent over the same data let all of them move at once: towards the outputs of the
original, and at every converted layer towards what the original computes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from phnn.conversion.calibration import Calibration, evaluating, first_tensor
from phnn.conversion.fitting import Progress, measure_distance

__all__ = ["norm_state", "refine"]

RATE = 1e-2  # of Adam, relative to the size of each tensor, for a network that is FAR away
FAR = 0.1  # distance of the outputs; the rate falls with its root, as nearer networks need less
AVERAGE = 0.97  # decay of the running mean of the parameters, which is what is kept
WARM_UP = 10  # steps
NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


def refine(
    converted: nn.Module,
    original: nn.Module,
    names: Sequence[str],
    calibration: Calibration,
    epochs: int,
    progress: Progress | None = None,
) -> float | None:
    """Train a converted model in place to follow the original; keep the best of all passes.

    Only converted layers and normalisations change. Judged and kept is a running mean of the
    parameters: single steps are noisy.

    Args:
        converted: The converted model.
        original: The model that it was made of.
        names: Of the layers that were converted or fitted.
        calibration: The data.
        epochs: Passes over the data.
        progress: Told what is done, how far, and of how much.

    Returns:
        The distance of the outputs on held-out data; None where that did not fall, or where the
        model gives no gradients.
    """
    parameters = _parameters(converted, names)
    expected = calibration.outputs(original)
    start = best = measure_distance(expected, calibration.outputs(converted))
    rate = RATE * min(1.0, (start / FAR) ** 0.5)
    groups = [{"params": [p], "lr": rate * _size(p)} for p in parameters]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
    calls = calibration.fitting
    steps = epochs * len(calls)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - step / max(steps, 1))
    )
    generator = torch.Generator().manual_seed(0)
    kept, mean = _copy(parameters), _copy(parameters)
    done = 0
    with _learning(converted, parameters), evaluating(converted), evaluating(original):
        for _ in range(epochs):
            for index in torch.randperm(len(calls), generator=generator).tolist():
                if progress is not None:
                    progress("refining all layers", done, steps)
                with torch.enable_grad():
                    loss = _loss(converted, original, names, calibration, calls[index])
                if loss is None or not loss.requires_grad:
                    return None
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                done += 1
                decay = min(AVERAGE, done / (done + WARM_UP))
                for average, parameter in zip(mean, parameters, strict=True):
                    average.lerp_(parameter.detach(), 1 - decay)
            current = _copy(parameters)
            _write(parameters, mean)
            distance = measure_distance(expected, calibration.outputs(converted))
            if distance < best:  # never for NaN
                best, kept = distance, _copy(mean)
            _write(parameters, current)
        _write(parameters, kept)
    return best if best < start else None


def _copy(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def _write(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def norm_state(model: nn.Module) -> dict[str, Tensor]:
    """Return all that normalisations hold, by key."""
    return {
        f"{name}.{key}".lstrip("."): value
        for name, module in model.named_modules()
        if isinstance(module, NORMS)
        for key, value in module.state_dict().items()
    }


def _parameters(model: nn.Module, names: Sequence[str]) -> list[nn.Parameter]:
    """Return what may change: tensors that converted layers and normalisations hold."""
    modules = [part for name in names for part in model.get_submodule(name).modules()]
    modules += [module for module in model.modules() if isinstance(module, NORMS)]
    found = {id(p): p for module in modules for p in module.parameters(recurse=False)}
    return [p for p in found.values() if p.is_floating_point()]


def _size(parameter: Tensor) -> float:
    return float(parameter.detach().float().square().mean().sqrt().clamp_min(1e-2))


def _loss(
    converted: nn.Module,
    original: nn.Module,
    names: Sequence[str],
    calibration: Calibration,
    call: Any,
) -> Tensor | None:
    """Return the error of the outputs plus the mean error of the layers, each relative."""
    with torch.no_grad(), _watching(original, names) as targets:
        target = first_tensor(calibration.run(original, call))
    with _watching(converted, names) as found:
        output = first_tensor(calibration.run(converted, call))
    if output is None or target is None:
        return None
    loss = _relative(output, target, 0)
    pairs = [pair for name in found for pair in zip(found[name], targets[name], strict=False)]
    for value, wanted in pairs:
        loss = loss + _relative(value, wanted, (0, *range(2, wanted.dim()))) / len(pairs)
    return loss


def _relative(value: Tensor, wanted: Tensor, axes: int | tuple[int, ...]) -> Tensor:
    value, wanted = value.float(), wanted.float()
    variation = (wanted - wanted.mean(axes, keepdim=True)).square().mean().clamp_min(1e-12)
    return (value - wanted).square().mean() / variation


@contextmanager
def _watching(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Collect what some modules return while the model runs."""
    found: dict[str, list[Tensor]] = {}
    handles = []
    for name in names:

        def see(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            first = first_tensor(output)  # of a recurrent layer the outputs, not the states
            if first is not None:
                found.setdefault(name, []).append(first)

        handles.append(model.get_submodule(name).register_forward_hook(see))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _learning(model: nn.Module, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let only some parameters learn, and restore what was; gradients are left as they were."""
    flags = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    chosen = {id(p) for p in parameters}
    for parameter, *_ in flags:
        parameter.grad = None
        parameter.requires_grad_(id(parameter) in chosen)
    try:
        yield
    finally:
        for parameter, learns, gradient in flags:
            parameter.grad = None
            parameter.requires_grad_(learns)
            parameter.grad = gradient
