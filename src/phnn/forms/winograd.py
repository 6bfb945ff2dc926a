r"""Convolutions of 3×3 places in tiles, with a quarter to a half of the multiplications.

To slide a filter along a signal is bilinear, as the algebra is, and has an algorithm of few
products as well: m outputs in m + 2 products instead of 3m (Toom and Cook; Winograd for filters),

.. math:: y = P^T \bigl( (G g) \odot (B x) \bigr)

In two dimensions it is used along both. The products of the algebra stand inside those of the
tiles: what is multiplied at each of the (m + 2)² points is one matrix for each of R products.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from phnn.functional import Factors

TAPS = 3
# by the outputs of a tile; chosen for precision, with powers that float32 holds exactly: with four
# outputs the error is twice that of a plain convolution, with ±1 and ±2 four times
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}


def toom_cook(outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns P (m + 2, m), G (m + 2, 3) and B (m + 2, m + 2) for m outputs, in float64.

    Polynomials are multiplied by their values at m + 1 points and infinity; B takes the part of
    finding the coefficients from values, as filtering is the transpose of multiplying.

    Args:
        outputs: How many there are in a tile, 2 or 4.
    """
    points = np.array(POINTS[outputs])
    others = [np.delete(points, i) for i in range(len(points))]
    scales = np.array([np.prod(point - rest) for point, rest in zip(points, others, strict=True)])
    B = np.zeros((len(points) + 1, len(points) + 1))
    for row, roots in zip(B, [*others, points], strict=True):
        row[: len(roots) + 1] = np.poly(roots)[::-1]
    P, G = (np.eye(1, size, size - 1) for size in (outputs, TAPS))  # at infinity
    P = np.vstack([np.vander(points, outputs, increasing=True), P])
    G = np.vstack([np.vander(points, TAPS, increasing=True) / scales[:, None], G])
    return torch.from_numpy(P), torch.from_numpy(G), torch.from_numpy(B)


class Tiles(nn.Module):
    """A convolution of 3×3 places with stride 1, of one plain weight or of R products.

    The values of a tile are rounded relative to its largest, and one that is not finite spoils the
    whole tile.

    Args:
        filters: Of all products, (R, outputs, inputs, 3, 3), trainable or not.
        factors: V and W mix the components before and after the products; None for one plain
            weight.
        bias: What is added to each channel.
        padding: Zeros at each side, along height and width.
        size: Outputs of a tile along height and along width.
        is_last: Whether the output has its channels last in memory.
    """

    kind = "Tiles"  # in the name of the module that is made
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
        size: int,
        is_last: bool,
    ) -> None:
        super().__init__()
        self.size, self.padding, self.is_last = size, padding, is_last
        self.rank, self.outputs, self.inputs = filters.shape[:3]
        self.mixes = factors is not None
        self.n = 1 if factors is None else len(factors.V)
        P, G, B = toom_cook(size)
        # on the CPU, as not all devices have float64
        weight = torch.einsum("hx,wy,roixy->hwrio", G, G, filters.detach().cpu().double())
        learned = {"weight": weight.flatten(0, 2)}
        if factors is not None:
            learned |= {"mix_in": factors.V.mT, "mix_out": factors.W}
        for name, value in learned.items():
            self.register_parameter(name, parameter(value, filters, filters.requires_grad))
        for name, value in (("cut", B), ("join", P.mT)):
            # no buffers: torch.fx makes constants of what is computed from them
            self.register_parameter(name, parameter(value, filters, trained=False))
        if bias is not None:
            bias = parameter(bias, filters, bias.requires_grad)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        size, points = self.size, self.size + TAPS - 1
        height, width = (x.shape[i + 2] + 2 * self.padding[i] - TAPS + 1 for i in range(2))
        rows, columns = ((length + size - 1) // size for length in (height, width))
        top, left = self.padding
        bottom = rows * size + TAPS - 1 - top - x.shape[2]
        right = columns * size + TAPS - 1 - left - x.shape[3]
        images = nn.functional.pad(x, (left, right, top, bottom)).movedim(1, -1)
        tiles = images.unfold(1, points, size).unfold(2, points, size)
        # at each point of a tile all components, in each all tiles, and in each all its channels
        tiles = tiles.unflatten(3, (self.n, self.inputs)).permute(5, 6, 3, 0, 1, 2, 4)
        z = self._transform(self.cut, tiles.reshape(points, -1))
        if self.mixes:
            z = mix(self.mix_in, z.view(points**2, self.n, -1))
        z = torch.bmm(z.view(points**2 * self.rank, -1, self.inputs), self.weight)
        if self.mixes:
            z = mix(self.mix_out, z.view(points**2, self.rank, -1))
        z = self._transform(self.join, z.view(points, -1))
        y = z.view(size, size, self.n, x.shape[0], rows, columns, self.outputs)
        y = y.permute(3, 4, 0, 5, 1, 2, 6)
        y = y.reshape(x.shape[0], rows * size, columns * size, self.n * self.outputs)
        y = y[:, :height, :width]
        if self.bias is not None:
            y = y.add_(self.bias)
        y = y.movedim(-1, 1)
        return y if self.is_last else y.contiguous()

    def _transform(self, matrix: Tensor, values: Tensor) -> Tensor:
        """Applies a matrix to the first axis, and to the second, of (points · points, …)."""
        once = torch.mm(matrix, values)
        return mix(matrix, once.view(matrix.shape[0], matrix.shape[1], -1))


def parameter(value: Tensor, like: Tensor, trained: bool) -> nn.Parameter:
    """A value in the precision of a tensor, and where that is."""
    value = value.detach().to(like, copy=True).contiguous()
    return nn.Parameter(value, requires_grad=trained)


def mix(matrix: Tensor, blocks: Tensor) -> Tensor:
    """The matrix times each of the blocks, (batch, columns, places)."""
    return torch.bmm(matrix.expand(blocks.shape[0], -1, -1), blocks)
