r"""What an error of a layer's outputs costs the outputs of the whole model.

To first order an error δ of a layer's outputs changes the outputs of the model by J δ, so it costs
:math:`\delta^\top G \delta` with :math:`G = \mathbb{E}[J^\top J]`. For a random vector v of
independent entries, the gradient g of vᵀ · outputs has :math:`\mathbb{E}[g g^\top] = J^\top J`:
one backward pass serves all layers, and labels are not needed. Positions count as independent, as
in K-FAC (Martens and Grosse, 2015).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phnn.conversion.calibration import Calibration, evaluating, first_tensor
from phnn.conversion.sites import Site

__all__ = ["Sensitivity", "measure_sensitivities"]

SAMPLES = 256  # that are propagated back
DAMPING = 0.1  # of the mean: directions without effect on average have one on some inputs


@dataclass(frozen=True)
class Sensitivity:
    """How much the outputs of a model depend on those of one layer.

    Attributes:
        metric: Cost of an error of the layer's outputs, (groups, out, out), with mean diagonal 1.
        weight: What it costs to lose the layer's outputs altogether, relative to the variation of
            the model's outputs; an estimate of first order.
    """

    metric: Tensor
    weight: float


def measure_sensitivities(
    model: nn.Module, sites: Sequence[Site], calibration: Calibration
) -> dict[str, Sensitivity]:
    """Return the sensitivities by the names of the sites that the data reach.

    Nothing is returned for a model without gradients, such as one that detaches its outputs.
    """
    sums = {site.name: _Sums(site) for site in sites}
    probes: list[tuple[str, Tensor, Tensor]] = []
    handles = []
    for site in sites:

        def probe(module: nn.Module, args: Any, output: Any, name: str = site.name) -> Any:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                return output
            zero = torch.zeros_like(output, requires_grad=True)
            probes.append((name, output.detach(), zero))
            return output + zero

        handles.append(site.module.register_forward_hook(probe))
    generator = torch.Generator().manual_seed(0)
    outputs = []
    samples = 0
    try:
        for call in calibration.fitting:
            probes.clear()
            with evaluating(model), torch.enable_grad():
                output = first_tensor(calibration.run(model, call))
                if output is None or not output.requires_grad:
                    return {}
                direction = torch.randn(output.shape, generator=generator).to(output)
                gradients = torch.autograd.grad(
                    (output * direction).sum(), [zero for *_, zero in probes], allow_unused=True
                )
            for (name, seen, _), gradient in zip(probes, gradients, strict=True):
                if gradient is not None:
                    sums[name].add(seen, gradient)
            outputs.append(output.detach().float().flatten(1))
            samples += calibration.count([call])
            if samples >= SAMPLES:
                break
    finally:
        for handle in handles:
            handle.remove()
    energy = _variation(outputs) / max(samples, 1)
    found = {name: s.sensitivity(samples, energy) for name, s in sums.items() if s.count}
    return {name: value for name, value in found.items() if value is not None}


def _variation(outputs: Sequence[Tensor]) -> float:
    """Return the sum of squares around the mean, of outputs that may differ in width."""
    if len({rows.shape[1] for rows in outputs}) > 1:
        return float(sum((rows - rows.mean()).square().sum() for rows in outputs))
    rows = torch.cat(list(outputs))
    return float((rows - rows.mean(0)).square().sum())


class _Sums:
    """Sums over the positions of a layer's output."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.count = 0
        self.G = self.Y = self.y = torch.zeros(())

    def add(self, output: Tensor, gradient: Tensor) -> None:
        """Add an output and the gradient there."""
        y, g = self._rows(output), self._rows(gradient)
        self.count += y.shape[1]
        self.G = self.G + g.mT @ g
        self.Y = self.Y + y.mT @ y
        self.y = self.y + y.sum(1)

    def _rows(self, values: Tensor) -> Tensor:
        """Return (groups, positions, out)."""
        space = 0 if self.site.is_part else self.site.weight.dim() - 2
        channels = -1 - space if values.dim() > space else 0
        rows = values.movedim(channels, -1).flatten(0, -2).double().cpu()
        by_group: Tensor = rows.unflatten(1, (self.site.groups, -1)).transpose(0, 1)
        return by_group

    def sensitivity(self, samples: int, energy: float) -> Sensitivity | None:
        """Return the metric and the weight; None where the outputs do not depend on the layer."""
        size = float(self.G.diagonal(dim1=1, dim2=2).mean())
        if not size > 0:
            return None
        Y = self.Y
        if self.site.bias is not None:  # the bias takes up the means
            Y = Y - torch.einsum("gi,gj->gij", self.y, self.y) / self.count
        G = self.G / size
        # the mean over positions of both, times the positions of a sample
        weight = size * float((G * Y).sum()) / self.count / samples / max(energy, 1e-30)
        eye = torch.eye(G.shape[1], dtype=G.dtype)
        return Sensitivity((G + DAMPING * eye) / (1 + DAMPING), weight)


def metric_of(sensitivities: Mapping[str, Sensitivity], name: str) -> Tensor | None:
    """Return the metric of a site; None where nothing is known."""
    found = sensitivities.get(name)
    return None if found is None else found.metric
