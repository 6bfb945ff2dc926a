r"""A dense weight as the blocks of a sum of Kronecker products.

Every weight becomes (groups, n_out, P, n_in, Q, K): output component and its channels, input
component and its channels, kernel position. A transposed convolution is a convolution of the
zero-inserted input with the flipped kernel, so one layout serves all layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Blocks", "canonical", "check_weight"]


@dataclass(frozen=True)
class Blocks:
    """The block structure of one weight.

    Attributes:
        shape: Shape of the weight in torch's layout.
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
        """Number of entries of the weight."""
        return math.prod(self.shape)

    @property
    def inner(self) -> tuple[int, int]:
        """P and Q: the channels of an output component and of an input component, in one group."""
        first, second = self.shape[0] // self.groups, self.shape[1]
        out, into = (second, first) if self.transposed else (first, second)
        return out // self.n_out, into // self.n_in

    def split(self, weight: Tensor) -> Tensor:
        """Return a weight in the layout of `canonical` as (groups, n_out, P, n_in, Q, K)."""
        blocks: Tensor = weight.unflatten(2, (self.n_in, -1)).unflatten(1, (self.n_out, -1))
        return blocks

    def rearrange(self, weight: Tensor) -> Tensor:
        """Return the matrix whose rank is the number of terms, (n_out · n_in, everything else)."""
        blocks = self.split(weight).movedim((1, 3), (0, 1))
        matrix: Tensor = blocks.flatten(0, 1).flatten(1)
        return matrix

    def fold(self, F: Tensor) -> Tensor:
        """Return filters (groups, terms, P, Q, K) in the layout of a PH layer."""
        if self.transposed:
            F = F.flip(-1).transpose(2, 3)
        return F.reshape(-1, F.shape[3], *self.kernel)

    def unfold(self, F: Tensor, terms: int) -> Tensor:
        """Return the filters of a PH layer as (groups, terms, P, Q, K)."""
        blocks = F.reshape(self.groups, terms, -1, F.shape[1], math.prod(self.kernel))
        return blocks.transpose(2, 3).flip(-1) if self.transposed else blocks


def canonical(weight: Tensor, groups: int = 1, transposed: bool = False) -> Tensor:
    """Return a weight as (groups, out, in, K), in its own precision.

    Args:
        weight: In torch's layout, (out, in/groups, *k), transposed (in, out/groups, *k).
        groups: Groups of the convolution.
        transposed: Whether it is the weight of a transposed convolution.
    """
    blocks: Tensor = weight.unsqueeze(-1).flatten(2).unflatten(0, (groups, -1))
    return blocks.transpose(1, 2).flip(-1) if transposed else blocks


def check_weight(weight: Tensor) -> None:
    """Raise an error for a weight without real numbers to decompose."""
    if weight.is_meta:
        raise ValueError("the weight is on the meta device and holds no numbers to decompose")
    if not weight.is_floating_point():
        raise TypeError(f"the weight must be real and floating-point, got {weight.dtype}")
