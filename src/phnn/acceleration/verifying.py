"""Whether an accelerated model computes what the model does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phnn.acceleration.observation import Observation
from phnn.acceleration.report import LayerSpeed
from phnn.runtimes import GraphRuntime, Runtime
from phnn.runtimes.nested import compare, copy_tensors, leaves

LABELS = 0.01  # share of them that may differ, where two logits are equal up to rounding


def verify(
    seen: Observation,
    fast: nn.Module,
    tol: float | None,
    entries: Sequence[LayerSpeed],
    has_fused: bool,
    runtime: Runtime,
) -> float:
    """Return the largest difference of the outputs, relative to the largest output.

    Args:
        seen: The model and the example.
        fast: The accelerated model.
        tol: Largest difference that is accepted; half of the digits of the outputs by default.
        entries: What was made of the layers.
        has_fused: Whether batch norms were fused.
        runtime: Where the model will run; a graph is compared, too.

    Raises:
        RuntimeError: It is larger than the tolerance.
    """
    with torch.no_grad():
        actual = fast(*copy_tensors(seen.args), **copy_tensors(seen.kwargs))
    found = {"": leaves(actual)}
    if isinstance(runtime, GraphRuntime):
        call = (copy_tensors(seen.args), copy_tensors(seen.kwargs))
        found[f" in {runtime.name}"] = runtime.prepare(fast, [call])()[0]
    return max(
        _compare(outputs, leaves(seen.expected), tol, entries, has_fused, where)
        for where, outputs in found.items()
    )


def _compare(
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    tol: float | None,
    entries: Sequence[LayerSpeed],
    has_fused: bool,
    where: str,
) -> float:
    pairs = list(zip(actual, expected, strict=True))
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
                f"the accelerated model{where} differs from the model by {difference:.2g} in "
                f"outputs of up to {scale:.2g}, more than tol={allowed:.1g} allows; the layer "
                f"{worst.name!r} ({worst.form.label}) differs most, by {worst.error:.1e}"
                + ("; fuse=False does not fuse batch norms" if has_fused else "")
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
