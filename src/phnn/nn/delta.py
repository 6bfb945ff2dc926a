r"""Deltas: what an adapter adds to a frozen layer, a PH layer that starts at zero.

.. math:: y = W x + \Delta H x, \qquad \Delta H = \sum_i A_i \otimes F_i

A delta is a PH layer without a bias, so rectangular algebras, known algebras and all forms of
computing are the same. With `filter_rank` each filter is a product :math:`F_i = L_i R_i`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from phnn import init
from phnn.nn._layer import PHLayer
from phnn.nn.conv import (
    PHConv1d,
    PHConv2d,
    PHConv3d,
    PHConvTranspose1d,
    PHConvTranspose2d,
    PHConvTranspose3d,
)
from phnn.nn.linear import PHLinear
from phnn.structure import Structure

__all__ = ["AdaptedLayer", "make_delta"]


class _FactoredFilters(PHLayer):
    """A PH layer whose filters are products of L and R; F computes them, for reading only."""

    filter_shape: tuple[int, ...]

    def factor_filters(self, rank: int) -> None:
        """Replace F by L and R of a rank."""
        F = self._parameters.pop("F")
        assert F is not None
        self.filter_shape = tuple(F.shape)
        blocks = self.groups * self.terms
        rows, columns = F.shape[0] // blocks, F[0].numel()
        if not 1 <= rank <= min(rows, columns):
            raise ValueError(
                f"filter_rank={rank} must be between 1 and {min(rows, columns)}: the filters have "
                f"{rows} rows and {columns} columns"
            )
        self.L = nn.Parameter(F.new_empty(blocks, rows, rank))
        self.R = nn.Parameter(F.new_empty(blocks, rank, columns))

    def __getattr__(self, name: str) -> Any:
        if name == "F" and "R" in self.__dict__.get("_parameters", ()):
            return (self.L @ self.R).reshape(self.filter_shape)
        return super().__getattr__(name)

    def reset_delta(self) -> None:
        """Draw L with rows of norm 1, and let R be zero."""
        nn.init.normal_(self.L, std=self.L.shape[-1] ** -0.5)
        nn.init.zeros_(self.R)


# module-level classes, so that they pickle
class FactoredLinear(_FactoredFilters, PHLinear):
    """`PHLinear` with factored filters."""


class FactoredConv1d(_FactoredFilters, PHConv1d):
    """`PHConv1d` with factored filters."""


class FactoredConv2d(_FactoredFilters, PHConv2d):
    """`PHConv2d` with factored filters."""


class FactoredConv3d(_FactoredFilters, PHConv3d):
    """`PHConv3d` with factored filters."""


class FactoredConvTranspose1d(_FactoredFilters, PHConvTranspose1d):
    """`PHConvTranspose1d` with factored filters."""


class FactoredConvTranspose2d(_FactoredFilters, PHConvTranspose2d):
    """`PHConvTranspose2d` with factored filters."""


class FactoredConvTranspose3d(_FactoredFilters, PHConvTranspose3d):
    """`PHConvTranspose3d` with factored filters."""


_FACTORED: dict[type[PHLayer], type[_FactoredFilters]] = {
    PHLinear: FactoredLinear,
    PHConv1d: FactoredConv1d,
    PHConv2d: FactoredConv2d,
    PHConv3d: FactoredConv3d,
    PHConvTranspose1d: FactoredConvTranspose1d,
    PHConvTranspose2d: FactoredConvTranspose2d,
    PHConvTranspose3d: FactoredConvTranspose3d,
}


def make_delta(
    twin: type[PHLayer], base: nn.Module, structure: Structure, filter_rank: int | None = None
) -> PHLayer:
    """Make a delta of a torch layer; it is zero at the start.

    Args:
        twin: The PH class of the layer.
        base: The layer.
        structure: Of the delta.
        filter_rank: Rank of the filters; None for any.
    """
    kind = twin if filter_rank is None else _FACTORED[twin]
    delta = kind.like(base, **structure.arguments)
    delta.register_parameter("bias", None)
    if isinstance(delta, _FactoredFilters) and filter_rank is not None:
        delta.factor_filters(filter_rank)
        delta.reset_delta()
    else:
        init.zero_(delta)
    for parameter in delta.parameters():
        parameter.requires_grad_(True)
    return delta.train(base.training)


class AdaptedLayer(nn.Module):
    """A frozen layer with deltas, one of which is in use.

    `weight` is the weight of both together, for readers such as torch's attention.

    Args:
        base: The layer.
    """

    base: nn.Module
    deltas: nn.ModuleDict

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.deltas = nn.ModuleDict()
        self.dropouts: dict[str, float] = {}
        self.active: str | None = None
        self.training = base.training

    @property
    def delta(self) -> PHLayer | None:
        """The delta in use."""
        if self.active is None:
            return None
        delta = self.deltas[self.active]
        assert isinstance(delta, PHLayer)
        return delta

    @property
    def weight(self) -> Tensor:
        """The weight of the layer plus the delta in use; for reading only."""
        weight = self.base.get_parameter("weight")
        delta = self.delta
        return weight if delta is None else weight + delta.weight

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "base" not in self.__dict__.get("_modules", ()):
                raise
            return getattr(self._modules["base"], name)  # bias, in_features, stride, …

    def forward(self, input: Tensor) -> Tensor:
        """Return what the layer computes, plus the delta in use."""
        output: Tensor = self.base(input)
        delta = self.delta
        if delta is None:
            return output
        rate = self.dropouts.get(str(self.active), 0.0)
        x = nn.functional.dropout(input, rate, self.training) if rate else input
        added: Tensor = delta(x)
        return output + added

    def merge(self) -> nn.Module:
        """Add the delta in use to the weight of the layer, and return the layer."""
        with torch.no_grad():
            self.base.get_parameter("weight").copy_(self.weight)
        return self.base

    def extra_repr(self) -> str:
        """Return the delta in use."""
        return f"active={self.active!r}"
