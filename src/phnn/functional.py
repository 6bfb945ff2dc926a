r"""The arithmetic of PH layers on plain tensors.

Every function computes the same equation, with input components :math:`x_b`, output components
:math:`y_a` and Kronecker terms :math:`i`:

.. math:: y_a = \sum_i \sum_b A[i, a, b] \cdot (F_i * x_b) + \mathrm{bias}_a

The names and the order of the arguments are those of `torch.nn.functional`, with the pair `A, F` in
the place of the weight. A tensor A is assembled with F into the weight or, where the weight would
be larger than all :math:`F_i * x_b`, applied to these. An A that is `Factored` into R products is
computed with R multiplications in the place of n², unless its products would be too narrow:

.. math:: y_a = \sum_r W[a, r] \cdot \Bigl( \bigl(\textstyle\sum_i U[i, r] \, F_i\bigr) *
    \bigl(\sum_b V[b, r] \, x_b\bigr) \Bigr) + \mathrm{bias}_a
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = [
    "Factored",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "kronecker_sum",
    "linear",
]

Size = int | Sequence[int]
VECTOR = 8  # channels that torch's kernels take at a time, in float32 on most processors


class Factored(NamedTuple):
    r"""An algebra as R products, :math:`A[i, a, b] = \sum_r U[i, r] \, W[a, r] \, V[b, r]`.

    Attributes:
        V: Mixes the input components, (n, R).
        W: Mixes the output components, (n, R).
        U: Mixes the filters, (terms, R); without it each product has its own,
            :math:`A_r = w_r v_r^\top`.

    Example:
        >>> sum_and_difference = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> split_complex = Factored(sum_and_difference, sum_and_difference / 2, sum_and_difference)
        >>> split_complex.tensor()[1]
        tensor([[0., 1.],
                [1., 0.]])
    """

    V: Tensor
    W: Tensor
    U: Tensor | None = None

    def tensor(self) -> Tensor:
        """The algebra that the factors multiply out to, (terms, n, n)."""
        return _outside_autocast(_multiply_out, self.V, self.W, self.U)


def kronecker_sum(
    A: Tensor | Factored, F: Tensor, groups: int = 1, transposed: bool = False
) -> Tensor:
    r"""The weight :math:`H = \sum_i A_i \otimes F_i` of a PH layer, by one small matrix product.

    With `blocks = F.unflatten(0, (groups, terms, -1))`:

    .. math::
        H[g, a, o, b, c] &= \textstyle\sum_i A[i, a, b] \cdot \mathrm{blocks}[g, i, o, c] \\
        H[g, b, c, a, o] &= \textstyle\sum_i A[i, a, b] \cdot \mathrm{blocks}[g, i, c, o]
        \quad\text{(transposed)}

    Args:
        A: The algebra, a tensor or `Factored`; `A[i]` is "multiply from the left by basis element
            i".
        F: The filters, the Kronecker terms stacked along the first axis.
        groups: Groups of a grouped convolution; one A serves all of them.
        transposed: Whether the weight is for a transposed convolution, (in, out/groups, *k).

    Shape:
        - A: :math:`(m, n, n)` with m terms.
        - F: :math:`(d\,m/n, s/(g\,n), *k)`, transposed :math:`(s\,m/n, d/(g\,n), *k)`.
        - Output: :math:`(d, s/g, *k)`, transposed :math:`(s, d/g, *k)`.

    Example:
        >>> A, F = torch.randn(2, 2, 2), torch.randn(6, 4)
        >>> H = torch.kron(A[0], F[:3]) + torch.kron(A[1], F[3:])
        >>> torch.allclose(kronecker_sum(A, F), H)
        True
    """
    if isinstance(A, Factored):
        A = A.tensor()
    terms = A.shape[0]
    if F.shape[0] % (groups * terms):
        raise ValueError(
            f"the first axis of F holds groups · terms = {groups} · {terms} equal blocks, "
            f"got F of shape {tuple(F.shape)}"
        )
    return _outside_autocast(_kronecker_sum, A, F, groups, transposed)


def _kronecker_sum(A: Tensor, F: Tensor, groups: int, transposed: bool) -> Tensor:
    blocks = F.unflatten(0, (groups, A.shape[0], -1))
    if transposed:
        A = A.mT
    return torch.einsum("iab,gioc...->gaobc...", A, blocks).flatten(0, 2).flatten(1, 2)


def _multiply_out(V: Tensor, W: Tensor, U: Tensor | None) -> Tensor:
    if U is None:
        return torch.einsum("ar,br->rab", W, V)
    return torch.einsum("ir,ar,br->iab", U, W, V)


def _mix_filters(F: Tensor, U: Tensor | None, groups: int) -> Tensor:
    """The filters of the R products, Σ_i U[i, r] F_i, stacked along the first axis."""
    if U is None:
        return F
    blocks = F.unflatten(0, (groups, U.shape[0], -1))
    return torch.einsum("ir,gio...->gro...", U, blocks).flatten(0, 2)


def _outside_autocast(assemble: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Calls a function of parameters alone, whose first argument is a tensor."""
    device = arguments[0].device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        # assembled in bfloat16, H would carry the rounding of A and of F on top of its own; entered
        # only when autocast is on, so that exported graphs hold no trace of it
        with torch.autocast(device, enabled=False):
            return assemble(*arguments)
    return assemble(*arguments)


