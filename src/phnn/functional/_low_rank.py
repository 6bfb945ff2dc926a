"""Layers with n = (out, 1) or (1, in): two plain layers, at the price of two plain layers."""

from __future__ import annotations

from torch import Tensor, nn

from phnn.functional._choice import Operation
from phnn.functional._mixing import CONVOLUTIONS
from phnn.functional._sizes import Sizes


def apply_low_rank(
    operation: Operation, input: Tensor, A: Tensor, F: Tensor, bias: Tensor | None, sizes: Sizes
) -> Tensor:
    """Return k×k and then 1×1 for n = (out, 1), 1×1 and then k×k for n = (1, in).

    Few operations matter here: each view of a parameter takes microseconds, twice in training.
    """
    dims = sizes.dims
    if sizes.n_in == 1 == sizes.outputs:
        filtered = operation(input, F, None)
        if not dims:
            return nn.functional.linear(filtered, A.squeeze(2).mT, bias)
        weight = A.transpose(0, 1)  # (out, terms, 1): the last axis serves as one of the kernel
        for _ in range(dims - 1):
            weight = weight.unsqueeze(-1)
        return CONVOLUTIONS[dims - 1](filtered, weight, bias)
    if not dims:
        mixed = nn.functional.linear(input, A.squeeze(1))
        return operation(mixed, F.view(sizes.terms, -1).mT, bias)
    mixed = CONVOLUTIONS[dims - 1](input, A.view(sizes.terms, -1, *(1,) * dims))
    # a component has one channel: its axis is free for the terms
    return operation(mixed, F.unflatten(0, (sizes.terms, -1)).transpose(0, 1).squeeze(2), bias)
