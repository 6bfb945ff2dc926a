"""Which computation of a PH layer takes the least work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phnn.functional._factors import Factors, Known
from phnn.functional._formats import is_channels_last, overruns
from phnn.functional._products import clearly_pays, pays
from phnn.functional._sizes import Sizes

ASSEMBLED, FILTER_FIRST, MIX_FIRST, PRODUCTS = "assembled", "filter first", "mix first", "products"

# torch 2.6 does not tell an exported graph from a compiled one
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


class Operation(NamedTuple):
    """The function of torch that a PH layer stands in for.

    Attributes:
        function: `torch.nn.functional.linear`, or one of torch's convolutions.
        dims: Axes of space; 0 for linear.
        stride: Steps of a convolution along these axes.
        options: Its arguments besides the groups, `stride` among them.
        groups: Its groups.
        transposed: Whether it is transposed.
    """

    function: Callable[..., Tensor]
    dims: int = 0
    stride: int | Sequence[int] = ()
    options: dict[str, Any] | None = None
    groups: int = 1
    transposed: bool = False

    def __call__(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, groups: int | None = None
    ) -> Tensor:
        """Call the function, in other groups if they are given."""
        if self.options is None:
            return self.function(input, weight, bias)
        groups = self.groups if groups is None else groups
        options = self.options
        if self._overruns(input, weight):  # every other position, then, instead of a stride
            options = {**options, "stride": 1}
            for axis, step in enumerate(self.steps(), -self.dims):
                input = input.movedim(axis, 0)[::step].movedim(0, axis)
        return self.function(input, weight, bias, groups=groups, **options)

    def _overruns(self, input: Tensor, weight: Tensor) -> bool:
        """Return whether torch would write past its memory in the backward of this call."""
        if self.transposed or not weight.requires_grad or input.device.type != "cpu":
            return False
        is_last = any(is_channels_last(each, self.dims) for each in (input, weight))
        return is_last and not self._pads() and overruns(weight, self.steps())

    def _pads(self) -> bool:
        padding = (self.options or {})["padding"]
        if isinstance(padding, str):
            return padding != "valid"
        return any(padding) if isinstance(padding, Sequence) else padding != 0

    def steps(self) -> list[int]:
        """Return the stride along each axis of space."""
        if isinstance(self.stride, int):
            return [self.stride] * self.dims
        steps = list(self.stride)
        return steps * self.dims if len(steps) == 1 else steps


def choose(
    operation: Operation,
    input: Tensor,
    A: Tensor | Factors,
    F: Tensor,
    bias: Tensor | None,
    sizes: Sizes,
) -> str:
    """Return the computation for an input.

    The paper's layers, with a square A of as many terms, assemble the weight where it is smaller
    than all filtered components, and compute `Factors` by products where that pays. All other
    layers take the computation with the fewest multiplications.
    """
    if not _fits(operation, input, A, F, bias, sizes):
        return ASSEMBLED  # and torch refuses it in its own words
    if not sizes.is_paper:
        return _fewest(operation, input, A, sizes)
    if isinstance(A, Factors) and _multiplies(A.rank, sizes):
        return PRODUCTS
    is_smaller = _may_filter_first(F) and _filters_first(operation, input, sizes)
    return FILTER_FIRST if is_smaller else ASSEMBLED


def _multiplies(rank: int, sizes: Sizes) -> bool:
    """Return whether R products pay.

    Not for compiled convolutions of one position: torch runs their groups with channels first, and
    copies everything to and fro. A step took 1.1 to 1.9 of the time of a real layer.
    """
    is_compiled = torch.compiler.is_compiling() and not _is_exporting()
    if is_compiled and sizes.dims and sizes.kernel == 1:
        return False
    return pays(rank, sizes)


def pick(
    operation: Operation, input: Tensor, known: Known, F: Tensor, sizes: Sizes
) -> Tensor | Factors:
    """Return what a layer with a fixed algebra computes with: the factors, where they pay.

    A graph that is compiled, traced or exported has the assembled weight, and low precision, too.
    With few positions to share the mixing of the filters, none is mixed.
    """
    rank = known.factors.rank
    if torch.compiler.is_compiling() or not _may_filter_first(F) or not clearly_pays(rank, sizes):
        return known.A
    step, positions = math.prod(operation.steps()), count_positions(operation, input)
    saved = positions * (sizes.filter_first(step) - sizes.products(rank, step))
    return known.factors if saved > 2 * sizes.mixed_filters(rank) else known.A


def _filters_first(operation: Operation, input: Tensor, sizes: Sizes) -> bool:
    """Return whether all filtered components of the paper's layer are smaller than its weight."""
    if operation.transposed:
        return False
    filtered = count_positions(operation, input) * sizes.terms
    weight = sizes.n_in * sizes.inputs * sizes.kernel
    return _is_known(filtered > 0) and _is_known(filtered < weight)


