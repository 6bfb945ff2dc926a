"""Sums over the patches that a layer receives, and the moments that a fit needs of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from phnn.conversion.calibration import Calibration
from phnn.conversion.patches import Geometry
from phnn.conversion.sites import Site
from phnn.decompose.activations import Moments
from phnn.decompose.blocks import canonical

__all__ = ["PATCHES", "Sums", "apply", "sums_of"]

PATCHES = 32768  # that a layer is fitted to; at least four for each number in a patch
MANY = 256  # patches for each number in one are enough
FEWEST = 16  # calls that patches are drawn from


class Sums:
    """Sums over the patches of one site, from which its moments are made."""

    def __init__(self, site: Site) -> None:
        self.site, self.geometry = site, Geometry.of(site)
        weight = canonical(site.weight, site.groups, site.transposed)
        self.groups, self.out, inputs, kernel = weight.shape
        self.size = inputs * kernel
        self.centred = site.bias is not None
        self.count = 0
        self.calls: int | None = None  # that are drawn from; known after the first
        self.C = self.B = self.Y = self.x = self.y = torch.zeros(())

    def draw(self, x: Tensor, call: int, calibration: Calibration) -> Tensor | None:
        """Return some patches of an input: for the same call always those of the same positions.

        Layers with many positions have seen enough after some of the calls; then it returns None.
        """
        most = max(4 * self.size, min(MANY * self.size, PATCHES))
        if self.calls is None:
            enough = -(-4 * most // max(self.geometry.count_positions(x), 1))
            self.calls = min(len(calibration.fitting), max(FEWEST, enough))
        if call >= self.calls:
            return None
        count = most // self.calls + 1
        return self.geometry.take(x, count, calibration.generator(1 + call))

    def add(self, patches: Tensor, targets: Tensor) -> None:
        """Add patches (groups, count, in · K) and targets (groups, count, out)."""
        x, y = patches.float().cpu(), targets.float().cpu()  # sums over calls are float64
        self.count += x.shape[1]
        self.C = self.C + (x.mT @ x).double()
        self.B = self.B + (x.mT @ y).double()
        self.x = self.x + x.double().sum(1)
        self.y = self.y + y.double().sum(1)
        self.Y = self.Y + (y.mT @ y).double()

    def moments(self, metric: Tensor | None = None) -> Moments | None:
        """Return the moments, centred where a bias takes up the means.

        Args:
            metric: What an error of the outputs costs, (groups, out, out).
        """
        if not self.C.any():  # nothing, or zeros: the first state of a cell that makes one step
            return None
        C, B, Y = self.C, self.B, self.Y
        if self.centred:
            C = C - torch.einsum("gi,gj->gij", self.x, self.x) / self.count
            B = B - torch.einsum("gi,go->gio", self.x, self.y) / self.count
            Y = Y - torch.einsum("gi,go->gio", self.y, self.y) / self.count
        trace = Y.diagonal(dim1=1, dim2=2) if metric is None else Y * metric
        return Moments(C, B, max(0.0, float(trace.sum())), metric)

    def correct_bias(self, weight: Tensor) -> Tensor | None:
        """Return the bias with which the outputs keep their means, for a weight (g, out, in, K)."""
        bias = self.site.bias
        if bias is None:
            return None
        if not self.count:
            return bias.detach().double().cpu()
        kept = torch.einsum("goi,gi->go", weight.flatten(2), self.x)
        return bias.detach().double().cpu() + ((self.y - kept) / self.count).flatten()


class _TableSums(Sums):
    r"""How often each row of a table is looked up.

    Rows that are used more count more: the error is :math:`\sum_r p_r \lVert E_r - H_r \rVert^2`,
    in the metric of the outputs. Half of p is the same for all rows, as the data may lack some.
    """

    def draw(self, x: Tensor, call: int, calibration: Calibration) -> Tensor | None:
        """Return all row numbers."""
        return x.reshape(1, -1, 1)

    def add(self, patches: Tensor, targets: Tensor) -> None:
        """Count row numbers."""
        self.count += patches.numel()
        self.C = self.C + torch.bincount(patches.flatten().cpu(), minlength=self.out).double()

    def moments(self, metric: Tensor | None = None) -> Moments | None:
        """Return moments that stand for all rows, each times the root of its share."""
        if not self.count:
            return None
        shares = 0.5 + 0.5 * self.C * len(self.C) / self.count
        rows = shares.sqrt().view(-1, 1, 1)
        weight = canonical(self.site.weight.detach().double().cpu()) * rows
        size = weight.shape[2]
        C = torch.eye(size, dtype=torch.float64).unsqueeze(0) if metric is None else metric
        return replace(Moments.of(weight, C), rows=rows)

    def correct_bias(self, weight: Tensor) -> Tensor | None:
        """Return None: tables have no bias."""
        return None


def sums_of(site: Site) -> Sums:
    """Return the empty sums of a site."""
    return _TableSums(site) if site.is_table else Sums(site)


def apply(site: Site, patches: Tensor) -> Tensor:
    """Return what the original weight makes of patches, without the bias."""
    if site.is_table:
        return patches
    weight = canonical(site.weight.detach(), site.groups, site.transposed)
    return patches.to(weight.dtype) @ weight.flatten(2).mT
