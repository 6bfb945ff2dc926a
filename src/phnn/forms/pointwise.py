"""CP products as products of matrices, for layers that see one position at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from phnn.forms.base import Source, parameter, trace
from phnn.forms.computed import Matrices
from phnn.forms.cp import CPForm, CPWritten, mix_of, mixed_filters
from phnn.functional._formats import CHANNELS_LAST
from phnn.functional._mixing import mix, space_of
from phnn.functional._products import multiply_rows

if TYPE_CHECKING:
    from typing_extensions import Self


class _Pointwise(CPWritten):
    filters: Tensor
    from_left: ClassVar[bool] = True

    def __init__(self, source: Source, channels_last: bool) -> None:
        super().__init__(source, channels_last)
        layer = source.layer
        filters = mixed_filters(source).flatten(1).unflatten(0, (layer.groups * self.rank, -1))
        filters = filters if self.from_left else filters.mT
        self.filters = parameter(filters, layer.F, layer.F.requires_grad)
        self.stride = source.stride

    def thin(self, x: Tensor, format: torch.memory_format = torch.contiguous_format) -> Tensor:
        """Return the positions that the stride leaves.

        In memory of their own: whether they need it would depend on sizes that export leaves open.
        """
        if all(step == 1 for step in self.stride):
            return x
        steps: list[Any] = [slice(None, None, step) for step in self.stride]
        return x[(..., *steps)].clone(memory_format=format)


class _Samples(_Pointwise):
    def compute(self, x: Tensor) -> Tensor:
        sizes, x = self.sizes, self.thin(x)
        space = space_of(x, sizes.dims)
        blocks, positions = x.shape[0] * sizes.groups, math.prod(space)
        mixed = mix(self.mix_in, x.reshape(blocks, sizes.n_in, sizes.inputs * positions))
        mixed = mixed.view(x.shape[0], sizes.groups * self.rank, sizes.inputs, positions)
        z = torch.matmul(self.filters, mixed)
        y = mix(self.mix_out, z.view(blocks, self.rank, sizes.outputs * positions))
        return self.add_bias(y.view(x.shape[0], sizes.out_channels, *space))


class _Columns(_Pointwise):
    def compute(self, x: Tensor) -> Tensor:
        sizes, columns = self.sizes, self.thin(x.transpose(0, 1))
        mixed = mix(self.mix_in, columns.reshape(sizes.groups, sizes.n_in, -1))
        z = torch.bmm(self.filters, mixed.view(sizes.groups * self.rank, sizes.inputs, -1))
        y = mix(self.mix_out, z.view(sizes.groups, self.rank, -1))
        y = y.view(sizes.out_channels, x.shape[0], *space_of(columns, sizes.dims))
        return self.add_bias(y.transpose(0, 1).contiguous())


class _Rows(_Pointwise):
    from_left = False

    def compute(self, x: Tensor) -> Tensor:
        sizes = self.sizes
        if sizes.dims:
            format = CHANNELS_LAST.get(sizes.dims + 2, torch.contiguous_format)
            x = self.thin(x, format).movedim(1, -1)
        y = multiply_rows(x, self.mix_in, self.filters, self.mix_out, sizes, self.rank)
        if sizes.dims:
            y = y.view(x.shape[:-1] + (sizes.out_channels,)).movedim(-1, 1)  # noqa: RUF005
            y = y if self.channels_last else y.contiguous()
        return self.add_bias(y)


@dataclass(frozen=True, kw_only=True)
class _CPPointwise(CPForm):
    written: ClassVar[type[_Pointwise]]

    @classmethod
    def variants(cls, source: Source, channels_last: bool) -> Iterator[Self]:
        """Yield one form, for convolutions of one position with channels first."""
        is_convolution = source.layer.F.dim() > 2 and source.is_pointwise
        if source.factors is not None and is_convolution and not channels_last:
            yield cls(rank=source.factors.rank)

    def recipe(self, source: Source) -> tuple[str, nn.Module] | None:
        """Return how the matrices of the products are mixed."""
        return "filters", Matrices(mix_of(source), self.written.from_left)

    def build(self, source: Source) -> nn.Module:
        """Build the module."""
        return trace(self.written(source, self.channels_last), "CPPointwise", source.layer)


@dataclass(frozen=True, kw_only=True)
class CPSamples(_CPPointwise):
    """A product for each sample, from the left; its columns are positions."""

    name = "cp_samples"
    written = _Samples


@dataclass(frozen=True, kw_only=True)
class CPColumns(_CPPointwise):
    """One product for all samples, from the left; its columns are the positions of all."""

    name = "cp_columns"
    written = _Columns


@dataclass(frozen=True, kw_only=True)
class CPRows(_CPPointwise):
    """One product for all samples, from the right; its rows are positions, channels last."""

    name = "cp_rows"
    written = _Rows

    @classmethod
    def variants(cls, source: Source, channels_last: bool) -> Iterator[Self]:
        """Yield one form, also for linear layers."""
        has_format = not channels_last or source.layer.F.dim() in CHANNELS_LAST
        if source.factors is not None and source.is_pointwise and has_format:
            yield cls(channels_last=channels_last, rank=source.factors.rank)
