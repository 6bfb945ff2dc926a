"""The form of a plain layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from phnn.forms.base import Form, Source
from phnn.functional._formats import CHANNELS_LAST, put_channels_last
from phnn.nn import PHLayer

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class Folded(Form):
    """One plain layer with the assembled weight H; every layer has it."""

    name = "folded"
    is_dense = True

    @classmethod
    def variants(cls, source: Source, channels_last: bool) -> Iterator[Self]:
        """Yield one form; channels last for images and volumes alone."""
        if not channels_last or source.layer.F.dim() in CHANNELS_LAST:
            yield cls(channels_last=channels_last)

    def takes_norm(self, source: Source) -> bool:
        """Return True: the weight has a row for each channel."""
        return True

    def recipe(self, source: Source) -> tuple[str, nn.Module] | None:
        """Return how H is assembled, unless a subclass folds by itself."""
        if type(source.layer).to_dense is not PHLayer.to_dense:
            return None
        return "weight", source.assemble()

    def build(self, source: Source) -> nn.Module:
        """Fold the layer."""
        dense = source.fold()
        if self.channels_last:
            dense.weight.data = put_channels_last(dense.weight.data)
        return dense
