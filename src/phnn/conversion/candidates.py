"""The sizes that a layer could have, with what each costs and how much it errs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from phnn._names import check_choices
from phnn.conversion.opening import Matrix
from phnn.conversion.sites import Site
from phnn.decompose import activations
from phnn.decompose.activations import Moments
from phnn.decompose.blocks import Blocks, canonical
from phnn.decompose.threads import one_thread
from phnn.functional import Sizes
from phnn.structure import Structure

__all__ = ["KINDS", "Candidate", "Family", "by_activations", "by_weights", "start_of"]

# shares of a layer's parameters that are tried, in steps of about a half
SHARES = (0.025, 0.045, 0.075, 0.12, 0.18, 0.27, 0.4, 0.57, 0.78)
FINALISTS = 2  # shapes of each share that are fitted to activations, the best by their weights
ROUNDS = 2  # of each fit, when there are many; the chosen one gets more
KINDS = ("square", "rectangular", "low rank")
LEAST = 1e-12  # errors below it count as none
LARGEST = 640  # the smaller side of a rearranged weight: its spectrum costs the cube of it


@dataclass(frozen=True)
class Candidate:
    """One size of a layer.

    Attributes:
        structure: Of the PH layer; None for the dense layer.
        parameters: Of the weight.
        multiplications: For one sample, in the cheapest computation; 0 where nothing ran.
        error: Squared error of the outputs, or of the weight, relative to their energy.
        weight: What it costs the model to lose the outputs of the layer.
    """

    structure: Structure | None
    parameters: int
    multiplications: float
    error: float
    weight: float = 1.0

    @property
    def cost(self) -> float:
        """What the error costs a network: 1 − error of the energy passes, and shares multiply."""
        # a layer that passes nothing costs as much as 28 layers that pass half
        return -self.weight * math.log(max(1 - self.error, 1e-12))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        fields = asdict(self)
        if self.structure is not None:
            fields["structure"] = [self.structure.n_out, self.structure.n_in, self.structure.terms]
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Candidate:
        """Read what `to_dict` wrote."""
        structure = fields["structure"]
        return cls(**{**fields, "structure": None if structure is None else Structure(*structure)})


@dataclass(frozen=True)
class Family:
    """Which structures a search considers.

    Attributes:
        square: The paper's, n_out = n_in.
        rectangular: All other pairs.
        low_rank: n = (out, 1) and (1, in).
    """

    square: bool = True
    rectangular: bool = True
    low_rank: bool = True

    @classmethod
    def of(cls, kinds: Sequence[str]) -> Family:
        """Return the family of the kinds that a user names."""
        check_choices("kind of structure", kinds, KINDS)
        return cls("square" in kinds, "rectangular" in kinds, "low rank" in kinds)

    def shapes(
        self, out: int, inputs: int, kernel: int, is_table: bool = False
    ) -> list[tuple[int, int]]:
        """Return the pairs (n_out, n_in) for a weight of these sizes.

        The rows of a table are in no order, so they are not split into components.
        """
        found = []
        size = out * inputs * kernel
        # without kernel positions low rank mostly wins, and few other shapes are worth a look
        step = 2 if kernel > 1 else 4
        for n_out in (1,) if is_table else _divisors(out, step):
            for n_in in _divisors(inputs, step):
                blocks = n_out * n_in
                corner = (n_out, n_in) in ((out, 1), (1, inputs))
                allowed = self.low_rank if corner else self.rectangular
                if n_out == n_in and not corner:
                    allowed = self.square
                small = min(blocks, size // blocks) <= LARGEST
                if allowed and blocks > 1 and (small or corner):
                    found.append((n_out, n_in))
        return found


def count_multiplications(site: Site, structure: Structure | None, positions: float) -> float:
    """Return the multiplications of one sample in the cheapest computation, without assembly.

    Args:
        site: The layer.
        structure: Of its PH layer; None for the dense layer.
        positions: Of its output, for one sample.
    """
    if site.is_table:  # rows are looked up, and their terms added up
        return 0.0 if structure is None else positions * structure.terms * site.weight.shape[1]
    if structure is None or isinstance(site.module, Matrix):  # fused kernels take assembled ones
        # of a transposed convolution each input position meets the whole kernel
        return positions / _step(site) * site.weight.numel()
    blocks = blocks_of(site, structure)
    P, Q = blocks.inner
    sizes = Sizes(
        groups=site.groups,
        terms=structure.terms,
        n_out=structure.n_out,
        n_in=structure.n_in,
        outputs=P,
        inputs=Q,
        kernel=math.prod(blocks.kernel),
        dims=len(blocks.kernel),
        transposed=site.transposed,
    )
    step = math.prod(getattr(site.dense, "stride", ()))
    counts = sizes.assembled(), sizes.filter_first(step), sizes.mix_first(step)
    return positions / _step(site) * min(counts)


def _step(site: Site) -> int:
    """Return the positions of a transposed convolution's output for one of its input."""
    return math.prod(getattr(site.dense, "stride", ())) if site.transposed else 1


