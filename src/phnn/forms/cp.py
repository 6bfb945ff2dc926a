r"""What all forms share that compute R products, by the CP decomposition of the algebra.

.. math:: y_a = \sum_r W[a, r] \cdot \Bigl( \bigl(\textstyle\sum_i U[i, r] F_i\bigr) *
    \bigl(\textstyle\sum_b V[b, r] x_b\bigr) \Bigr) + \mathrm{bias}_a
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from phnn.forms.base import Form, Shape, Source, Written, parameter, precise
from phnn.forms.computed import Mix
from phnn.functional._mixing import add_bias
from phnn.functional._products import mix_filters


@dataclass(frozen=True, kw_only=True)
class CPForm(Form):
    """R products of mixed components and mixed filters."""

    def is_promising(self, source: Source, shapes: Collection[Shape]) -> bool:
        """Return whether there are fewer products than in the algebra as it is."""
        sizes = source.sizes
        return self.rank is not None and self.rank < sizes.n_out * sizes.n_in


class CPWritten(Written):
    """The matrices that mix the components, around the products."""

    def __init__(self, source: Source, channels_last: bool) -> None:
        super().__init__(source, channels_last)
        assert source.factors is not None
        self.rank = source.factors.rank
        layer = source.layer
        self.mix_in = parameter(source.factors.V.mT, layer.F, layer.F.requires_grad)
        self.mix_out = parameter(source.factors.W, layer.F, layer.F.requires_grad)

    def add_bias(self, y: Tensor) -> Tensor:
        """Add the bias in place."""
        return add_bias(y, self.bias, self.sizes.dims, inplace=True)


def mix_of(source: Source, multiple: int = 1) -> Mix:
    """Return what computes the filters of the products from F."""
    assert source.factors is not None
    return Mix(source.factors, source.layer.F, source.layer.groups, multiple)


def mixed_filters(source: Source) -> Tensor:
    """Return the filters mixed by U, (groups · R · rows, columns, *kernel_size)."""
    assert source.factors is not None
    F, U = precise(source.layer.F), source.factors.U
    return mix_filters(F, None if U is None else U.detach().to(F), source.layer.groups)
