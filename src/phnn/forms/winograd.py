r"""Winograd's 3×3 convolutions, with a quarter to a half of the multiplications.

Sliding a filter along a signal is bilinear, like the algebra, so it has an algorithm of few
products, too: m outputs in m + 2 products instead of 3m (Toom and Cook; Winograd for filters),

.. math:: y = P^T \bigl( (G g) \odot (B x) \bigr)

In two dimensions it is used along both axes. At each of the (m + 2)² points of a tile, the R
products of the algebra are R matrix products.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from phnn.forms.base import Form, Shape, Source, parameter, trace
from phnn.forms.computed import Transform
from phnn.forms.cp import CPForm, mix_of, mixed_filters
from phnn.functional import Factors
from phnn.functional._mixing import mix
from phnn.nn import PHConv2d

if TYPE_CHECKING:
    from typing_extensions import Self

TAPS = 3
# by the tile size; chosen for precision, with powers that float32 holds exactly: with four
# outputs the error is twice that of a plain convolution, with ±1 and ±2 four times
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}
CHUNK = 64  # outputs whose filters are transformed at a time, in float64


def toom_cook(tile_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return P (m + 2, m), G (m + 2, 3) and B (m + 2, m + 2) for m outputs, in float64.

    Polynomials are multiplied by their values at m + 1 points and infinity; B takes the part of
    finding the coefficients from values, as filtering is the transpose of multiplying.

    Args:
        tile_size: The outputs m of a tile, 2 or 4.
    """
    points = np.array(POINTS[tile_size])
    others = [np.delete(points, i) for i in range(len(points))]
    scales = np.array([np.prod(point - rest) for point, rest in zip(points, others, strict=True)])
    B = np.zeros((len(points) + 1, len(points) + 1))
    for row, roots in zip(B, [*others, points], strict=True):
        row[: len(roots) + 1] = np.poly(roots)[::-1]
    P, G = (np.eye(1, size, size - 1) for size in (tile_size, TAPS))  # at infinity
    P = np.vstack([np.vander(points, tile_size, increasing=True), P])
    G = np.vstack([np.vander(points, TAPS, increasing=True) / scales[:, None], G])
    return torch.from_numpy(P), torch.from_numpy(G), torch.from_numpy(B)