def _fewest(operation: Operation, input: Tensor, A: Tensor | Factors, sizes: Sizes) -> str:
    """Return the computation with the fewest multiplications.

    What is made of the parameters alone counts once. A graph that is exported, traced or compiled
    for any size does not know how often that is shared, and leaves it out.
    """
    stride = operation.stride
    step = stride**operation.dims if isinstance(stride, int) else math.prod(operation.steps())
    compare = _compare if torch.compiler.is_compiling() else _compare_once
    direct, direct_count, count = compare(sizes, step)
    prepared, once = ASSEMBLED, sizes.assembly()
    if isinstance(A, Factors) and _multiplies(A.rank, sizes):
        multiplying = sizes.products(A.rank, step)
        if multiplying < count:
            prepared, count = PRODUCTS, multiplying
            once = 0 if A.U is None else sizes.mixed_filters(A.rank)
    if direct_count <= count:
        return direct
    if _is_exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return prepared
    positions = count_positions(operation, input)
    return direct if _is_known(positions * (direct_count - count) < once) else prepared


def _compare(sizes: Sizes, step: int) -> tuple[str, int, int]:
    """Return the cheaper of filter first and mix first, its count, and that of the assembled."""
    filtering, mixing = sizes.filter_first(step), sizes.mix_first(step)
    assembled = sizes.assembled()
    if filtering <= mixing:
        return FILTER_FIRST, filtering, assembled
    return MIX_FIRST, mixing, assembled


_compare_once = lru_cache(maxsize=4096)(_compare)


def _fits(
    operation: Operation,
    input: Tensor,
    A: Tensor | Factors,
    F: Tensor,
    bias: Tensor | None,
    sizes: Sizes,
) -> bool:
    """Return whether the shapes and types belong together."""
    dims, dtype = operation.dims, F.dtype
    leading = input.dim() - dims
    if leading < 1 or (dims and leading > 2) or sizes.dims != dims:
        return False
    if F.shape[0] % (sizes.groups * sizes.terms) or input.shape[-dims - 1] != sizes.in_channels:
        return False
    if bias is not None and bias.shape != (sizes.out_channels,):
        return False
    if not (dtype.is_floating_point or dtype.is_complex):
        return False
    rules = A.V if isinstance(A, Factors) else A
    same = dtype == input.dtype == rules.dtype and (bias is None or bias.dtype == dtype)
    return same or _is_autocast(F)


def _may_filter_first(F: Tensor) -> bool:
    """Return whether the filters of the paper's layer may come before the algebra.

    A graph that is traced or exported has the assembled weight, whatever the size of its example;
    low precision, too, where the weight is rounded once, and a sum of filtered components once for
    each.
    """
    if _is_exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    return not _is_autocast(F) and F.dtype.itemsize >= 4


def _is_autocast(F: Tensor) -> bool:
    return F.device.type != "meta" and torch.is_autocast_enabled(F.device.type)


def count_positions(operation: Operation, input: Tensor) -> int:
    """Return about how many positions all samples have on the smaller side of a layer.

    That is the output, and the input of a transposed convolution.
    """
    dims = operation.dims
    if not dims:
        return math.prod(input.shape[:-1])
    positions = input.shape[0] if input.dim() == dims + 2 else 1
    steps = [1] * dims if operation.transposed else operation.steps()
    for size, step in zip(input.shape[input.dim() - dims :], steps, strict=False):
        positions *= -(-size // step)  # no math.prod: compiled, the sizes may be symbols
    return positions


def _is_known(condition: bool) -> bool:
    """Return whether a condition on sizes holds, of symbols: for all of them."""
    if not torch.compiler.is_compiling():
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)