def by_weights(site: Site, family: Family, positions: float) -> list[Candidate]:
    """Return every size of a layer that is smaller than it, with the error of its weight."""
    size = site.weight.numel()
    return [_dense(site, positions)] + [
        _candidate(site, Structure(*shape, terms), positions, error)
        for shape, errors in _spectra(site, family).items()
        for terms, error in enumerate(errors, 1)
        if terms * _each(site, shape) < size
    ]


@one_thread()
def by_activations(
    site: Site, moments: Moments, family: Family, positions: float
) -> list[Candidate]:
    """Return some sizes of a layer with the error of its outputs.

    For each share of the parameters the shapes that are best by the weight are fitted to the
    activations, and the low-rank ones besides. A few terms more or less change the error about as
    they change that of the weight.
    """
    weight = canonical(site.weight.detach().double().cpu(), site.groups, site.transposed)
    if moments.rows is not None:
        weight = weight * moments.rows
    candidates = [_dense(site, positions)]
    spectra = _spectra(site, family)
    by_share: dict[int, list[tuple[float, Structure]]] = {}
    for shape, spectrum in spectra.items():
        each = _each(site, shape)
        for share, terms in enumerate(int(s * weight.numel() / each) for s in SHARES):
            if 1 <= terms <= len(spectrum):
                pair = spectrum[terms - 1], Structure(*shape, terms)
                by_share.setdefault(share, []).append(pair)
    low_rank = [(weight.shape[1], 1)]
    if site.is_part or site.is_table:  # of all gates together
        low_rank.append((1, weight.shape[2]))
    lefts: dict[tuple[int, int], Tensor] = {}
    fitted: list[tuple[Structure, int, float]] = []
    for share, found in by_share.items():
        found.sort(key=lambda pair: pair[0])
        chosen = [structure for _, structure in found[:FINALISTS]]
        chosen += [s for _, s in found[FINALISTS:] if s.pair in low_rank]
        for structure in chosen:
            if structure.pair not in lefts:
                matrix = blocks_of(site, structure).rearrange(weight)
                lefts[structure.pair] = _left_vectors(matrix, min(matrix.shape))
            A, F = start_of(site, weight, structure, lefts[structure.pair])
            if has_closed_form(moments, weight, structure):
                *_, error = solve(moments, weight, structure, A, F, ROUNDS)
            else:
                *_, error = activations.fit(moments, A, F, rounds=ROUNDS)
            fitted.append((structure, share, error))
    curve = _Curve([(_each(site, s.pair) * s.terms, error) for s, _, error in fitted])
    for structure, share, error in fitted:
        for terms in _near(structure, share, site):
            if terms <= len(spectra[structure.pair]):
                near = _candidate(site, replace(structure, terms=terms), positions, error)
                base = curve(_each(site, structure.pair) * structure.terms)
                change = math.exp(min(30.0, curve(near.parameters) - base))
                candidates.append(replace(near, error=min(1.0, error * change)))
    return candidates


class _Curve:
    """The least error of a layer at any number of parameters, between those that were fitted."""

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        self.points: list[tuple[float, float]] = []
        for parameters, error in sorted(points):
            if not self.points or math.log(max(error, LEAST)) < self.points[-1][1]:
                self.points.append((parameters, math.log(max(error, LEAST))))

    def __call__(self, parameters: float) -> float:
        """Return the logarithm of the error, on straight lines."""
        if len(self.points) == 1:
            return self.points[0][1]
        after = next((i for i, (p, _) in enumerate(self.points) if p >= parameters), -1)
        after = len(self.points) - 1 if after < 0 else max(after, 1)
        (p, e), (q, f) = self.points[after - 1], self.points[after]
        return e + (f - e) * (parameters - p) / (q - p)


def _near(structure: Structure, share: int, site: Site) -> range:
    """Return the numbers of terms nearer to a share of the parameters than to its neighbours."""
    size, each = site.weight.numel(), _each(site, structure.pair)
    below = SHARES[share - 1] if share else SHARES[0] / 2
    above = SHARES[share + 1] if share + 1 < len(SHARES) else 1.0
    least = math.ceil(math.sqrt(below * SHARES[share]) * size / each)
    most = math.floor(math.sqrt(above * SHARES[share]) * size / each)
    return range(min(max(least, 1), structure.terms), max(most, structure.terms) + 1)


