"""CP products as one grouped convolution."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from phnn.forms.base import Shape, Source, plain_layer, trace
from phnn.forms.cp import CPForm, CPWritten, mix_of, mixed_filters
from phnn.functional._formats import CHANNELS_LAST
from phnn.functional._products import VECTOR, multiply_grouped, pad_filters, whole

if TYPE_CHECKING:
    from typing_extensions import Self


class _Grouped(CPWritten):
    def __init__(
        self, source: Source, channels_last: bool, multiple: int, inside_last: bool
    ) -> None:
        super().__init__(source, channels_last)
        self.multiple, self.inside_last = multiple, inside_last
        layer, blocks = source.layer, source.layer.groups * self.rank
        inputs, outputs = (
            blocks * whole(size, multiple) for size in (self.sizes.inputs, self.sizes.outputs)
        )
        filters = pad_filters(mixed_filters(source), blocks, multiple)
        self.multiply = plain_layer(layer, filters, inputs, outputs, blocks)
        if inside_last:
            self.multiply.to(memory_format=CHANNELS_LAST[layer.F.dim()])

    def compute(self, x: Tensor) -> Tensor:
        y = multiply_grouped(
            x,
            self.mix_in,
            self.multiply,
            self.mix_out,
            self.sizes,
            self.rank,
            self.multiple,
            self.inside_last,
        )
        if self.inside_last and not self.channels_last:
            y = y.contiguous()
        return self.add_bias(y)


@dataclass(frozen=True, kw_only=True)
class CPGrouped(CPForm):
    """One convolution with R groups, between two mixings of the components.

    Attributes:
        zero_padded: Whether its groups are zero-padded, as torch's kernels are fast for whole
            vectors of channels.
        inside_last: Whether it has the channels last in memory, even if its input does not.
    """

    name = "cp_grouped"

    zero_padded: bool = False
    inside_last: bool = False

    @property
    def label(self) -> str:
        """The name and what tells the variants apart."""
        label = self.name + "_padded" * self.zero_padded
        return label + "_last" * self.inside_last

    @property
    def minds_format(self) -> bool:
        """Whether it has the channels last in memory, somewhere."""
        return self.channels_last or self.inside_last

    @classmethod
    def variants(cls, source: Source, channels_last: bool) -> Iterator[Self]:
        """Yield up to four forms, for convolutions that see more than one position."""
        dims = source.layer.F.dim()
        if source.factors is None or source.is_pointwise or dims == 2:
            return
        for inside_last in (False, True):
            if channels_last > inside_last or (inside_last and dims not in CHANNELS_LAST):
                continue
            for zero_padded in (False, True):
                yield cls(
                    channels_last=channels_last,
                    rank=source.factors.rank,
                    zero_padded=zero_padded,
                    inside_last=inside_last,
                )

    def is_promising(self, source: Source, shapes: Collection[Shape]) -> bool:
        """Return whether products are saved; zero-padding only where vectors are not whole."""
        widths = (source.sizes.outputs, source.sizes.inputs)
        is_whole = all(width % VECTOR == 0 for width in widths)
        return super().is_promising(source, shapes) and not (self.zero_padded and is_whole)

    def recipe(self, source: Source) -> tuple[str, nn.Module] | None:
        """Return how the filters of the products are mixed."""
        return "multiply.weight", mix_of(source, VECTOR if self.zero_padded else 1)

    def build(self, source: Source) -> nn.Module:
        """Build the module."""
        multiple = VECTOR if self.zero_padded else 1
        written = _Grouped(source, self.channels_last, multiple, self.inside_last)
        return trace(written, "CPGrouped", source.layer)