def _mix(input: Tensor, matrix: Tensor, groups: int, dims: int) -> Tensor:
    """Replaces the components of each group by their mixtures, one for each row of the matrix."""
    axis = input.dim() - dims - 1
    space = input.shape[axis + 1 :]
    components = input.unflatten(axis, (groups, matrix.shape[1], -1))
    if _is_last(input, dims):  # it remains so
        components = components.movedim((axis, axis + 1, axis + 2), (-3, -2, -1))
        mixed = torch.einsum("rb,...bc->...rc", matrix, components).flatten(-3)
        return mixed.movedim(-1, axis)
    # bmm reads the components where they are; matmul and einsum would first copy all of them
    components = components.flatten(axis + 2).flatten(0, axis)
    mixed = torch.bmm(matrix.expand(components.shape[0], -1, -1), components)
    channels = input.shape[axis] // matrix.shape[1] * matrix.shape[0]
    return mixed.view(*input.shape[:axis], channels, *space)


def _convolve(
    function: Callable[..., Tensor],
    input: Tensor,
    A: Tensor | Factored,
    F: Tensor,
    bias: Tensor | None,
    groups: int,
    options: dict[str, Any],
    transposed: bool = False,
) -> Tensor:
    """One of torch's convolutions, in the way that takes the least time."""
    if isinstance(A, Factored):
        if _pays(A, F, groups):
            return _mix_and_multiply(function, input, A, F, bias, groups, options, transposed)
        A = A.tensor()
    dims = F.dim() - 2
    if not transposed and input.dim() - dims in (1, 2):
        may = _may_filter_first(input, A, F, bias, input.shape[-dims - 1], groups)
        if may and _is_small(_count_places(input, dims, options["stride"]), A, F):
            return _filter_first(function, input, A, F, bias, groups, options)
    H = kronecker_sum(A, F, groups, transposed)
    return function(input, H, bias, groups=groups, **options)


def _mix_and_multiply(
    function: Callable[..., Tensor],
    input: Tensor,
    A: Factored,
    F: Tensor,
    bias: Tensor | None,
    groups: int,
    options: dict[str, Any],
    transposed: bool,
) -> Tensor:
    """One of torch's convolutions, of R mixtures of the components with R of the filters."""
    V, W, U = A
    n, rank = V.shape
    dims = F.dim() - 2
    filters = _outside_autocast(_mix_filters, F, U, groups).unflatten(0, (groups * rank, -1))
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


def _pays(A: Factored, F: Tensor, groups: int) -> bool:
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
    if _is_last(input, dims):
        last = input.movedim(axis, -1).unflatten(-1, (parts, -1))
        return nn.functional.pad(last, (0, difference)).flatten(-2).movedim(-1, axis)
    pads = [0, 0] * dims + [0, difference]
    return nn.functional.pad(input.unflatten(axis, (parts, -1)), pads).flatten(axis, axis + 1)


