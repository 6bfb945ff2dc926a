r"""Filters on components: no weight is assembled.

.. math:: y_a = \sum_i \sum_b A[i, a, b] \cdot (F_i * x_b) = \sum_i F_i * \sum_b A[i, a, b] \, x_b

On the left the filters come first, on the right the algebra does. Each component becomes a sample
of the batch. Components of one channel are mixed by a plain convolution, so a layer with n = (out,
1) is two plain convolutions, k×k and then 1×1, and one with n = (1, in) is 1×1 and then k×k.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from phnn.functional._formats import is_channels_last
from phnn.functional._mixing import Mixture, add_bias, mix_channels, mix_components, space_of
from phnn.functional._sizes import Sizes


def rules_after(A: Tensor) -> Tensor:
    """Return A as the matrix that mixes filtered components, (n_out, n_in · terms)."""
    return A.permute(1, 2, 0).flatten(1)


def rules_before(A: Tensor) -> Tensor:
    """Return A as the matrix that mixes components to be filtered, (n_out · terms, n_in)."""
    return A.transpose(0, 1).flatten(0, 1)


def filters_first(F: Tensor, sizes: Sizes) -> Tensor:
    """Return the weight that makes all terms of an input component."""
    return _pair_terms(F, sizes, sizes.inputs) if sizes.transposed else F


def filters_last(F: Tensor, sizes: Sizes) -> Tensor:
    """Return the weight that makes an output component of all its terms."""
    return F if sizes.transposed else _pair_terms(F, sizes, sizes.outputs)


def _pair_terms(F: Tensor, sizes: Sizes, rows: int) -> Tensor:
    """Move the terms from the first axis of the filters to the second."""
    blocks: Tensor = F.unflatten(0, (sizes.groups, sizes.terms, rows))
    return blocks.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def filter_first(
    input: Tensor,
    convolve: Callable[[Tensor], Tensor],
    rules: Tensor,
    bias: Tensor | None,
    sizes: Sizes,
    channels_last: bool | None = None,
    inplace: bool = False,
) -> Tensor:
    """Return the filters on every component of a batch, then the algebra.

    Args:
        input: The batch, (batch, channels, *space).
        convolve: Applies the weight `filters_first(F)`.
        rules: `rules_after(A)`.
        bias: What is added to each channel.
        sizes: The sizes of the layer.
        channels_last: Whether the output has its channels last in memory; by default as a
            convolution of the same input and filters would.
        inplace: Whether the bias is added in place.
    """
    groups, n_in, dims = sizes.groups, sizes.n_in, sizes.dims
    filtered = convolve(_split(input, groups, n_in, sizes.inputs, dims))
    if channels_last is None:
        channels_last = is_channels_last(input, dims) or is_channels_last(filtered, dims)
    terms = _join(filtered, groups, n_in, sizes.terms * sizes.outputs, dims)
    mixture = Mixture(groups, sizes.n_out, n_in * sizes.terms, sizes.outputs, dims)
    if sizes.outputs == 1 and not sizes.is_paper:
        output = mix_channels(terms, rules, bias, mixture)
    else:
        output = mix_components(terms, rules, mixture, channels_last and n_in == 1)
        output = add_bias(output, bias, dims, inplace)
    return _put_last(output) if channels_last and n_in > 1 else output


def mix_first(
    input: Tensor,
    rules: Tensor,
    convolve: Callable[[Tensor], Tensor],
    bias: Tensor | None,
    sizes: Sizes,
    channels_last: bool | None = None,
    inplace: bool = False,
) -> Tensor:
    """Return the algebra on the components of a batch, then the filters on each mixture.

    Args:
        input: The batch, (batch, channels, *space).
        rules: `rules_before(A)`.
        convolve: Applies the weight `filters_last(F)`, and the bias where n_out is 1.
        bias: What is added to each channel; None where convolve does it.
        sizes: The sizes of the layer.
        channels_last: Whether the output has its channels last in memory; by default as a
            convolution of the same input and filters would.
        inplace: Whether the bias is added in place.
    """
    groups, n_out, dims = sizes.groups, sizes.n_out, sizes.dims
    is_last = is_channels_last(input, dims) if channels_last is None else channels_last
    mixture = Mixture(groups, n_out * sizes.terms, sizes.n_in, sizes.inputs, dims)
    if sizes.inputs == 1:
        mixed = mix_channels(input, rules, None, mixture)
    else:
        mixed = mix_components(input, rules, mixture, is_last and n_out == 1)
    output = convolve(_split(mixed, groups, n_out, sizes.terms * sizes.inputs, dims))
    if channels_last is None:
        is_last = is_last or is_channels_last(output, dims)
    output = _join(output, groups, n_out, sizes.outputs, dims)
    output = add_bias(output, bias, dims, inplace)
    return _put_last(output) if is_last and n_out > 1 else output


def _split(input: Tensor, groups: int, parts: int, size: int, dims: int) -> Tensor:
    """Make samples of components, (batch · parts, groups · size, *space)."""
    if parts == 1:
        return input
    batch, space = input.shape[0], space_of(input, dims)
    if groups > 1:
        blocks = input.reshape(batch, groups, parts, size * math.prod(space))
        input = blocks.transpose(1, 2)
    return input.reshape(batch * parts, groups * size, *space)


def _join(input: Tensor, groups: int, parts: int, size: int, dims: int) -> Tensor:
    """Make components of samples, (batch, groups · parts · size, *space)."""
    if parts == 1:
        return input
    batch, space = input.shape[0] // parts, space_of(input, dims)
    if groups > 1:
        blocks = input.reshape(batch, parts, groups, size * math.prod(space))
        input = blocks.transpose(1, 2)
    return input.reshape(batch, groups * parts * size, *space)


def _put_last(output: Tensor) -> Tensor:
    return output.movedim(1, -1).contiguous().movedim(-1, 1)
