r"""Layers fitted to calibration data, one after the other.

In the order of the forward pass each layer is fitted to what the original computes there, from what
the converted network feeds it: with X the patches of the original and X̃ those of the converted
network, it minimises :math:`\lVert W X - H \tilde X \rVert^2`. So later layers mend what earlier
ones got wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from phnn.conversion.calibration import Calibration
from phnn.conversion.candidates import solve, start_of
from phnn.conversion.patches import Geometry
from phnn.conversion.sensitivity import Sensitivity, metric_of
from phnn.conversion.sites import Site
from phnn.decompose.activations import Moments, assemble, dense_fit
from phnn.decompose.blocks import canonical
from phnn.structure import Structure

__all__ = ["Fit", "Fitted", "fit_in_order", "measure", "measure_distance"]

MEMORY = 2**30  # bytes of second moments, or of targets, that are held at once
RIDGE = 1e-3  # pull towards the original weight, relative to the mean diagonal of C
PATCHES = 32768  # that a layer is fitted to; at least four for each number in a patch
MANY = 256  # patches for each number in one are enough
FEWEST = 16  # calls that patches are drawn from
ROUNDS, GAIN = 12, 0.002  # of the final fits: four rounds leave some 8 % above the limit
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Fit:
    """What a layer becomes.

    Attributes:
        structure: Of the PH layer; None for a layer that stays dense.
        A: The algebra, float64; None for a dense layer.
        F: The filters, (groups, terms, P, Q, K); of a dense layer the weight (groups, out, in, K).
        bias: The corrected bias; None where the layer has none.
        error: Squared error of the outputs, relative to their energy.
    """

    structure: Structure | None
    A: Tensor | None
    F: Tensor
    bias: Tensor | None
    error: float


@dataclass(frozen=True)
class Fitted:
    """A whole network.

    Attributes:
        model: The converted network with dense weights.
        fits: The layers, by the names of their sites.
        distance: Squared difference from the original's outputs on held-out data, relative to their
            variation.
    """

    model: nn.Module
    fits: Mapping[str, Fit]
    distance: float


def measure(
    model: nn.Module,
    sites: Sequence[Site],
    calibration: Calibration,
    sensitivities: Mapping[str, Sensitivity],
) -> Iterator[tuple[Site, Moments | None]]:
    """Yield the moments of what each layer receives in the original model.

    None stands for layers whose second moment would not fit into memory, and for layers that
    receive nothing.
    """
    for group in _batches(sites, _moment_bytes):
        sums = {site.name: _sums_of(site) for site in group}

        def see(site: Site, call: int, x: Tensor, sums: dict[str, _Sums] = sums) -> None:
            gathered = sums[site.name]
            patches = gathered.draw(x, call, len(calibration.fitting))
            if patches is not None:
                gathered.add(patches, _apply(site, patches))

        calibration.observe(model, [s for s in group if _moment_bytes(s) <= MEMORY], see)
        for site in group:
            yield site, sums.pop(site.name).moments(metric_of(sensitivities, site.name))


def fit_in_order(
    model: nn.Module,
    sites: Sequence[Site],
    structures: Mapping[str, Structure | None],
    calibration: Calibration,
    sensitivities: Mapping[str, Sensitivity],
    progress: Progress | None = None,
    by_weight: Container[str] = (),
) -> Fitted:
    """Fit the layers of a model one after the other, in the order of the forward pass.

    Args:
        model: The original, which is not changed.
        sites: Its sites, in the order in which they are called.
        structures: What each becomes; None for layers that stay dense and are fitted, too.
        calibration: The data.
        sensitivities: What errors of the layers cost; layers without one count all errors alike.
        progress: Told what is done, how far, and of how much.
        by_weight: Names of sites to fit to their weights, because other layers share them.
    """
    student = copy.deepcopy(model)
    fits: dict[str, Fit] = {}
    chosen = [site for site in sites if site.name in structures]
    for group in _batches(chosen, _target_bytes):
        measured = [s for s in group if s.name not in by_weight and has_room(s)]
        targets = _targets(model, measured, calibration)
        for site in group:
            if progress is not None:
                progress("fitting layers", len(fits), len(chosen))
            moments, sums = None, _sums_of(site)
            if site.name in targets:  # not what others share, nor what would not fit into memory
                sums = _student_sums(student, site, targets.pop(site.name), calibration)
                moments = sums.moments(metric_of(sensitivities, site.name))
            fits[site.name] = _fit_site(site, structures[site.name], moments, sums)
            fit = fits[site.name]
            weight = fit.F if fit.A is None else assemble(fit.A, fit.F)
            site.write(student.get_submodule(site.name), weight, fit.bias)
    return Fitted(student, fits, _distance(model, student, calibration))


def _distance(model: nn.Module, student: nn.Module, calibration: Calibration) -> float:
    return measure_distance(calibration.outputs(model), calibration.outputs(student))


def measure_distance(expected: Tensor, actual: Tensor) -> float:
    """Return the squared difference of outputs, relative to the variation of the expected ones."""
    centred = expected - expected.mean(0) if len(expected) > 1 else expected
    return float((actual - expected).square().sum() / centred.square().sum().clamp_min(1e-30))


def retake_norms(fitted: Fitted, model: nn.Module, calibration: Calibration) -> Fitted:
    """Return the network with its batch norm statistics taken again, if that brings it nearer."""
    student = copy.deepcopy(fitted.model)
    norms = [m for m in student.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in norms if norm.running_mean is not None]
    if not norms:
        return fitted
    momenta = [norm.momentum for norm in norms]
    with torch.no_grad():
        student.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over all calls
            norm.train()
        for call in calibration.fitting:
            calibration.forward(student, call)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
    distance = _distance(model, student, calibration)
    return Fitted(student, fitted.fits, distance) if distance < fitted.distance else fitted


class _Sums:
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

    def draw(self, x: Tensor, call: int, calls: int) -> Tensor | None:
        """Return some patches of an input: for the same call always those of the same positions.

        Layers with many positions have seen enough after some of the calls; then it returns None.
        """
        most = max(4 * self.size, min(MANY * self.size, PATCHES))
        if self.calls is None:
            enough = -(-4 * most // max(self.geometry.count_positions(x), 1))
            self.calls = min(calls, max(FEWEST, enough))
        if call >= self.calls:
            return None
        generator = torch.Generator().manual_seed(1 + call)
        return self.geometry.take(x, most // self.calls + 1, generator)

    def add(self, patches: Tensor, targets: Tensor) -> None:
        """Add patches (groups, count, in · K) and targets (groups, count, out)."""
        exact = torch.float64 if self.size <= 1200 else torch.float32  # speed, for large ones
        x, y = patches.to(exact).cpu(), targets.to(exact).cpu()
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


class _TableSums(_Sums):
    r"""How often each row of a table is looked up.

    Rows that are used more count more: the error is :math:`\sum_r p_r \lVert E_r - H_r \rVert^2`,
    in the metric of the outputs. Half of p is the same for all rows, as the data may lack some.
    """

    def draw(self, x: Tensor, call: int, calls: int) -> Tensor | None:
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


def _sums_of(site: Site) -> _Sums:
    return _TableSums(site) if site.is_table else _Sums(site)


def _targets(
    model: nn.Module, sites: Sequence[Site], calibration: Calibration
) -> dict[str, list[list[Tensor]]]:
    """Return what the original computes at drawn positions of each site, for each call."""
    calls = len(calibration.fitting)
    found: dict[str, list[list[Tensor]]] = {site.name: [[] for _ in range(calls)] for site in sites}
    sums = {site.name: _sums_of(site) for site in sites}

    def see(site: Site, call: int, x: Tensor) -> None:
        patches = sums[site.name].draw(x, call, calls)
        if patches is not None:
            found[site.name][call].append(_apply(site, patches))

    calibration.observe(model, sites, see)
    return found


def _student_sums(
    student: nn.Module, site: Site, targets: list[list[Tensor]], calibration: Calibration
) -> _Sums:
    sums = _sums_of(site)
    stops = all(len(wanted) <= 1 for wanted in targets)  # where no other use follows
    last = max((call for call, wanted in enumerate(targets) if wanted), default=-1)
    inputs = calibration.inputs(student, student.get_submodule(site.name), stops)
    for call, (seen, wanted) in enumerate(zip(inputs, targets[: last + 1], strict=False)):
        for x, target in zip(seen, wanted, strict=False):
            patches = sums.draw(x, call, len(targets))
            if patches is None:
                continue
            if patches.shape[:2] != target.shape[:2]:  # routed otherwise than in the original
                target = _apply(site, patches)
            sums.add(patches, target)
    return sums


def _fit_site(site: Site, structure: Structure | None, moments: Moments | None, sums: _Sums) -> Fit:
    weight = canonical(site.weight.detach().double().cpu(), site.groups, site.transposed)
    error = 0.0
    A: Tensor | None = None
    if structure is None:
        F = weight
        if moments is not None and moments.rows is None:
            F = dense_fit(moments, weight, RIDGE)
            error = moments.error(F)
        return Fit(None, None, F, sums.correct_bias(F), error)
    if moments is not None and moments.rows is not None:
        A, F, error = _fit_table(site, structure, moments, weight)
        return Fit(structure, A, F, None, error)
    A, F = start_of(site, weight, structure)
    if moments is not None:
        fixed = structure.algebra is not None
        pulled = _pull(moments, weight)
        A, F, error = solve(pulled, weight, structure, A, F, ROUNDS, GAIN, fixed)
    return Fit(structure, A, F, sums.correct_bias(assemble(A, F)), error)


def _fit_table(
    site: Site, structure: Structure, moments: Moments, weight: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Fit a table. Its rows count by their use, where they are not split into components."""
    rows = moments.rows
    if rows is None or structure.n_out > 1 or structure.algebra is not None:
        A, F = start_of(site, weight, structure)
        missing = (assemble(A, F) - weight).square().sum() / weight.square().sum().clamp_min(1e-30)
        return A, F, float(missing)
    A, F = start_of(site, weight * rows, structure)
    A, F, error = solve(moments, weight * rows, structure, A, F, ROUNDS, GAIN)
    return A, F / rows, error


