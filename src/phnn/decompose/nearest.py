r"""The sum of Kronecker products nearest to a dense weight.

Rearrange a weight: its n_out × n_in blocks become rows, the entries of a block columns. A sum of m
Kronecker products is then a matrix of rank m:

.. math:: R[(a, b), (o, c)] = H[a, o, b, c] = \sum_i A_i[a, b] \cdot F_i[o, c]

So a truncated singular value decomposition of R is the nearest one (Van Loan and Pitsianis,
"Approximation with Kronecker Products", 1993), and the tail of the spectrum is the error.

Given the second moment of the layer's inputs, the error of the outputs is minimised instead of that
of the weight; see `phnn.decompose.activations`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phnn.algebra import Algebra
from phnn.decompose import activations
from phnn.decompose.blocks import Blocks, canonical, check_weight
from phnn.decompose.threads import one_thread
from phnn.structure import Dimension, Structure

__all__ = ["Nearest", "divisors", "errors", "nearest", "nearest_shared", "spectrum"]


@dataclass(frozen=True)
class Nearest:
    r"""The PH weight nearest to a dense one.

    Attributes:
        A: The algebra, (terms, n_out, n_in). All terms have the same norm; F carries the scale.
        F: The filters, as a PH layer holds them.
        error: :math:`\lVert W - H \rVert_F / \lVert W \rVert_F`; for a fit to activations,
            :math:`\lVert (W - H) X \rVert / \lVert W X \rVert`.
        spectrum: Singular values of the rearranged weight, largest first: what each term adds.
    """

    A: Tensor
    F: Tensor
    error: float
    spectrum: Tensor


def nearest(
    weight: Tensor,
    n: Dimension | None = None,
    *,
    terms: int | None = None,
    algebra: Algebra | str | None = None,
    groups: int = 1,
    transposed: bool = False,
    second_moment: Tensor | None = None,
) -> Nearest:
    r"""Return the sum :math:`\sum_i A_i \otimes F_i` nearest to a dense weight.

    Args:
        weight: The weight of a torch layer, (out, in/groups, \*k), transposed (in, out/groups,
            \*k).
        n: Dimension of the algebra, or a pair (n_out, n_in).
        terms: Number of Kronecker terms, n by default; n² reproduces every weight.
        algebra: A known algebra to keep; then only the filters are fitted, by least squares.
        groups: Groups of the convolution; one A serves all of them.
        transposed: Whether the weight is that of a transposed convolution.
        second_moment: Sum of :math:`x x^\top` over the patches x that the layer sees, (in/groups ·
            k)² for each group, with a leading axis if there are several groups. The patches of a
            transposed convolution are those of its zero-inserted input. If it is given, the fit
            minimises the error of the layer's outputs instead of that of its weight.

    Example:
        >>> A, F = torch.randn(2, 2, 2), torch.randn(6, 4)
        >>> H = torch.kron(A[0], F[:3]) + torch.kron(A[1], F[3:])
        >>> found = nearest(H, n=2)
        >>> found.error < 1e-6, found.A.shape, found.F.shape
        (True, torch.Size([2, 2, 2]), torch.Size([6, 4]))
    """
    found = nearest_shared(
        [weight], n, terms=terms, algebra=algebra, groups=[groups], transposed=[transposed]
    )[0]
    if second_moment is None:
        return found
    structure = Structure.of(n, algebra=algebra, terms=terms)
    blocks = _blocks(weight, structure, groups, transposed)
    exact = canonical(weight.detach().double().cpu(), groups, transposed)
    C = _check_moment(second_moment, exact)
    moments = activations.Moments.of(exact, C)
    A, F = found.A.double().cpu(), blocks.unfold(found.F.double().cpu(), structure.terms)
    with one_thread():
        if structure.n == (exact.shape[1], 1):
            A, F, squared = activations.low_rank_fit(moments, exact, structure.terms)
        else:
            A, F, squared = activations.fit(moments, A, F, fixed=structure.algebra is not None)
    if structure.algebra is None:
        size = _norm(structure)
        A, F = A * size, F / size
    return Nearest(
        A=A.to(weight),
        F=blocks.fold(F).to(weight).contiguous(),
        error=math.sqrt(squared),
        spectrum=found.spectrum,
    )


@one_thread()
def nearest_shared(
    weights: Sequence[Tensor],
    n: Dimension | None = None,
    *,
    terms: int | None = None,
    algebra: Algebra | str | None = None,
    groups: Sequence[int] | None = None,
    transposed: Sequence[bool] | None = None,
) -> list[Nearest]:
    """Return the nearest sums for several weights that share one algebra.

    Args:
        weights: Dense weights; each counts with its squared norm.
        n: Dimension of the algebra, or a pair (n_out, n_in).
        terms: Number of Kronecker terms, n by default.
        algebra: A known algebra to keep.
        groups: Groups of each weight, 1 by default.
        transposed: Whether each is the weight of a transposed convolution, False by default.
    """
    if not weights:
        raise ValueError("give at least one weight")
    structure = Structure.of(n, terms=terms, algebra=algebra)
    all_groups = groups or [1] * len(weights)
    all_transposed = transposed or [False] * len(weights)
    parts = [
        _Rearranged(weight, _blocks(weight, structure, g, t))
        for weight, g, t in zip(weights, all_groups, all_transposed, strict=True)
    ]
    if structure.algebra is None:
        basis = _main_directions(parts, structure.terms) * _norm(structure)
        inverse = basis.mT / _norm(structure) ** 2  # the rows are orthogonal
    else:
        basis = structure.algebra.structure.flatten(1)
        inverse = torch.linalg.pinv(basis)
    return [part.fit(structure, basis, inverse) for part in parts]


@one_thread()
def spectrum(weight: Tensor, n: Dimension, groups: int = 1, transposed: bool = False) -> Tensor:
    """Return the singular values of the rearranged weight in float64, largest first."""
    n_out, n_in = (n, n) if isinstance(n, int) else n
    structure = Structure.of((n_out, n_in), terms=1)
    return _Rearranged(weight, _blocks(weight, structure, groups, transposed)).singular_values()


def errors(spectrum: Tensor) -> Tensor:
    """Return the relative Frobenius error left by the first 0, 1, 2, … terms of a spectrum.

    Example:
        >>> errors(torch.tensor([4.0, 3.0]))
        tensor([1.0000, 0.6000, 0.0000])
    """
    energy = spectrum.square()
    tails = torch.cat([energy.flip(0).cumsum(0).flip(0), energy.new_zeros(1)])
    return (tails / tails[0].clamp_min(torch.finfo(tails.dtype).tiny)).sqrt()


def divisors(weight_shape: Sequence[int], groups: int = 1, most: int | None = None) -> list[int]:
    """Return the n > 1 that divide both channel counts of a weight, per group, smallest first."""
    common = math.gcd(weight_shape[0] // groups, weight_shape[1])
    limit = common if most is None else min(common, most)
    return [n for n in range(2, limit + 1) if common % n == 0]


def _blocks(weight: Tensor, structure: Structure, groups: int, transposed: bool) -> Blocks:
    check_weight(weight)
    return Blocks(tuple(weight.shape), structure.n_out, structure.n_in, groups, transposed)


def _norm(structure: Structure) -> float:
    """Return the norm of each term of a learned A; together they have the norm of a new layer."""
    if structure.is_square:
        return math.sqrt(structure.n_out)
    return math.sqrt(structure.n_out * structure.n_in / structure.terms)


def _check_moment(second_moment: Tensor, weight: Tensor) -> Tensor:
    groups, _, inputs, kernel = weight.shape
    C = second_moment.detach().double().cpu()
    C = C.unsqueeze(0) if C.dim() == 2 else C
    size = inputs * kernel
    if C.shape != (groups, size, size):
        raise ValueError(
            f"the layer sees patches of {size} numbers in {groups} groups, so second_moment has "
            f"shape {(groups, size, size)}; got {tuple(second_moment.shape)}"
        )
    if not C.isfinite().all():
        raise ValueError("second_moment holds values that are NaN or infinite")
    return C


class _Rearranged:
    """A weight as the matrix whose rank is the number of Kronecker terms."""

    def __init__(self, weight: Tensor, blocks: Blocks) -> None:
        self.dtype, self.device, self.blocks = weight.dtype, weight.device, blocks
        exact = weight.dtype in (torch.float32, torch.float64)
        precise = weight.detach().to(weight.dtype if exact else torch.float32)
        self.matrix = blocks.rearrange(canonical(precise, blocks.groups, blocks.transposed))
        self._grams: dict[bool, Tensor] = {}

    def gram(self, rows: bool) -> Tensor:
        """Return the products of rows, or of columns, in float64 on the CPU; computed once."""
        if rows not in self._grams:
            self._grams[rows] = self._gram(rows)
        return self._grams[rows]

    def _gram(self, rows: bool) -> Tensor:
        matrix = self.matrix if rows else self.matrix.mT
        device = self.matrix.device
        if device.type not in ("cpu", "cuda"):
            device = torch.device("cpu")  # not all others have float64
        gram = torch.zeros(len(matrix), len(matrix), dtype=torch.float64, device=device)
        for part in matrix.split(max(1, 2**20 // len(matrix)), dim=1):  # fits a cache
            exact = part.to(device).double()
            gram.addmm_(exact, exact.mT)
        gram = gram.cpu()
        if not gram.isfinite().all():
            raise ValueError("the weight holds values that are NaN or infinite")
        return gram

    def singular_values(self) -> Tensor:
        rows, columns = self.matrix.shape
        values = torch.linalg.eigvalsh(self.gram(rows=rows <= columns))
        found = values.flip(0).clamp_min(0).sqrt()
        return torch.cat([found, found.new_zeros(max(0, rows - len(found)))])

    def fit(self, structure: Structure, basis: Tensor, inverse: Tensor) -> Nearest:
        """Return the filters that go best with the given (terms, n_out · n_in) matrices."""
        filters = self._like(inverse.mT) @ self.matrix
        missing, total = self._measure(self._like(basis.mT), filters)
        P, Q = self.blocks.inner
        F = filters.view(structure.terms, self.blocks.groups, P, Q, -1).transpose(0, 1)
        return Nearest(
            A=self._like(basis).view(-1, structure.n_out, structure.n_in).to(self.dtype),
            F=self.blocks.fold(F).to(self.dtype).contiguous(),
            error=missing / max(total, torch.finfo(torch.float64).tiny),
            spectrum=self.singular_values(),
        )

    def _measure(self, basis: Tensor, filters: Tensor) -> tuple[float, float]:
        """Return the norm of what is missing, and of the matrix, without copies of their size."""
        missing = total = 0.0
        size = max(1, 2**22 // len(self.matrix))
        for part, fitted in zip(self.matrix.split(size, 1), filters.split(size, 1), strict=True):
            missing += float((part - basis @ fitted).double().square().sum())
            total += float(part.double().square().sum())
        return math.sqrt(missing), math.sqrt(total)

    def _like(self, exact: Tensor) -> Tensor:
        """Return a matrix in the precision and on the device of the weight."""
        return exact.to(self.matrix.dtype).to(self.device)


def _main_directions(parts: Sequence[_Rearranged], terms: int) -> Tensor:
    """Return the first left singular vectors of all matrices side by side, as rows."""
    rows = len(parts[0].matrix)
    if len(parts) > 1 or rows <= parts[0].matrix.shape[1]:
        grams = [part.gram(rows=True) for part in parts]
        vectors: Tensor = torch.linalg.eigh(sum(grams[1:], grams[0])).eigenvectors
        return vectors.flip(1)[:, :terms].mT
    # fewer columns than rows: their Gram matrix is the smaller one
    matrix = parts[0].matrix.cpu().double()
    right = torch.linalg.eigh(parts[0].gram(rows=False)).eigenvectors.flip(1)[:, :terms]
    left = matrix @ right
    if left.shape[1] < terms:  # more terms than the matrix has rank: any further directions will do
        left = torch.cat([left, torch.eye(rows, terms - left.shape[1], dtype=left.dtype)], dim=1)
    directions: Tensor = torch.linalg.qr(left).Q
    return directions.mT