def _filter_first(
    function: Callable[..., Tensor],
    input: Tensor,
    A: Tensor,
    F: Tensor,
    bias: Tensor | None,
    groups: int,
    options: dict[str, Any],
) -> Tensor:
    """One of torch's convolutions, of each component with all filters; then the algebra."""
    terms, n, _ = A.shape
    dims = F.dim() - 2
    axis = input.dim() - dims - 1
    components = input.unflatten(axis, (groups, n, -1)).movedim(axis + 1, axis)
    components = components.flatten(axis + 1, axis + 2).flatten(0, axis)
    filtered = function(components, F, None, groups=groups, **options)
    space = filtered.shape[2:]
    blocks = filtered.reshape(-1, n, groups, terms, F.shape[0] // (groups * terms) * space.numel())
    output = _apply_algebra(A, blocks.transpose(1, 2).flatten(0, 1).flatten(1, 2))
    output = output.view(*input.shape[:axis], F.shape[0] // terms * n, *space)
    if bias is not None:
        output = output + bias.view(-1, *(1,) * dims)
    if axis and (_is_last(input, dims) or _is_last(filtered, dims)):
        output = output.movedim(1, -1).contiguous().movedim(-1, 1)
    return output


def _apply_algebra(A: Tensor, filtered: Tensor) -> Tensor:
    """Output components, (batch, n, size), from filtered ones, (batch, n · terms, size)."""
    rules = A.permute(1, 2, 0).flatten(1)
    return torch.bmm(rules.expand(filtered.shape[0], -1, -1), filtered)


def _is_last(input: Tensor, dims: int) -> bool:
    """Whether the channels are last in memory; images and volumes have such a format."""
    axis = input.dim() - dims - 1
    return dims > 1 and input.stride(axis) == 1 < input.stride(-1)


def _may_filter_first(
    input: Tensor, A: Tensor, F: Tensor, bias: Tensor | None, channels: int, groups: int = 1
) -> bool:
    """Whether filters may come before the algebra.

    A graph that is compiled, traced or exported has the assembled weight, whatever the size of its
    example; low precision, too, where the weight is rounded once, and a sum of filtered components
    once for each. What torch would refuse is assembled, and refused by torch.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    device, dtype = F.device.type, F.dtype
    if device != "meta" and torch.is_autocast_enabled(device):
        return False
    if not (dtype.is_floating_point or dtype.is_complex) or dtype.itemsize < 4:
        return False
    terms, n, columns = A.shape
    if n != columns or F.shape[0] % (groups * terms) or channels != groups * n * F.shape[1]:
        return False
    if bias is not None and (bias.shape != (F.shape[0] // terms * n,) or bias.dtype != dtype):
        return False
    return dtype == A.dtype == input.dtype


def _is_small(places: int, A: Tensor, F: Tensor) -> bool:
    """Whether all filtered components, F_i * x_b, have fewer numbers than the weight.

    Both ways take the same multiplications, filtering first even fewer with few terms, and more
    with more than n; the larger of the two is what they spend memory and time on.

    Args:
        places: About how many the output has, in all samples.
        A: The algebra.
        F: The filters.
    """
    terms, n, _ = A.shape
    return terms <= n and 0 < places * terms < n * math.prod(F.shape[1:])


def _count_places(input: Tensor, dims: int, stride: Size) -> int:
    """About how many places the output of a convolution has, in all samples."""
    steps = (stride,) * dims if isinstance(stride, int) else stride
    space = input.shape[input.dim() - dims :]
    samples = input.shape[0] if input.dim() == dims + 2 else 1
    return samples * math.prod(-(-size // step) for size, step in zip(space, steps, strict=False))


def linear(input: Tensor, A: Tensor | Factored, F: Tensor, bias: Tensor | None = None) -> Tensor:
    """A fully connected PH layer; see `torch.nn.functional.linear`."""
    if not isinstance(A, Factored):
        places = math.prod(input.shape[:-1])
        if not (_may_filter_first(input, A, F, bias, input.shape[-1]) and _is_small(places, A, F)):
            return nn.functional.linear(input, kronecker_sum(A, F), bias)
        terms, n, _ = A.shape
        filtered = nn.functional.linear(input.unflatten(-1, (n, -1)), F)
        output = _apply_algebra(A, filtered.reshape(places, n * terms, -1))
        output = output.view(*input.shape[:-1], -1)
        return output if bias is None else output + bias
    V, W, U = A
    n, rank = V.shape
    filters = _outside_autocast(_mix_filters, F, U, 1).unflatten(0, (rank, -1))
    mixed = torch.einsum("br,...bc->r...c", V, input.unflatten(-1, (n, -1)))
    products = torch.einsum("roc,r...c->r...o", filters, mixed)
    output = torch.einsum("ar,r...o->...ao", W, products).flatten(-2)
    return output if bias is None else output + bias.to(output.dtype)


def conv1d(
    input: Tensor,
    A: Tensor | Factored,
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
    A: Tensor | Factored,
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
    A: Tensor | Factored,
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
    A: Tensor | Factored,
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
    A: Tensor | Factored,
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
    A: Tensor | Factored,
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
