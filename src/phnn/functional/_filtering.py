"""The filters on every component first, then the algebra: no weight is assembled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from phnn.functional._formats import is_last

# torch 2.6 does not tell an exported graph from a compiled one
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def filter_first(
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
    output = apply_algebra(A, blocks.transpose(1, 2).flatten(0, 1).flatten(1, 2))
    output = output.view(*input.shape[:axis], F.shape[0] // terms * n, *space)
    if bias is not None:
        output = output + bias.view(-1, *(1,) * dims)
    if axis and (is_last(input, dims) or is_last(filtered, dims)):
        output = output.movedim(1, -1).contiguous().movedim(-1, 1)
    return output


def apply_algebra(A: Tensor, filtered: Tensor) -> Tensor:
    """Output components, (batch, n, size), from filtered ones, (batch, n · terms, size)."""
    rules = A.permute(1, 2, 0).flatten(1)
    return torch.bmm(rules.expand(filtered.shape[0], -1, -1), filtered)


def may_filter_first(
    input: Tensor, A: Tensor, F: Tensor, bias: Tensor | None, channels: int, groups: int = 1
) -> bool:
    """Whether filters may come before the algebra.

    A graph that is traced or exported has the assembled weight, whatever the size of its example;
    low precision, too, where the weight is rounded once, and a sum of filtered components once for
    each. What torch would refuse is assembled, and refused by torch.
    """
    if _is_exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
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


def is_small(places: int, A: Tensor, F: Tensor) -> bool:
    """Whether all filtered components, F_i * x_b, have fewer numbers than the weight.

    Both ways take the same multiplications, filtering first even fewer with few terms, and more
    with more than n; the larger of the two is what they spend memory and time on. A graph that is
    compiled for any size assembles, as it would be compiled anew for each of its layers otherwise.

    Args:
        places: About how many the output has, in all samples.
        A: The algebra.
        F: The filters.
    """
    terms, n, _ = A.shape
    filtered, weight = places * terms, n * math.prod(F.shape[1:])
    return terms <= n and _is_known(filtered > 0) and _is_known(filtered < weight)


def count_places(input: Tensor, dims: int, stride: int | Sequence[int]) -> int:
    """About how many places the output of a convolution has, in all samples."""
    steps = (stride,) * dims if isinstance(stride, int) else stride
    space = input.shape[input.dim() - dims :]
    places = input.shape[0] if input.dim() == dims + 2 else 1
    for size, step in zip(space, steps, strict=False):
        places *= -(-size // step)  # no math.prod: compiled, the sizes may be symbols
    return places


def _is_known(condition: bool) -> bool:
    """Whether a condition on sizes holds, of symbols: for all of them."""
    if not torch.compiler.is_compiling():
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)
