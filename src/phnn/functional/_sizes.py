"""How the channels of a PH layer divide into groups and components."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Sizes(NamedTuple):
    r"""The sizes in :math:`y_a = \sum_{i, b} A[i, a, b] \cdot (F_i * x_b)`, for each group.

    The methods count multiplications for one position: of the output, or of the input of a
    transposed convolution.

    Attributes:
        groups: Groups of the convolution; one A serves all of them.
        terms: Kronecker terms.
        n_out: Components of the output.
        n_in: Components of the input.
        outputs: Channels of an output component.
        inputs: Channels of an input component.
        kernel: Positions of a filter.
        dims: Axes of space: 0 for a linear layer.
        transposed: Whether the convolution is transposed.
    """

    groups: int
    terms: int
    n_out: int
    n_in: int
    outputs: int
    inputs: int
    kernel: int
    dims: int
    transposed: bool

    @classmethod
    def of(
        cls, shape: Sequence[int], F: Tensor, groups: int = 1, transposed: bool = False
    ) -> Sizes:
        """Read the sizes from the shape of A, (terms, n_out, n_in), and from the filters F."""
        # a compiler would warn of the cache, and needs none
        read = _read if torch.compiler.is_compiling() else _read_once
        return read(tuple(shape), tuple(F.shape), groups, transposed)

    @property
    def is_paper(self) -> bool:
        """Whether it is the paper's layer: A square, with as many terms as components."""
        return self.terms == self.n_out == self.n_in

    @property
    def is_low_rank(self) -> bool:
        """Whether it is two plain layers: n = (out, 1) or (1, in), without groups."""
        if self.groups > 1 or self.transposed or self.is_paper:
            return False
        return self.n_in == self.outputs == 1 or self.n_out == self.inputs == 1

    @property
    def in_channels(self) -> int:
        """Channels of the input."""
        return self.groups * self.n_in * self.inputs

    @property
    def out_channels(self) -> int:
        """Channels of the output."""
        return self.groups * self.n_out * self.outputs

    def assembly(self) -> int:
        """Count the multiplications that assemble the weight, once for all positions."""
        return self.terms * self.assembled()

    def assembled(self) -> int:
        """Count one convolution with the assembled weight."""
        return self.groups * self.n_out * self.n_in * self._filter()

    def filter_first(self, step: int) -> int:
        """Count F on every input component, then A on the outputs.

        Args:
            step: Product of the strides: positions of the larger side for one of the smaller.
        """
        mixing = self.n_out * self.n_in * self.outputs * (step if self.transposed else 1)
        return self.groups * self.terms * (self.n_in * self._filter() + mixing)

    def mix_first(self, step: int) -> int:
        """Count A on the input components, then F on each mixture."""
        mixing = self.n_out * self.n_in * self.inputs * (1 if self.transposed else step)
        return self.groups * self.terms * (self.n_out * self._filter() + mixing)

    def products(self, rank: int, step: int) -> int:
        """Count R products of mixed components and mixed filters."""
        before, after = self.n_in * self.inputs, self.n_out * self.outputs
        mixing = before + after * step if self.transposed else before * step + after
        return self.groups * rank * (self._filter() + mixing)

    def mixed_filters(self, rank: int) -> int:
        """Count the mixing of the filters for R products, once for all positions."""
        return self.terms * self.groups * rank * self._filter()

    def _filter(self) -> int:
        return self.outputs * self.inputs * self.kernel


def _read(shape: tuple[int, ...], filters: tuple[int, ...], groups: int, transposed: bool) -> Sizes:
    terms, n_out, n_in = shape
    rows, columns, *kernel = filters
    rows //= groups * terms
    outputs, inputs = (columns, rows) if transposed else (rows, columns)
    positions, dims = math.prod(kernel), len(kernel)
    return Sizes(groups, terms, n_out, n_in, outputs, inputs, positions, dims, transposed)


_read_once = lru_cache(maxsize=4096)(_read)