def has_closed_form(moments: Moments, weight: Tensor, structure: Structure) -> bool:
    """Return whether the best fit of a structure needs no iterations."""
    if structure.algebra is not None:
        return False
    if structure.n == (weight.shape[1], 1):
        return True
    is_narrow = structure.n == (1, weight.shape[2]) and weight.shape[3] == 1
    return is_narrow and activations.reads_one_input(moments)


def solve(
    moments: Moments,
    weight: Tensor,
    structure: Structure,
    A: Tensor,
    F: Tensor,
    rounds: int,
    gain: float = 0.01,
) -> tuple[Tensor, Tensor, float]:
    """Fit a structure to activations, in closed form where there is one."""
    if has_closed_form(moments, weight, structure):
        if structure.n == (weight.shape[1], 1):
            return activations.low_rank_fit(moments, weight, structure.terms)
        return activations.input_low_rank_fit(moments, weight, structure.terms)
    fixed = structure.algebra is not None
    return activations.fit(moments, A, F, rounds=rounds, gain=gain, fixed=fixed)


def blocks_of(site: Site, structure: Structure) -> Blocks:
    """Return the blocks of a site's weight."""
    shape = tuple(site.weight.shape)
    return Blocks(shape, structure.n_out, structure.n_in, site.groups, site.transposed)


def start_of(
    site: Site, weight: Tensor, structure: Structure, left: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the A and F nearest to a canonical weight, to begin a fit with.

    Args:
        site: The layer.
        weight: Its canonical weight.
        structure: Of A and F.
        left: The left singular vectors of the rearranged weight, where they are known.
    """
    blocks = blocks_of(site, structure)
    P, Q = blocks.inner
    matrix = blocks.rearrange(weight)
    if structure.algebra is not None:
        A = structure.algebra.structure
        filters = torch.linalg.pinv(A.flatten(1).mT) @ matrix
    else:
        left = _left_vectors(matrix, structure.terms) if left is None else left
        left = left[:, : structure.terms]
        A = left.mT.reshape(structure.terms, structure.n_out, structure.n_in)
        filters = left.mT @ matrix
    return A, filters.view(structure.terms, site.groups, P, Q, -1).transpose(0, 1)


def _left_vectors(matrix: Tensor, terms: int) -> Tensor:
    rows, columns = matrix.shape
    if rows <= columns:
        left: Tensor = torch.linalg.eigh(matrix @ matrix.mT).eigenvectors
        return left.flip(1)[:, :terms]
    right = torch.linalg.eigh(matrix.mT @ matrix).eigenvectors.flip(1)[:, :terms]
    images: Tensor = torch.linalg.qr(matrix @ right).Q
    return images


def _dense(site: Site, positions: float) -> Candidate:
    multiplications = count_multiplications(site, None, positions)
    return Candidate(None, site.weight.numel(), multiplications, 0.0)


def _candidate(site: Site, structure: Structure, positions: float, error: float) -> Candidate:
    return Candidate(
        structure,
        structure.count(tuple(site.weight.shape), site.groups),
        count_multiplications(site, structure, positions),
        error,
    )


def _spectra(site: Site, family: Family) -> dict[tuple[int, int], list[float]]:
    """Return for each shape the error of the nearest weight with 1, 2, … terms."""
    weight = canonical(site.weight.detach().double().cpu(), site.groups, site.transposed)
    _, out, inputs, kernel = weight.shape
    shape = tuple(site.weight.shape)
    found = {}
    for n_out, n_in in family.shapes(out, inputs, kernel, site.is_table):
        matrix = Blocks(shape, n_out, n_in, site.groups, site.transposed).rearrange(weight)
        gram = matrix @ matrix.mT if len(matrix) <= matrix.shape[1] else matrix.mT @ matrix
        energy = torch.linalg.eigvalsh(gram).flip(0).clamp_min(0)
        passed = energy.cumsum(0) / energy.sum().clamp_min(1e-300)
        found[n_out, n_in] = (1 - passed).clamp_min(0).tolist()
    return found


def _each(site: Site, shape: tuple[int, int]) -> int:
    """Return the parameters of one term."""
    return math.prod(shape) + site.weight.numel() // math.prod(shape)


def _divisors(number: int, step: int) -> list[int]:
    """Return 1, the number, and divisors between them that are at least a factor apart."""
    kept = [1]
    for divisor in range(2, number):
        if number % divisor == 0 and divisor >= step * kept[-1]:
            kept.append(divisor)
    return [*kept, number] if number > 1 else kept