class WinogradConvolution(nn.Module):
    """A 3×3 convolution with stride 1, of one plain weight or of R products.

    The values of a tile are rounded relative to its largest, and one that is not finite spoils the
    whole tile.

    Args:
        filters: Of all products, (R, outputs, inputs, 3, 3), trainable or not.
        factors: V and W mix the components before and after the products; None for one plain
            weight.
        bias: What is added to each channel.
        padding: Zeros at each side, along height and width.
        tile_size: Outputs of a tile along height and along width.
        channels_last: Whether the output has its channels last in memory.
    """

    cut: Tensor
    mix_in: Tensor
    weight: Tensor
    mix_out: Tensor
    join: Tensor
    bias: Tensor | None

    def __init__(
        self,
        filters: Tensor,
        factors: Factors | None,
        bias: Tensor | None,
        padding: tuple[int, int],
        tile_size: int,
        channels_last: bool,
    ) -> None:
        super().__init__()
        self.tile_size, self.padding, self.channels_last = tile_size, padding, channels_last
        self.rank, self.outputs, self.inputs = filters.shape[:3]
        self.mixes = factors is not None
        self.n_out, self.n_in = (1, 1) if factors is None else factors.shape[1:]
        P, G, B = toom_cook(tile_size)
        self.weight = nn.Parameter(_transform(filters, G), requires_grad=filters.requires_grad)
        if factors is not None:
            self.mix_in = parameter(factors.V.mT, filters, filters.requires_grad)
            self.mix_out = parameter(factors.W, filters, filters.requires_grad)
        for name, value in (("cut", B), ("join", P.mT)):
            # no buffers: torch.fx makes constants of what is computed from them
            self.register_parameter(name, parameter(value, filters, trained=False))
        if bias is not None:
            bias = parameter(bias, filters, bias.requires_grad)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        size, points = self.tile_size, self.tile_size + TAPS - 1
        height, width = (x.shape[i + 2] + 2 * self.padding[i] - TAPS + 1 for i in range(2))
        rows, columns = ((length + size - 1) // size for length in (height, width))
        top, left = self.padding
        bottom = rows * size + TAPS - 1 - top - x.shape[2]
        right = columns * size + TAPS - 1 - left - x.shape[3]
        images = nn.functional.pad(x, (left, right, top, bottom)).movedim(1, -1)
        tiles = images.unfold(1, points, size).unfold(2, points, size)
        # at each point of a tile all components, in each all tiles, and in each all its channels
        tiles = tiles.unflatten(3, (self.n_in, self.inputs)).permute(5, 6, 3, 0, 1, 2, 4)
        z = _apply_twice(self.cut, tiles.reshape(points, -1), points, points)
        if self.mixes:
            z = mix(self.mix_in, z.view(points**2, self.n_in, -1))
        z = torch.bmm(z.view(points**2 * self.rank, -1, self.inputs), self.weight)
        if self.mixes:
            z = mix(self.mix_out, z.view(points**2, self.rank, -1))
        z = _apply_twice(self.join, z.view(points, -1), size, points)
        y = z.view(size, size, self.n_out, x.shape[0], rows, columns, self.outputs)
        y = y.permute(3, 4, 0, 5, 1, 2, 6)
        y = y.reshape(x.shape[0], rows * size, columns * size, self.n_out * self.outputs)
        y = y[:, :height, :width]
        if self.bias is not None:
            y = y.add_(self.bias)
        y = y.movedim(-1, 1)
        return y if self.channels_last else y.contiguous()


def _transform(filters: Tensor, G: Tensor) -> Tensor:
    """Return the filters at each point, (points² · R, inputs, outputs), chunk by chunk."""
    points, (rank, outputs, inputs) = len(G), filters.shape[:3]
    weight = filters.new_empty((points, points, rank, inputs, outputs), requires_grad=False)
    for r in range(rank):
        for start in range(0, outputs, CHUNK):
            # on the CPU, as not all devices have float64
            block = filters[r, start : start + CHUNK].detach().cpu().double()
            transformed = torch.einsum("hx,wy,oixy->hwio", G, G, block)
            weight[:, :, r, :, start : start + CHUNK] = transformed.to(weight)
    return weight.flatten(0, 2)


def _count_points(tile_size: int) -> int:
    return (tile_size + TAPS - 1) ** 2


def _apply_twice(matrix: Tensor, values: Tensor, rows: int, columns: int) -> Tensor:
    """Apply a matrix to the first axis and to the second of (columns · columns, …)."""
    return mix(matrix, torch.mm(matrix, values).view(rows, columns, -1))


def _padding(layer: PHConv2d) -> tuple[int, int]:
    """Return the zeros at each side of a 3×3 convolution, along height and width."""
    if isinstance(layer.padding, str):
        return (1, 1) if layer.padding == "same" else (0, 0)
    return layer.padding[0], layer.padding[1]


def _suits(source: Source) -> bool:
    """Return whether a layer is a dense 3×3 convolution of stride 1 in full precision."""
    layer = source.layer
    return (
        isinstance(layer, PHConv2d)
        and layer.kernel_size == (TAPS, TAPS)
        and layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and layer.F.dtype in (torch.float32, torch.float64)
    )


def _has_tile_size(source: Source, tile_size: int, shapes: Collection[Shape]) -> bool:
    """Return whether tiles of a size suit the largest output; in low precision none do."""
    layer = source.layer
    assert isinstance(layer, PHConv2d)
    if torch.is_autocast_enabled(layer.F.device.type):
        return False
    padding = _padding(layer)
    largest = max(shape[i + 2] + 2 * padding[i] - TAPS + 1 for shape in shapes for i in range(2))
    return largest <= 4 if tile_size == 2 else largest > 2


@dataclass(frozen=True, kw_only=True)
class _Tiled(Form):
    """A Winograd convolution.

    Attributes:
        tile_size: Outputs of a tile along height and along width, 2 or 4.
    """

    is_winograd = True

    tile_size: int = 4

    @property
    def label(self) -> str:
        """The name with the tile size."""
        return f"{self.name}_{self.tile_size}"


@dataclass(frozen=True, kw_only=True)
class Winograd(_Tiled):
    """A Winograd convolution with the assembled weight H."""

    name = "winograd"
    is_dense = True

    @classmethod
    def variants(cls, source: Source, channels_last: bool) -> Iterator[Self]:
        """Yield a form for each tile size, for dense 3×3 convolutions of stride 1."""
        for tile_size in POINTS if _suits(source) else ():
            yield cls(channels_last=channels_last, tile_size=tile_size)

    def takes_norm(self, source: Source) -> bool:
        """Return True: the weight has a row for each channel."""
        return True

    def is_promising(self, source: Source, shapes: Collection[Shape]) -> bool:
        """Return whether the tile size suits the largest output."""
        return _has_tile_size(source, self.tile_size, shapes)

    def growth(self, source: Source) -> float:
        """Return the points of a tile for each position of the filter."""
        return _count_points(self.tile_size) / TAPS**2

    def recipe(self, source: Source) -> tuple[str, nn.Module] | None:
        """Return how H is assembled and transformed."""
        _, G, _ = toom_cook(self.tile_size)
        return "weight", Transform(source.assemble(), 1, G, source.layer.F)

    def build(self, source: Source) -> nn.Module:
        """Fold the layer and transform its weight."""
        layer, dense = source.layer, source.fold()
        assert isinstance(layer, PHConv2d)
        written = WinogradConvolution(
            dense.weight[None],
            None,
            dense.bias,
            _padding(layer),
            self.tile_size,
            self.channels_last,
        )
        return trace(written, "Winograd", layer)


@dataclass(frozen=True, kw_only=True)
class CPWinograd(_Tiled, CPForm):
    """A Winograd convolution with R products at each point of a tile."""

    name = "cp_winograd"

    @classmethod
    def variants(cls, source: Source, channels_last: bool) -> Iterator[Self]:
        """Yield a form for each tile size, for dense 3×3 convolutions of stride 1."""
        if source.factors is not None and _suits(source):
            for tile_size in POINTS:
                yield cls(
                    channels_last=channels_last, rank=source.factors.rank, tile_size=tile_size
                )

    def is_promising(self, source: Source, shapes: Collection[Shape]) -> bool:
        """Return whether products are saved and the tile size suits the largest output."""
        suits = _has_tile_size(source, self.tile_size, shapes)
        return suits and super().is_promising(source, shapes)

    def growth(self, source: Source) -> float:
        """Return the same for each of the products, which are fewer than those of components."""
        assert self.rank is not None
        products = self.rank / (source.sizes.n_out * source.sizes.n_in)
        return products * _count_points(self.tile_size) / TAPS**2

    def recipe(self, source: Source) -> tuple[str, nn.Module] | None:
        """Return how the filters of the products are mixed and transformed."""
        assert source.factors is not None
        _, G, _ = toom_cook(self.tile_size)
        return "weight", Transform(mix_of(source), source.factors.rank, G, source.layer.F)

    def build(self, source: Source) -> nn.Module:
        """Mix the filters and transform them."""
        layer, factors = source.layer, source.factors
        assert isinstance(layer, PHConv2d)
        assert factors is not None
        filters = mixed_filters(source).unflatten(0, (factors.rank, -1))
        filters.requires_grad_(layer.F.requires_grad)
        written = WinogradConvolution(
            filters,
            factors,
            layer.bias if source.norm is None else None,  # otherwise the norm adds it
            _padding(layer),
            self.tile_size,
            self.channels_last,
        )
        return trace(written, "CPWinograd", layer)
