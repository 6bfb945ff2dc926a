"""Whether an accelerated model computes what the model does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from phnn.acceleration.observation import ObservedLayer
from phnn.acceleration.report import LayerSpeed
from phnn.acceleration.workshop import Choice, Workshop
from phnn.runtimes import GraphRuntime, Runtime
from phnn.runtimes.nested import compare, copy_tensors, leaves

CHOICES = (
    "the outputs are choices, and differ where candidates are equal up to rounding; layers compared"
)
LABELS = 0.01  # share of them that may differ, where two logits are equal up to rounding


def verify(
    workshop: Workshop,
    choice: Choice,
    fast: nn.Module,
    tol: float | None,
    entries: Sequence[LayerSpeed],
    runtime: Runtime,
) -> tuple[float, str]:
    """Return the largest difference of the outputs, relative to the largest output, and a note.

    A model that chooses among candidates, as detectors do, may choose another one where two are
    equal up to rounding. Then its layers are compared instead, on the inputs that they receive.

    Args:
        workshop: Knows the model and the example.
        choice: The forms of the layers.
        fast: The accelerated model.
        tol: Largest difference that is accepted; half of the digits of the outputs by default.
        entries: What was made of the layers.
        runtime: Where the model will run; a graph is compared, too.

    Raises:
        RuntimeError: It is larger than the tolerance.
    """
    seen, has_fused = workshop.seen, bool(workshop.count_fused(choice))
    with torch.no_grad():
        actual = fast(*copy_tensors(seen.args), **copy_tensors(seen.kwargs))
    found = {"": leaves(actual)}
    if isinstance(runtime, GraphRuntime):
        call = (copy_tensors(seen.args), copy_tensors(seen.kwargs))
        found[f" in {runtime.name}"] = runtime.prepare(fast, [call])()[0]
    expected = leaves(seen.expected)
    try:
        differences = [
            _compare(outputs, expected, tol, entries, has_fused, where)
            for where, outputs in found.items()
        ]
        return max(differences), ""
    except RuntimeError as error:
        if not any(_chooses(outputs, expected) for outputs in found.values()):
            raise
        return compare_layers(workshop, choice, tol, error), CHOICES


def _chooses(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Return whether outputs are choices that changed: their number, or labels among them."""
    if [output.shape for output in actual] != [output.shape for output in expected]:
        return True
    labels = [pair for pair in zip(actual, expected, strict=True) if not _is_number(pair[1])]
    return any(not torch.equal(ours, theirs) for ours, theirs in labels)


def _is_number(output: Tensor) -> bool:
    return output.is_floating_point() or output.is_complex()


def compare_layers(
    workshop: Workshop, choice: Choice, tol: float | None, outputs: RuntimeError
) -> float:
    """Return the largest difference of a layer, relative to its largest output.

    Args:
        workshop: Knows the model and the example.
        choice: The forms of the layers.
        tol: Largest difference that is accepted.
        outputs: How the outputs of the model differ.

    Raises:
        RuntimeError: It is larger than the tolerance.
    """
    seen, largest = workshop.seen, 0.0

    def check(layer: ObservedLayer) -> Callable[..., None]:
        module = workshop.build(layer.name, choice[layer.name])
        before = layer.source.norm or nn.Identity()
        after = workshop.norm_after(layer.name, choice[layer.name]) or nn.Identity()

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Tensor) -> None:
            nonlocal largest
            theirs, ours = before(y), after(module(*args, **kwargs))
            allowed = math.sqrt(torch.finfo(theirs.dtype).eps) if tol is None else tol
            difference, scale = compare(ours, theirs)
            if not difference <= allowed * scale:
                raise RuntimeError(
                    f"{outputs}; the outputs are choices, which rounding may change, but the layer "
                    f"{layer.name!r} differs by {difference:.2g} in outputs of up to {scale:.2g} "
                    "as well"
                ) from outputs
            largest = max(largest, difference / scale if scale else 0.0)

        return hook

    handles = [
        layer.site.module.register_forward_hook(check(layer), with_kwargs=True)
        for layer in workshop.layers.values()
    ]
    try:
        with torch.no_grad():
            seen.model(*copy_tensors(seen.args), **copy_tensors(seen.kwargs))
    finally:
        for handle in handles:
            handle.remove()
    return largest


def _compare(
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    tol: float | None,
    entries: Sequence[LayerSpeed],
    has_fused: bool,
    where: str,
) -> float:
    shapes = [[tuple(output.shape) for output in outputs] for outputs in (actual, expected)]
    if shapes[0] != shapes[1]:
        raise RuntimeError(
            f"the accelerated model{where} returns tensors of shapes {shapes[0][:5]}, the model "
            f"of {shapes[1][:5]}"
        )
    pairs = list(zip(actual, expected, strict=True))
    numbers = [pair for pair in pairs if _is_number(pair[1])]
    if not numbers:
        return _compare_labels(pairs)
    largest = 0.0
    for ours, theirs in numbers:  # labels may change where two logits are equal up to rounding
        allowed = math.sqrt(torch.finfo(theirs.dtype).eps) if tol is None else tol
        difference, scale = compare(ours, theirs)
        if not difference <= allowed * scale:  # nan is no agreement either
            worst = max(entries, key=lambda entry: entry.error)
            raise RuntimeError(
                f"the accelerated model{where} differs from the model by {difference:.2g} in "
                f"outputs of up to {scale:.2g}, more than tol={allowed:.1g} allows; the layer "
                f"{worst.name!r} ({worst.form.label}) differs most, by {worst.error:.1e}"
                + ("; try fuse=False, which keeps batch norms separate" if has_fused else "")
            )
        largest = max(largest, difference / scale if scale else 0.0)
    return largest


def _compare_labels(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the largest share of labels that differ, where a model returns nothing else.

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
