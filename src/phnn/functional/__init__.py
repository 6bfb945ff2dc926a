r"""The arithmetic of PH layers on plain tensors.

Every function computes the same equation, with input components :math:`x_b`, output components
:math:`y_a` and Kronecker terms :math:`i`:

.. math:: y_a = \sum_i \sum_b A[i, a, b] \cdot (F_i * x_b) + \mathrm{bias}_a

The names and the order of the arguments are those of `torch.nn.functional`, with the pair `A, F` in
the place of the weight. A tensor A is assembled with F into the weight or, where the weight would
be larger than all :math:`F_i * x_b`, applied to these. An A given as `Factors` of R products is
computed with R multiplications in the place of n², unless its products would be too narrow:

.. math:: y_a = \sum_r W[a, r] \cdot \Bigl( \bigl(\textstyle\sum_i U[i, r] \, F_i\bigr) *
    \bigl(\sum_b V[b, r] \, x_b\bigr) \Bigr) + \mathrm{bias}_a
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from phnn.functional._assembly import kronecker_sum, mix_filters
from phnn.functional._factors import Factors, each, outside_autocast
from phnn.functional._filtering import (
    apply_algebra,
    count_places,
    filter_first,
    is_small,
    may_filter_first,
)
from phnn.functional._products import mix_and_multiply, pays

__all__ = [
    "Factors",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "each",
    "kronecker_sum",
    "linear",
]

Size = int | Sequence[int]


def _convolve(
    function: Callable[..., Tensor],
    input: Tensor,
    A: Tensor | Factors,
    F: Tensor,
    bias: Tensor | None,
    groups: int,
    options: dict[str, Any],
    transposed: bool = False,
) -> Tensor:
    """One of torch's convolutions, in the way that takes the least time."""
    if isinstance(A, Factors):
        if pays(A, F, groups):
            return mix_and_multiply(function, input, A, F, bias, groups, options, transposed)
        A = A.tensor()
    dims = F.dim() - 2
    if not transposed and input.dim() - dims in (1, 2):
        may = may_filter_first(input, A, F, bias, input.shape[-dims - 1], groups)
        if may and is_small(count_places(input, dims, options["stride"]), A, F):
            return filter_first(function, input, A, F, bias, groups, options)
    H = kronecker_sum(A, F, groups, transposed)
    return function(input, H, bias, groups=groups, **options)


def linear(input: Tensor, A: Tensor | Factors, F: Tensor, bias: Tensor | None = None) -> Tensor:
    """A fully connected PH layer; see `torch.nn.functional.linear`."""
    if not isinstance(A, Factors):
        places = math.prod(input.shape[:-1])
        if not (may_filter_first(input, A, F, bias, input.shape[-1]) and is_small(places, A, F)):
            return nn.functional.linear(input, kronecker_sum(A, F), bias)
        terms, n, _ = A.shape
        filtered = nn.functional.linear(input.unflatten(-1, (n, -1)), F)
        output = apply_algebra(A, filtered.reshape(places, n * terms, -1))
        output = output.view(*input.shape[:-1], -1)
        return output if bias is None else output + bias
    U, V, W = A
    n, rank = V.shape
    filters = outside_autocast(mix_filters, F, U, 1).unflatten(0, (rank, -1))
    mixed = torch.einsum("br,...bc->r...c", V, input.unflatten(-1, (n, -1)))
    products = torch.einsum("roc,r...c->r...o", filters, mixed)
    output = torch.einsum("ar,r...o->...ao", W, products).flatten(-2)
    return output if bias is None else output + bias.to(output.dtype)


def conv1d(
    input: Tensor,
    A: Tensor | Factors,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """A 1-d PH convolution; see `torch.nn.functional.conv1d`."""
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    return _convolve(nn.functional.conv1d, input, A, F, bias, groups, options)


def conv2d(
    input: Tensor,
    A: Tensor | Factors,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """A 2-d PH convolution; see `torch.nn.functional.conv2d`."""
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    return _convolve(nn.functional.conv2d, input, A, F, bias, groups, options)


def conv3d(
    input: Tensor,
    A: Tensor | Factors,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """A 3-d PH convolution; see `torch.nn.functional.conv3d`."""
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    return _convolve(nn.functional.conv3d, input, A, F, bias, groups, options)


def conv_transpose1d(
    input: Tensor,
    A: Tensor | Factors,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """A 1-d transposed PH convolution; see `torch.nn.functional.conv_transpose1d`."""
    options = {
        "stride": stride,
        "padding": padding,
        "output_padding": output_padding,
        "dilation": dilation,
    }
    return _convolve(
        nn.functional.conv_transpose1d, input, A, F, bias, groups, options, transposed=True
    )


def conv_transpose2d(
    input: Tensor,
    A: Tensor | Factors,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """A 2-d transposed PH convolution; see `torch.nn.functional.conv_transpose2d`."""
    options = {
        "stride": stride,
        "padding": padding,
        "output_padding": output_padding,
        "dilation": dilation,
    }
    return _convolve(
        nn.functional.conv_transpose2d, input, A, F, bias, groups, options, transposed=True
    )


def conv_transpose3d(
    input: Tensor,
    A: Tensor | Factors,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """A 3-d transposed PH convolution; see `torch.nn.functional.conv_transpose3d`."""
    options = {
        "stride": stride,
        "padding": padding,
        "output_padding": output_padding,
        "dilation": dilation,
    }
    return _convolve(
        nn.functional.conv_transpose3d, input, A, F, bias, groups, options, transposed=True
    )
