r"""A dense weight seen as blocks, the way a sum of Kronecker products sees it.

Every weight becomes (groups, n_out, P, n_in, Q, K): output component and channel in it, input
component and channel in it, kernel position. A transposed convolution is the convolution of its
zero-inserted input with the kernel flipped, so that all layers have one form here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Blocks", "canonical", "check_weight"]


@dataclass(frozen=True)
class Blocks:
    """Where the blocks of one weight lie.

    Attributes:
        shape: Of the weight in torch's layout.
        n_out: Components of the output.
        n_in: Components of the input.
        groups: Groups of the convolution.
        transposed: Whether it is the weight of a transposed convolution.
    """

    shape: tuple[int, ...]
    n_out: int
    n_in: int
    groups: int = 1
    transposed: bool = False

    def __post_init__(self) -> None:
        first, second = (self.n_in, self.n_out) if self.transposed else (self.n_out, self.n_in)
        if len(self.shape) < 2 or self.shape[0] % (self.groups * first) or self.shape[1] % second:
            n = self.n_out if self.n_out == self.n_in else (self.n_out, self.n_in)
            raise ValueError(
                f"n={n} must divide both channel counts of the weight {self.shape}"
                + (f" with groups={self.groups}" if self.groups > 1 else "")
            )

    @property
    def kernel(self) -> tuple[int, ...]:
        """Kernel size; empty for linear layers."""
        return self.shape[2:]

    @property
    def size(self) -> int:
        """Numbers in the weight."""
        return math.prod(self.shape)

    @property
    def inner(self) -> tuple[int, int]:
        """P and Q, the channels of one output and of one input component of a group."""
        first, second = self.shape[0] // self.groups, self.shape[1]
        out, into = (second, first) if self.transposed else (first, second)
        return out // self.n_out, into // self.n_in

    def split(self, weight: Tensor) -> Tensor:
        """Return the canonical weight of `canonical` as (groups, n_out, P, n_in, Q, K)."""
        return weight.unflatten(2, (self.n_in, -1)).unflatten(1, (self.n_out, -1))

    def rearrange(self, weight: Tensor) -> Tensor:
        """Return the matrix whose rank is the number of terms, (n_out · n_in, everything else)."""
        return self.split(weight).movedim((1, 3), (0, 1)).flatten(0, 1).flatten(1)

    def filters(self, F: Tensor) -> Tensor:
        """Return filters (groups, terms, P, Q, K) in the layout of a PH layer."""
        if self.transposed:
            F = F.flip(-1).transpose(2, 3)
        return (
            F.flatten(0, 2).unflatten(-1, self.kernel or (1,)).reshape(-1, F.shape[3], *self.kernel)
        )


def canonical(weight: Tensor, groups: int = 1, transposed: bool = False) -> Tensor:
    """Return a weight as (groups, out, in, K), in its own precision.

    Args:
        weight: In torch's layout, (out, in/groups, *k), transposed (in, out/groups, *k).
        groups: Groups of the convolution.
        transposed: Whether it is the weight of a transposed convolution.
    """
    blocks = (
        weight.unflatten(0, (groups, -1)).flatten(3)
        if weight.dim() > 2
        else (weight.unflatten(0, (groups, -1)).unsqueeze(-1))
    )
    return blocks.transpose(1, 2).flip(-1) if transposed else blocks


def check_weight(weight: Tensor) -> None:
    """Refuse a weight that holds no real numbers to decompose."""
    if weight.is_meta:
        raise ValueError("the weight is on the meta device and holds no numbers to decompose")
    if not weight.is_floating_point():
        raise TypeError(f"the weight must be real and floating-point, got {weight.dtype}")
