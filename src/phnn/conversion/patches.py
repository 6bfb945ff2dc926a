"""The patches that a layer sees of its input: one row for each position of its output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phnn.conversion.opening import Matrix
from phnn.conversion.sites import Site

__all__ = ["Geometry"]


@dataclass(frozen=True)
class Geometry:
    """How a layer looks at its input.

    Attributes:
        kernel: Kernel size; empty for linear layers.
        stride: Steps of the kernel; of a transposed convolution, zeros inserted between inputs.
        dilation: Spacing of the kernel.
        pads: Padding before and after, for each axis of space.
        mode: How the padding is filled.
        groups: Groups of channels.
        transposed: Whether it is a transposed convolution.
        sides: Parts of the columns of a matrix, which are its kernel positions.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    pads: tuple[tuple[int, int], ...] = ()
    mode: str = "zeros"
    groups: int = 1
    transposed: bool = False
    sides: int = 1

    @classmethod
    def of(cls, site: Site) -> Geometry:
        """Read the geometry of a site."""
        layer = site.dense
        if isinstance(layer, Matrix):  # its groups are gates, which read the same input
            return cls((), groups=layer.groups, sides=layer.sides)
        if isinstance(layer, nn.Linear | nn.Embedding):
            return cls(())
        assert isinstance(layer, nn.modules.conv._ConvNd)
        kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if layer.padding == "same":
            pads = [(total // 2, total - total // 2) for total in reach]
        elif layer.padding == "valid":
            pads = [(0, 0)] * len(kernel)
        else:
            pads = [(int(p), int(p)) for p in layer.padding]
        if layer.transposed:
            pads = [
                (total - before, total - after + extra)
                for total, (before, after), extra in zip(
                    reach, pads, layer.output_padding, strict=True
                )
            ]
        return cls(
            tuple(kernel),
            tuple(stride),
            tuple(dilation),
            tuple(pads),
            layer.padding_mode,
            layer.groups,
            bool(layer.transposed),
        )

    def _prepare(self, x: Tensor) -> Tensor:
        """Return an input with its batch and padding, (batch, channels, *space)."""
        if x.dim() == len(self.kernel) + 1:
            x = x.unsqueeze(0)
        if self.transposed:
            x = self._insert_zeros(x)
        flat = [pad for pads in reversed(self.pads) for pad in pads]
        if any(flat):
            x = nn.functional.pad(x, flat, mode="constant" if self.mode == "zeros" else self.mode)
        return x

    def _steps(self) -> tuple[int, ...]:
        return tuple(1 for _ in self.kernel) if self.transposed else self.stride

    def _count(self, space: Sequence[int]) -> list[int]:
        """Return the positions along each axis of a prepared input."""
        axes = zip(space, self.kernel, self.dilation, self._steps(), strict=True)
        return [(size - d * (k - 1) - 1) // step + 1 for size, k, d, step in axes]

    def _insert_zeros(self, x: Tensor) -> Tensor:
        sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], self.stride, strict=True)]
        spread = x.new_zeros(*x.shape[:2], *sizes)
        inside: Any = (..., *(slice(None, None, s) for s in self.stride))
        spread[inside] = x
        return spread

    def count_positions(self, x: Tensor) -> int:
        """Return how many positions the output has, in all samples."""
        if not x.is_floating_point():  # row numbers of a table
            return x.numel()
        if not self.kernel:
            return x.numel() // x.shape[-1]
        dims = len(self.kernel)
        one, batch = (x[:1], len(x)) if x.dim() == dims + 2 else (x, 1)
        return batch * math.prod(self._count(self._prepare(one).shape[2:]))

    def take(self, x: Tensor, most: int, generator: torch.Generator) -> Tensor:
        """Return patches of an input, (groups, patches, channels · kernel).

        Args:
            x: The input of the layer.
            most: Draw this many positions where there are more.
            generator: Draws them; equal states draw equal positions.
        """
        if not self.kernel:
            rows = x.reshape(-1, x.shape[-1])
            if len(rows) > most:
                rows = rows[torch.randperm(len(rows), generator=generator)[:most].to(x.device)]
            if self.sides > 1:
                rows = rows.unflatten(1, (self.sides, -1)).transpose(1, 2).flatten(1)
            return rows.expand(self.groups, *rows.shape)
        x = self._prepare(x)
        batch, channels, *space = x.shape
        counts = self._count(space)
        total = batch * math.prod(counts)
        if total > most:
            drawn = torch.randperm(total, generator=generator)[:most].to(x.device)
        else:
            drawn = torch.arange(total, device=x.device)
        # rows of channels, and which of them each patch consists of
        rows = x.movedim(1, -1).reshape(-1, channels)
        first, *position = torch.unravel_index(drawn, (batch, *counts))
        where = first.unsqueeze(1)
        for axis, step, kernel, dilation, size in zip(
            position, self._steps(), self.kernel, self.dilation, space, strict=True
        ):
            reach = torch.arange(kernel, device=x.device) * dilation
            along = axis.unsqueeze(1) * step + reach
            where = (where.unsqueeze(2) * size + along.unsqueeze(1)).flatten(1)
        patches = rows[where.flatten()].view(len(drawn), where.shape[1], self.groups, -1)
        return patches.permute(2, 0, 3, 1).flatten(2)
