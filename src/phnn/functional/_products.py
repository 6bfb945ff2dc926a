r"""R products of mixed components and mixed filters, by the CP decomposition of an algebra.

.. math:: y_a = \sum_r W[a, r] \cdot \Bigl( \bigl(\textstyle\sum_i U[i, r] \, F_i\bigr) *
    \bigl(\sum_b V[b, r] \, x_b\bigr) \Bigr)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from phnn.functional._formats import is_channels_last
from phnn.functional._mixing import Mixture, mix, mix_components
from phnn.functional._sizes import Sizes

VECTOR = 8  # channels that torch's kernels take at a time, in float32 on most processors


def whole(size: int, multiple: int = VECTOR) -> int:
    """Return the least multiple that is not smaller than a size."""
    return size + -size % multiple


def mix_filters(F: Tensor, U: Tensor | None, groups: int) -> Tensor:
    """Return the filters of the R products, Σ_i U[i, r] F_i, stacked along the first axis."""
    if U is None:
        return F
    blocks = F.unflatten(0, (groups, U.shape[0], -1))
    return torch.einsum("ir,gio...->gro...", U, blocks).flatten(0, 2)


def pad_filters(filters: Tensor, blocks: int, multiple: int) -> Tensor:
    """Return the filters with the rows and columns of each block zero-padded to a multiple."""
    filters = filters.unflatten(0, (blocks, -1))
    rows, columns = filters.shape[1:3]
    if rows % multiple or columns % multiple:
        zeros = [0, 0] * (filters.dim() - 3) + [0, -columns % multiple, 0, -rows % multiple]
        filters = nn.functional.pad(filters, zeros)
    return filters.flatten(0, 1)


def multiply_grouped(
    input: Tensor,
    mix_in: Tensor,
    convolve: Callable[[Tensor], Tensor],
    mix_out: Tensor,
    sizes: Sizes,
    rank: int,
    multiple: int = 1,
    channels_last: bool | None = None,
) -> Tensor:
    """Return the products as one convolution of R groups, without a bias.

    Args:
        input: The batch, (batch, channels, *space).
        mix_in: V transposed, (R, n_in).
        convolve: Applies the mixed filters, zero-padded, in groups · R groups.
        mix_out: W, (n_out, R).
        sizes: The sizes of the layer.
        rank: The number of products R.
        multiple: What the channels of a product are zero-padded to a multiple of.
        channels_last: Whether the channels are last in memory; by default as the tensors say.
    """
    groups, n_in, n_out, dims = sizes.groups, sizes.n_in, sizes.n_out, sizes.dims
    wide_in, wide_out = whole(sizes.inputs, multiple), whole(sizes.outputs, multiple)
    is_last = is_channels_last(input, dims) if channels_last is None else channels_last
    x = resize(input, groups * n_in, sizes.inputs, wide_in, dims, is_last)
    mixed = mix_components(x, mix_in, Mixture(groups, rank, n_in, wide_in, dims), is_last)
    products = convolve(mixed)
    if channels_last is None:
        is_last = is_channels_last(products, dims)
    mixture = Mixture(groups, n_out, rank, wide_out, dims)
    output = mix_components(products, mix_out, mixture, is_last)
    return resize(output, groups * n_out, wide_out, sizes.outputs, dims, is_last)


def multiply_rows(
    input: Tensor, mix_in: Tensor, filters: Tensor, mix_out: Tensor, sizes: Sizes, rank: int
) -> Tensor:
    """Return the products as R products of matrices, without a bias.

    Args:
        input: Rows of channels, (rows, channels).
        mix_in: V transposed, (R, n_in).
        filters: The mixed filters, (groups · R, inputs, outputs).
        mix_out: W, (n_out, R).
        sizes: The sizes of the layer.
        rank: The number of products R.
    """
    groups, n_in, n_out = sizes.groups, sizes.n_in, sizes.n_out
    parts = input.reshape(-1, groups * n_in, sizes.inputs).transpose(0, 1)
    mixed = mix(mix_in, parts.reshape(groups, n_in, -1))
    products = torch.bmm(mixed.view(groups * rank, -1, sizes.inputs), filters)
    output = mix(mix_out, products.view(groups, rank, -1))
    output = output.view(groups * n_out, -1, sizes.outputs).transpose(0, 1)
    return output.reshape(-1, sizes.out_channels).contiguous()  # which one channel may not be


def resize(
    input: Tensor, parts: int, before: int, after: int, dims: int, channels_last: bool
) -> Tensor:
    """Return a batch whose components have another number of channels.

    Args:
        input: (batch, parts · before, *space).
        parts: Number of components.
        before: Channels of each.
        after: The same for the output: more of them, which are zero, or fewer.
        dims: Axes of space.
        channels_last: Whether the channels are last in memory.
    """
    difference = after - before
    if not difference:
        return input
    if channels_last:
        last = input.movedim(1, -1).unflatten(-1, (parts, before))
        return nn.functional.pad(last, (0, difference)).flatten(-2).movedim(-1, 1)
    pads = [0, 0] * dims + [0, difference]
    return nn.functional.pad(input.unflatten(1, (parts, before)), pads).flatten(1, 2)


def vector_of(sizes: Sizes) -> int:
    """Return what channels are zero-padded to a multiple of; 1 where that is not worth it."""
    return VECTOR if sizes.kernel > 1 else 1


def pays(rank: int, sizes: Sizes) -> bool:
    """Return whether R products take less time than the assembled weight.

    Grouped convolutions with one or two vectors of channels in a group have about a third and half
    of the speed of wide ones, and torch is slow with parts of vectors, which are zero-padded. For
    linear layers it is the mixing that takes time, about four times that of its multiplications.
    """
    full = sizes.n_out * sizes.n_in * sizes.outputs * sizes.inputs
    if not sizes.dims:
        mixing = sizes.n_in * sizes.inputs + sizes.n_out * sizes.outputs
        return rank * (sizes.outputs * sizes.inputs + 4 * mixing) < full
    widths = [whole(size, vector_of(sizes)) for size in (sizes.outputs, sizes.inputs)]
    speed = 1.0
    if vector_of(sizes) > 1:
        speed = {VECTOR: 1 / 3, 2 * VECTOR: 1 / 2}.get(min(widths), 1.0)
    return rank * math.prod(widths) < speed * full


def clearly_pays(rank: int, sizes: Sizes) -> bool:
    """Return whether R products take at most about 0.85 of the time of the assembled weight.

    Measured on one core, step and inference: to move a number through the mixings takes the time of
    some 32 multiplications in wide products, more for large n; groups of 32 channels have three
    quarters of the speed of wide ones.
    """
    widths = [whole(size, vector_of(sizes)) for size in (sizes.outputs, sizes.inputs)]
    speed = {VECTOR: 1 / 3, 2 * VECTOR: 1 / 2, 4 * VECTOR: 3 / 4}.get(min(widths), 1.0)
    multiplied = rank * math.prod(widths) * sizes.kernel
    moved = (sizes.n_in + rank) * sizes.inputs + (sizes.n_out + rank) * sizes.outputs
    full = sizes.n_out * sizes.n_in * sizes.outputs * sizes.inputs * sizes.kernel
    return multiplied / speed + 8 * max(4, sizes.n_in) * moved < 0.85 * full
