"""Assertions about PH layers, for the tests of this library and for yours."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import torch
from torch import Tensor, nn

from phnn.nn import PHLayer

__all__ = [
    "assert_close",
    "assert_equals_dense",
    "assert_every_parameter_learns",
    "assert_round_trips",
    "assert_variance_of_torch",
]

# relative to the largest entry: the rounding of sums over some thousand products
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


def assert_close(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
    """Assert equality up to rounding, relative to the largest expected entry.

    Args:
        actual: What was computed.
        expected: What it should be; the comparison uses its precision.
        tolerance: The accepted relative difference; by default that of the coarser dtype.
    """
    if tolerance is None:
        tolerance = max(TOLERANCES[actual.dtype], TOLERANCES[expected.dtype])
    finite = expected.detach()[expected.isfinite()]
    scale = max(finite.abs().max().item(), 1e-30) if finite.numel() else 1.0
    torch.testing.assert_close(
        actual, expected, rtol=0, atol=tolerance * scale, check_dtype=False, equal_nan=False
    )


def assert_equals_dense(layer: PHLayer, input: Tensor) -> None:
    """Assert that a layer computes what the torch layer with its assembled weight computes."""
    assert_close(layer(input), layer.to_dense()(input))


def assert_every_parameter_learns(model: nn.Module, *inputs: Any) -> None:
    """Assert that each parameter receives a finite gradient that is not zero everywhere."""
    model.zero_grad()
    model(*inputs).square().mean().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None or not parameter.grad.isfinite().all():
            raise AssertionError(f"{name} received the gradient {parameter.grad}")
        if not parameter.grad.any():
            raise AssertionError(f"the gradient of {name} is zero everywhere")
    model.zero_grad()


def assert_round_trips(model: nn.Module, *inputs: Any) -> None:
    """Assert that a deep copy, a pickle and a state dict give the same outputs, bit for bit."""
    expected = model(*inputs)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = {"deepcopy": copy.deepcopy(model), "pickle": torch.load(buffer, weights_only=False)}
    restored = copy.deepcopy(model)
    for tensor in [*restored.parameters(), *restored.buffers()]:
        tensor.data.fill_(math.nan if tensor.is_floating_point() else -1)
    restored.load_state_dict(model.state_dict())
    copies["state_dict"] = restored
    for kind, other in copies.items():
        if not torch.equal(other(*inputs), expected):
            raise AssertionError(f"the {kind} of the model has other outputs")


def assert_variance_of_torch(layer: PHLayer, tolerance: float = 0.05) -> None:
    """Assert that the assembled weight has the variance of the torch layer's default weight.

    Args:
        layer: A new layer, large enough for a meaningful sample variance.
        tolerance: Accepted relative error of the standard deviation.
    """
    dense = layer.to_dense()
    dense.reset_parameters()  # type: ignore[operator]
    actual, expected = layer.weight.std().item(), dense.get_parameter("weight").std().item()
    if abs(actual / expected - 1) > tolerance:
        raise AssertionError(f"std of H is {actual:.4g}, that of torch's weight {expected:.4g}")
