"""The patches that a layer sees of its input: one row for each position of its output."""

from __future__ import annotations

import math
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

    def view(self, x: Tensor) -> Tensor:
        """Return all patches as a view where possible, (batch, channels, *positions, *kernel)."""
        if not self.kernel:
            return x.reshape(-1, x.shape[-1])
        dims = len(self.kernel)
        if x.dim() == dims + 1:
            x = x.unsqueeze(0)
        if self.transposed:
            x = self._insert_zeros(x)
        flat = [pad for pads in reversed(self.pads) for pad in pads]
        if any(flat):
            mode = "constant" if self.mode == "zeros" else self.mode
            x = nn.functional.pad(x, flat, mode=mode)
        for axis, (kernel, dilation) in enumerate(zip(self.kernel, self.dilation, strict=True)):
            step = 1 if self.transposed else self.stride[axis]
            x = x.unfold(2 + axis, dilation * (kernel - 1) + 1, step)
            if dilation > 1:
                x = x[..., ::dilation]
        return x

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
        view = self.view(x[:1] if x.dim() == len(self.kernel) + 2 else x)
        batch = len(x) if x.dim() == len(self.kernel) + 2 else 1
        return batch * math.prod(view.shape[2 : 2 + len(self.kernel)])

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
        dims = len(self.kernel)
        view = self.view(x)
        sizes = (view.shape[0], *view.shape[2 : 2 + dims])
        total = math.prod(sizes)
        if total > most:
            drawn = torch.randperm(total, generator=generator)[:most].to(x.device)
        else:
            drawn = torch.arange(total, device=x.device)
        batch, *position = torch.unravel_index(drawn, sizes)
        where: Any = (batch, slice(None), *position)
        patches = view[where].unflatten(1, (self.groups, -1))
        taken: Tensor = patches.transpose(0, 1).flatten(2)
        return taken
