"""Convolutions in R products: few multiplications of mixed components with mixed filters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from phnn.functional._assembly import mix_filters
from phnn.functional._factors import Factors, outside_autocast
from phnn.functional._formats import is_last

VECTOR = 8  # channels that torch's kernels take at a time, in float32 on most processors


def mix_and_multiply(
    function: Callable[..., Tensor],
    input: Tensor,
    A: Factors,
    F: Tensor,
    bias: Tensor | None,
    groups: int,
    options: dict[str, Any],
    transposed: bool,
) -> Tensor:
    """One of torch's convolutions, of R mixtures of the components with R of the filters."""
    U, V, W = A
    n, rank = V.shape
    dims = F.dim() - 2
    filters = outside_autocast(mix_filters, F, U, groups).unflatten(0, (groups * rank, -1))
    rows, columns = filters.shape[1:3]
    vector = _vector(F)
    if rows % vector or columns % vector:  # filled up with zeros, which the output loses again
        zeros = [0, 0] * dims + [0, -columns % vector, 0, -rows % vector]
        filters = nn.functional.pad(filters, zeros)
    inputs, outputs = (rows, columns) if transposed else (columns, rows)
    # what depends on the input runs as the convolution does, under autocast in low precision
    parts = _resize(input, groups * n, inputs + -inputs % vector, dims)
    mixed = _mix(parts, V.mT, groups, dims)
    products = function(mixed, filters.flatten(0, 1), None, groups=groups * rank, **options)
    output = _resize(_mix(products, W, groups, dims), groups * n, outputs, dims)
    if bias is None:
        return output
    return output + bias.to(output.dtype).view(-1, *(1,) * dims)


def pays(A: Factors, F: Tensor, groups: int) -> bool:
    """Whether R products take less time than the assembled weight.

    Grouped convolutions with one or two vectors of channels in a group have about a third and half
    of the speed of wide ones, and torch is slow with parts of vectors, which are filled up.
    """
    n, rank = A.V.shape
    terms = rank if A.U is None else A.U.shape[0]
    sizes = F.shape[0] // (groups * terms), F.shape[1]
    vector = _vector(F)
    filled = [size + -size % vector for size in sizes]
    speed = {VECTOR: 1 / 3, 2 * VECTOR: 1 / 2}.get(min(filled), 1.0) if vector > 1 else 1.0
    return rank * math.prod(filled) < speed * n * n * math.prod(sizes)


def _vector(F: Tensor) -> int:
    """Of how many channels a multiple is filled up to; not worth it for kernels of one place."""
    return VECTOR if math.prod(F.shape[2:]) > 1 else 1


def _resize(input: Tensor, parts: int, size: int, dims: int) -> Tensor:
    """Gives each of equal parts of the channels a size, by more zeros or by fewer channels."""
    axis = input.dim() - dims - 1
    difference = size - input.shape[axis] // parts
    if not difference:
        return input
    if is_last(input, dims):
        last = input.movedim(axis, -1).unflatten(-1, (parts, -1))
        return nn.functional.pad(last, (0, difference)).flatten(-2).movedim(-1, axis)
    pads = [0, 0] * dims + [0, difference]
    return nn.functional.pad(input.unflatten(axis, (parts, -1)), pads).flatten(axis, axis + 1)


def _mix(input: Tensor, matrix: Tensor, groups: int, dims: int) -> Tensor:
    """Replaces the components of each group by their mixtures, one for each row of the matrix."""
    axis = input.dim() - dims - 1
    space = input.shape[axis + 1 :]
    components = input.unflatten(axis, (groups, matrix.shape[1], -1))
    if is_last(input, dims):  # it remains so
        components = components.movedim((axis, axis + 1, axis + 2), (-3, -2, -1))
        mixed = torch.einsum("rb,...bc->...rc", matrix, components).flatten(-3)
        return mixed.movedim(-1, axis)
    # bmm reads the components where they are; matmul and einsum would first copy all of them
    components = components.flatten(axis + 2).flatten(0, axis)
    mixed = torch.bmm(matrix.expand(components.shape[0], -1, -1), components)
    channels = input.shape[axis] // matrix.shape[1] * matrix.shape[0]
    return mixed.view(*input.shape[:axis], channels, *space)
