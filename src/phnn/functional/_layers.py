"""The layers of torch, with an algebra and filters instead of their weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from phnn.functional import _choice as choice
from phnn.functional._assembly import kronecker_sum
from phnn.functional._choice import Operation, choose, pick
from phnn.functional._components import (
    filter_first,
    filters_first,
    filters_last,
    mix_first,
    rules_after,
    rules_before,
)
from phnn.functional._factors import Factors, Known, outside_autocast
from phnn.functional._formats import has_filters_last, is_channels_last, put_channels_last
from phnn.functional._low_rank import apply_low_rank
from phnn.functional._mixing import add_bias
from phnn.functional._products import (
    mix_filters,
    multiply_grouped,
    multiply_rows,
    pad_filters,
    vector_of,
)
from phnn.functional._sizes import Sizes

Size = int | Sequence[int]
# channels of a group from which on torch's backward takes longer for all groups together than for
# each alone: 47 and 40 ms for three groups of 128; with channels last it is the other way round
WIDE = 128


def _compute(
    operation: Operation, input: Tensor, A: Tensor | Factors | Known, F: Tensor, bias: Tensor | None
) -> Tensor:
    """Return what the operation makes of the input with the weight of A and F."""
    if input.dim() == operation.dims + 2 and has_filters_last(F):  # then torch's outputs are, too
        return put_channels_last(
            _choose_and_compute(operation, put_channels_last(input), A, F, bias)
        )
    return _choose_and_compute(operation, input, A, F, bias)


def _choose_and_compute(
    operation: Operation, input: Tensor, A: Tensor | Factors | Known, F: Tensor, bias: Tensor | None
) -> Tensor:
    sizes = Sizes.of(A.shape, F, operation.groups, operation.transposed)
    if isinstance(A, Known):
        A = pick(operation, input, A, F, sizes)
    computation = choose(operation, input, A, F, bias, sizes)
    if computation == choice.ASSEMBLED:
        H = kronecker_sum(A, F, operation.groups, operation.transposed)
        return operation(input, H, bias)
    if sizes.is_low_rank and computation != choice.PRODUCTS:
        return apply_low_rank(operation, input, _tensor(A), F, bias, sizes)
    batch = _make_batch(operation, input)
    if computation == choice.PRODUCTS:
        assert isinstance(A, Factors)
        output = _multiply(operation, batch, A, F, bias, sizes)
    elif computation == choice.FILTER_FIRST:
        weight, rules = filters_first(F, sizes), rules_after(_tensor(A))
        output = filter_first(batch, lambda x: operation(x, weight, None), rules, bias, sizes)
    else:
        weight, rules = filters_last(F, sizes), rules_before(_tensor(A))
        inside, outside = (bias, None) if sizes.n_out == 1 else (None, bias)
        output = mix_first(batch, rules, lambda x: operation(x, weight, inside), outside, sizes)
    if batch is input:
        return output
    return (
        output.squeeze(0) if operation.dims else output.view(*input.shape[:-1], sizes.out_channels)
    )


def _make_batch(operation: Operation, input: Tensor) -> Tensor:
    """Return (batch, channels, *space) of what torch accepts."""
    if input.dim() == operation.dims + 2:
        return input
    return input.unsqueeze(0) if operation.dims else input.reshape(-1, input.shape[-1])


def _tensor(A: Tensor | Factors) -> Tensor:
    return A.tensor() if isinstance(A, Factors) else A


def _multiply(
    operation: Operation, batch: Tensor, A: Factors, F: Tensor, bias: Tensor | None, sizes: Sizes
) -> Tensor:
    """Return R products of mixed components and mixed filters."""
    rank, blocks = A.rank, operation.groups * A.rank
    filters = outside_autocast(mix_filters, F, A.U, operation.groups)
    # what depends on the input runs as the convolution does, under autocast in low precision
    if operation.dims:
        multiple = vector_of(sizes)
        weight = pad_filters(filters, blocks, multiple)
        output = multiply_grouped(
            batch,
            A.V.mT,
            lambda x: _convolve_blocks(operation, x, weight, blocks),
            A.W,
            sizes,
            rank,
            multiple,
        )
    else:
        filters = filters.unflatten(0, (rank, -1)).mT
        output = multiply_rows(batch, A.V.mT, filters, A.W, sizes, rank)
    return add_bias(output, bias, operation.dims)


def _convolve_blocks(operation: Operation, input: Tensor, weight: Tensor, blocks: int) -> Tensor:
    """Return a convolution in groups; wide groups each by a call of its own."""
    width = min(weight.shape[0] // blocks, weight.shape[1])
    is_last = is_channels_last(input, operation.dims)
    if width < WIDE or is_last or torch.compiler.is_compiling():
        return operation(input, weight, None, blocks)
    pairs = zip(input.chunk(blocks, 1), weight.chunk(blocks), strict=True)
    return torch.cat([operation(x, w, None, 1) for x, w in pairs], 1)


def _convolve(
    function: Callable[..., Tensor],
    input: Tensor,
    A: Tensor | Factors | Known,
    F: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
) -> Tensor:
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    operation = Operation(function, F.dim() - 2, stride, options, groups)
    return _compute(operation, input, A, F, bias)


def _convolve_transposed(
    function: Callable[..., Tensor],
    input: Tensor,
    A: Tensor | Factors | Known,
    F: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
) -> Tensor:
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    options["output_padding"] = output_padding
    operation = Operation(function, F.dim() - 2, stride, options, groups, transposed=True)
    return _compute(operation, input, A, F, bias)


def linear(
    input: Tensor, A: Tensor | Factors | Known, F: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Apply a fully connected PH layer; see `torch.nn.functional.linear`."""
    return _compute(Operation(nn.functional.linear), input, A, F, bias)


def conv1d(
    input: Tensor,
    A: Tensor | Factors | Known,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Apply a 1-d PH convolution; see `torch.nn.functional.conv1d`."""
    function = nn.functional.conv1d
    return _convolve(function, input, A, F, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    A: Tensor | Factors | Known,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Apply a 2-d PH convolution; see `torch.nn.functional.conv2d`."""
    function = nn.functional.conv2d
    return _convolve(function, input, A, F, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    A: Tensor | Factors | Known,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Apply a 3-d PH convolution; see `torch.nn.functional.conv3d`."""
    function = nn.functional.conv3d
    return _convolve(function, input, A, F, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor,
    A: Tensor | Factors | Known,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Apply a 1-d transposed PH convolution; see `torch.nn.functional.conv_transpose1d`."""
    function = nn.functional.conv_transpose1d
    return _convolve_transposed(
        function, input, A, F, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: Tensor,
    A: Tensor | Factors | Known,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Apply a 2-d transposed PH convolution; see `torch.nn.functional.conv_transpose2d`."""
    function = nn.functional.conv_transpose2d
    return _convolve_transposed(
        function, input, A, F, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose3d(
    input: Tensor,
    A: Tensor | Factors | Known,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Apply a 3-d transposed PH convolution; see `torch.nn.functional.conv_transpose3d`."""
    function = nn.functional.conv_transpose3d
    return _convolve_transposed(
        function, input, A, F, bias, stride, padding, output_padding, groups, dilation
    )