def _pull(moments: Moments, weight: Tensor) -> Moments:
    """Add some patches of white noise, for which the target is the original weight."""
    flat = weight.flatten(2).mT
    shift = RIDGE * moments.C.diagonal(dim1=1, dim2=2).mean(1).view(-1, 1, 1)
    C = moments.C + shift * torch.eye(moments.C.shape[1], dtype=moments.C.dtype)
    added = float((shift * flat * moments.weigh(flat)).sum())
    return Moments(C, moments.B + shift * flat, moments.energy + added, moments.G)


def _apply(site: Site, patches: Tensor) -> Tensor:
    """Return what the original weight makes of patches, without the bias."""
    if site.is_table:
        return patches
    weight = canonical(site.weight.detach(), site.groups, site.transposed)
    return patches.to(weight.dtype) @ weight.flatten(2).mT


def has_room(site: Site) -> bool:
    """Return whether the second moment of a site's inputs may be held in memory."""
    return _moment_bytes(site) <= MEMORY


def _moment_bytes(site: Site) -> int:
    size = (
        site.weight[0].numel()
        if not site.transposed
        else (site.weight.shape[0] // site.groups * site.weight[0, 0].numel())
    )
    return 8 * site.groups * size * size


def _target_bytes(site: Site) -> int:
    return 4 * PATCHES * site.weight.shape[1 if site.transposed else 0]


def _batches(sites: Sequence[Site], count: Callable[[Site], int]) -> Iterator[list[Site]]:
    """Yield the sites in groups that need no more than the memory together."""
    group: list[Site] = []
    total = 0
    for site in sites:
        if group and total + count(site) > MEMORY:
            yield group
            group, total = [], 0
        group.append(site)
        total += count(site)
    if group:
        yield group
