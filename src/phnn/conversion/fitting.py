r"""Layers fitted to calibration data, one after the other.

In the order of the forward pass each layer is fitted to what the original computes there, from what
the converted network feeds it: with X the patches of the original and X̃ those of the converted
network, it minimises :math:`\lVert W X - H \tilde X \rVert^2`. So later layers mend what earlier
ones got wrong.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from phnn.conversion.calibration import Calibration
from phnn.conversion.candidates import solve, start_of
from phnn.conversion.moments import PATCHES, Sums, apply, sums_of
from phnn.conversion.sensitivity import Sensitivity, metric_of
from phnn.conversion.sites import Site
from phnn.conversion.walking import Walk
from phnn.decompose.activations import Moments, assemble, dense_fit
from phnn.decompose.blocks import canonical
from phnn.structure import Structure

__all__ = ["Fit", "Fitted", "Targets", "fit_in_order", "measure", "measure_distance"]

MEMORY = 2**30  # bytes of second moments, or of targets, that are held at once
HELD = 2**29  # bytes that passes may hold which wait for a fit
RIDGE = 1e-3  # pull towards the original weight, relative to the mean diagonal of C
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
        sums = {site.name: sums_of(site) for site in group}

        def see(site: Site, call: int, x: Tensor, sums: dict[str, Sums] = sums) -> None:
            gathered = sums[site.name]
            patches = gathered.draw(x, call, calibration)
            if patches is not None:
                gathered.add(patches, apply(site, patches))

        calibration.observe(model, [s for s in group if _moment_bytes(s) <= MEMORY], see)
        for site in group:
            yield site, sums.pop(site.name).moments(metric_of(sensitivities, site.name))


def fit_in_order(
    model: nn.Module,
    sites: Sequence[Site],
    structures: Mapping[str, Structure | None],
    wanted: Targets,
    sensitivities: Mapping[str, Sensitivity],
    progress: Progress | None = None,
    by_weight: Container[str] = (),
) -> Fitted:
    """Fit the layers of a model one after the other, in the order of the forward pass.

    Args:
        model: The original, which is not changed.
        sites: Its sites, in the order in which they are called.
        structures: What each becomes; None for layers that stay dense and are fitted, too.
        wanted: What they should compute.
        sensitivities: What errors of the layers cost; layers without one count all errors alike.
        progress: Told what is done, how far, and of how much.
        by_weight: Names of sites to fit to their weights, because other layers share them.
    """
    calibration = wanted.calibration
    student = copy.deepcopy(model)
    fits: dict[str, Fit] = {}
    chosen = [site for site in sites if site.name in structures]
    modules = [student.get_submodule(site.name) for site in chosen]
    shapes: set[tuple[int, ...]] = set()
    with Walk(student, modules, calibration) as walk:
        for group in _batches(chosen, _target_bytes):
            measured = [s for s in group if s.name not in by_weight and has_room(s)]
            targets = wanted.of(measured)
            for site in group:
                if progress is not None:
                    progress("fitting layers", len(fits), len(chosen))
                moments, sums = None, sums_of(site)
                if site.name in targets:  # not what others share, nor what is too large
                    shapes |= targets[site.name].shapes
                    room = _held_bytes(shapes) * len(calibration.fitting) <= HELD
                    sums = _student_sums(walk, site, targets[site.name], room)
                    moments = sums.moments(metric_of(sensitivities, site.name))
                fits[site.name] = _fit_site(site, structures[site.name], moments, sums)
                fit = fits[site.name]
                weight = fit.F if fit.A is None else assemble(fit.A, fit.F)
                site.write(student.get_submodule(site.name), weight, fit.bias)
    return Fitted(student, fits, _distance(model, student, calibration))


def _held_bytes(shapes: Iterable[tuple[int, ...]]) -> int:
    """Return about what one pass holds: layers that come later may need what others read."""
    return 2 * sum(4 * math.prod(shape) for shape in shapes)


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


@dataclass
class _Target:
    """What a layer of the original computes at drawn positions, for each call.

    Attributes:
        outputs: For each call those of each use of the layer.
        shapes: Of its inputs.
    """

    outputs: list[list[Tensor]]
    shapes: set[tuple[int, ...]] = field(default_factory=set)


class Targets:
    """What the layers of the original compute: kept, as several networks are fitted to it.

    Args:
        model: The original.
        calibration: The data.
    """

    def __init__(self, model: nn.Module, calibration: Calibration) -> None:
        self.model, self.calibration = model, calibration
        self._last: tuple[tuple[str, ...], dict[str, _Target]] = (), {}

    def of(self, sites: Sequence[Site]) -> Mapping[str, _Target]:
        """Return the targets of some sites, by name. Only the last ones are kept."""
        names = tuple(site.name for site in sites)
        if self._last[0] != names:
            self._last = (), {}  # frees them before others are held
            self._last = names, self._compute(sites)
        return self._last[1]

    def _compute(self, sites: Sequence[Site]) -> dict[str, _Target]:
        calls = len(self.calibration.fitting)
        found = {site.name: _Target([[] for _ in range(calls)]) for site in sites}
        sums = {site.name: sums_of(site) for site in sites}

        def see(site: Site, call: int, x: Tensor) -> None:
            target = found[site.name]
            target.shapes.add(tuple(x.shape))
            patches = sums[site.name].draw(x, call, self.calibration)
            if patches is not None:
                target.outputs[call].append(apply(site, patches))

        self.calibration.observe(self.model, sites, see)
        return found


def _student_sums(walk: Walk, site: Site, target: _Target, has_room: bool) -> Sums:
    sums = sums_of(site)
    once = all(len(wanted) <= 1 for wanted in target.outputs)  # where no other use follows
    last = max((call for call, wanted in enumerate(target.outputs) if wanted), default=-1)
    inputs = walk.inputs(walk.model.get_submodule(site.name), once, has_room)
    for call, wanted in enumerate(target.outputs[: last + 1]):
        for x, expected in zip(next(inputs), wanted, strict=False):
            patches = sums.draw(x, call, walk.calibration)
            if patches is None:
                continue
            if patches.shape[:2] != expected.shape[:2]:  # routed otherwise than in the original
                expected = apply(site, patches)
            sums.add(patches, expected)
    inputs.close()
    return sums


def _fit_site(site: Site, structure: Structure | None, moments: Moments | None, sums: Sums) -> Fit:
    weight = canonical(site.weight.detach().double().cpu(), site.groups, site.transposed)
    if structure is None:
        F, error = weight, 0.0
        if moments is not None and moments.rows is None:
            F = dense_fit(moments, weight, RIDGE)
            error = moments.error(F)
        return Fit(None, None, F, sums.correct_bias(F), error)
    if moments is not None and moments.rows is not None:
        A, F, error = _fit_table(site, structure, moments, weight)
        return Fit(structure, A, F, None, error)
    A, F = start_of(site, weight, structure)
    if moments is None:
        error = _miss(weight, A, F)
    else:
        A, F, error = solve(_pull(moments, weight), weight, structure, A, F, ROUNDS, GAIN)
    return Fit(structure, A, F, sums.correct_bias(assemble(A, F)), error)


def _fit_table(
    site: Site, structure: Structure, moments: Moments, weight: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Fit a table. Its rows count by their use, where they are not split into components."""
    rows = moments.rows
    if rows is None or structure.n_out > 1 or structure.algebra is not None:
        A, F = start_of(site, weight, structure)
        return A, F, _miss(weight, A, F)
    A, F = start_of(site, weight * rows, structure)
    A, F, error = solve(moments, weight * rows, structure, A, F, ROUNDS, GAIN)
    return A, F / rows, error


def _miss(weight: Tensor, A: Tensor, F: Tensor) -> float:
    """Return the squared error of a weight, relative to its size."""
    missed = (assemble(A, F) - weight).square().sum()
    return float(missed / weight.square().sum().clamp_min(1e-30))


def _pull(moments: Moments, weight: Tensor) -> Moments:
    """Add some patches of white noise, for which the target is the original weight."""
    flat = weight.flatten(2).mT
    shift = RIDGE * moments.C.diagonal(dim1=1, dim2=2).mean(1).view(-1, 1, 1)
    C = moments.C + shift * torch.eye(moments.C.shape[1], dtype=moments.C.dtype)
    added = float((shift * flat * moments.weigh(flat)).sum())
    return Moments(C, moments.B + shift * flat, moments.energy + added, moments.G)


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
