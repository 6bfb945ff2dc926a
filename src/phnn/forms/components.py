"""Forms that compute with A and F as they are."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from phnn.forms.base import Form, Shape, Source, Written, parameter, plain_layer, precise, trace
from phnn.forms.norms import fuse, scale_and_shift
from phnn.functional._components import (
    filter_first,
    filters_first,
    filters_last,
    mix_first,
    rules_after,
    rules_before,
)
from phnn.functional._formats import CHANNELS_LAST

if TYPE_CHECKING:
    from typing_extensions import Self


class _FilterFirst(Written):
    def __init__(self, source: Source, channels_last: bool, takes_norm: bool) -> None:
        super().__init__(source, channels_last)
        layer, sizes = source.layer, self.sizes
        weight = filters_first(layer.F.detach(), sizes)
        inputs, outputs = sizes.groups * sizes.inputs, sizes.groups * sizes.terms * sizes.outputs
        self.filter = plain_layer(layer, weight, inputs, outputs)
        rules = precise(rules_after(layer.algebra_tensor))
        if takes_norm and source.norm is not None:
            scale, shift = scale_and_shift(source.norm)
            rules = rules * scale[:, None]
            shift = shift if layer.bias is None else shift + layer.bias.detach() * scale
            self.bias = parameter(shift, layer.F, layer.F.requires_grad)
        self.rules = parameter(rules, layer.F, layer.F.requires_grad)

    def compute(self, x: Tensor) -> Tensor:
        return filter_first(
            x, self.filter, self.rules, self.bias, self.sizes, self.channels_last, inplace=True
        )


class _MixFirst(Written):
    def __init__(self, source: Source, channels_last: bool) -> None:
        super().__init__(source, channels_last)
        layer, sizes = source.layer, self.sizes
        weight = filters_last(layer.F.detach(), sizes)
        inputs, outputs = sizes.groups * sizes.terms * sizes.inputs, sizes.groups * sizes.outputs
        self.filter = plain_layer(layer, weight, inputs, outputs)
        if sizes.n_out == 1:
            bias = layer.bias
            if bias is not None:
                bias = parameter(bias, layer.F, bias.requires_grad)
            self.filter.bias, self.bias = bias, None
            if source.norm is not None:
                fuse(self.filter, source.norm)
        self.rules = parameter(rules_before(layer.algebra_tensor), layer.F, layer.F.requires_grad)

    def compute(self, x: Tensor) -> Tensor:
        return mix_first(
            x, self.rules, self.filter, self.bias, self.sizes, self.channels_last, inplace=True
        )


@dataclass(frozen=True, kw_only=True)
class FilterFirst(Form):
    r"""Every component with all filters, then the algebra.

    .. math:: y_a = \sum_{i, b} A[i, a, b] \cdot (F_i * x_b) + \mathrm{bias}_a

    With as many terms as n this saves no multiplications, but it reads the filters alone, 1/n of
    the folded weight, and where positions are few it is the weights that take the time.
    """

    name = "filter_first"

    @classmethod
    def variants(cls, source: Source, channels_last: bool) -> Iterator[Self]:
        """Yield one form."""
        if not channels_last or source.layer.F.dim() in CHANNELS_LAST:
            yield cls(channels_last=channels_last)

    def takes_norm(self, source: Source) -> bool:
        """Return whether the algebra has a row for each channel: a low-rank layer."""
        sizes = source.sizes
        return sizes.outputs == sizes.groups == 1 and not sizes.is_paper

    def is_promising(self, source: Source, shapes: Collection[Shape]) -> bool:
        """Return whether it saves multiplications, or positions are few.

        Few are those whose filtered components have at most twice as many numbers as the weight.
        The layers themselves filter first where they have fewer; here it is timed, so the border
        is wide.
        """
        sizes, step = source.sizes, math.prod(source.stride)
        if sizes.n_out * sizes.n_in == 1:
            return False
        if sizes.filter_first(step) < sizes.assembled():
            return True
        channels = sizes.groups * sizes.n_in * sizes.terms * sizes.outputs
        channels *= step if sizes.transposed else 1
        weight = sizes.assembled()  # a multiplication for each of its numbers
        return all(source.count_positions(shape) * channels <= 2 * weight for shape in shapes)

    def build(self, source: Source) -> nn.Module:
        """Build the module."""
        written = _FilterFirst(source, self.channels_last, self.takes_norm(source))
        return trace(written, "FilterFirst", source.layer)


@dataclass(frozen=True, kw_only=True)
class MixFirst(Form):
    r"""The algebra on the input components, then the filters on each mixture.

    .. math:: y_a = \sum_i F_i * \sum_b A[i, a, b] \, x_b + \mathrm{bias}_a
    """

    name = "mix_first"

    @classmethod
    def variants(cls, source: Source, channels_last: bool) -> Iterator[Self]:
        """Yield one form."""
        if not channels_last or source.layer.F.dim() in CHANNELS_LAST:
            yield cls(channels_last=channels_last)

    def takes_norm(self, source: Source) -> bool:
        """Return whether the filters make one component, so that they have a row per channel."""
        return source.sizes.n_out == 1

    def is_promising(self, source: Source, shapes: Collection[Shape]) -> bool:
        """Return whether it saves multiplications."""
        sizes = source.sizes
        return sizes.mix_first(math.prod(source.stride)) < sizes.assembled()

    def build(self, source: Source) -> nn.Module:
        """Build the module."""
        return trace(_MixFirst(source, self.channels_last), "MixFirst", source.layer)
