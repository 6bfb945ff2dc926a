r"""From a dense weight to the nearest sum of Kronecker products.

Rearranged so that the n × n places of the blocks are its rows and the places inside a block its
columns, a sum of m Kronecker products is a matrix of rank m:

.. math:: R[(a, b), (o, c)] = H[a, o, b, c] = \sum_i A_i[a, b] \cdot F_i[o, c]

so the nearest one is a truncated singular value decomposition of R (Van Loan and Pitsianis,
"Approximation with Kronecker Products", 1993), and the tail of its spectrum is the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phnn.algebra import Algebra
from phnn.decompose.threads import one_thread

__all__ = ["Nearest", "divisors", "errors", "nearest", "nearest_shared", "spectrum"]


@dataclass(frozen=True)
class Nearest:
    r"""A PH weight beside the dense one it stands for.

    Attributes:
        A: The algebra, (terms, n, n); each term has Frobenius norm √n, F carries the scale.
        F: The filters, as a PH layer holds them.
        error: :math:`\lVert W - H \rVert_F / \lVert W \rVert_F`.
        spectrum: Singular values of the rearranged weight, largest first: what each further term
            would add.
    """

    A: Tensor
    F: Tensor
    error: float
    spectrum: Tensor


def nearest(
    weight: Tensor,
    n: int | None = None,
    *,
    terms: int | None = None,
    algebra: Algebra | None = None,
    groups: int = 1,
    transposed: bool = False,
) -> Nearest:
    r"""The sum :math:`\sum_i A_i \otimes F_i` nearest to a dense weight in the Frobenius norm.

    Args:
        weight: The weight of a torch layer, (out, in/groups, \*k), transposed (in, out/groups,
            \*k).
        n: Dimension of the algebra.
        terms: Number of Kronecker terms, n by default; n² reproduces every weight.
        algebra: A known algebra to keep; then the filters alone are fitted, by least squares.
        groups: Groups of the convolution; one A serves all of them.
        transposed: Whether the weight is that of a transposed convolution.

    Example:
        >>> A, F = torch.randn(2, 2, 2), torch.randn(6, 4)
        >>> H = torch.kron(A[0], F[:3]) + torch.kron(A[1], F[3:])
        >>> found = nearest(H, n=2)
        >>> found.error < 1e-6, found.A.shape, found.F.shape
        (True, torch.Size([2, 2, 2]), torch.Size([6, 4]))
    """
    return nearest_shared(
        [weight], n, terms=terms, algebra=algebra, groups=[groups], transposed=[transposed]
    )[0]


@one_thread()
def nearest_shared(
    weights: Sequence[Tensor],
    n: int | None = None,
    *,
    terms: int | None = None,
    algebra: Algebra | None = None,
    groups: Sequence[int] | None = None,
    transposed: Sequence[bool] | None = None,
) -> list[Nearest]:
    """The same for several weights that share one algebra; their Gram matrices are added.

    Args:
        weights: Dense weights; each counts by its squared norm.
        n: Dimension of the algebra.
        terms: Number of Kronecker terms, n by default.
        algebra: A known algebra to keep.
        groups: Groups of each weight, 1 by default.
        transposed: Whether each is of a transposed convolution, False by default.
    """
    if not weights:
        raise ValueError("give at least one weight")
    groups = groups or [1] * len(weights)
    transposed = transposed or [False] * len(weights)
    n, terms = _resolve(n, terms, algebra)
    parts = [_Rearranged(*part, n=n) for part in zip(weights, groups, transposed, strict=True)]
    grams = [part.gram() for part in parts]
    if algebra is None:
        vectors = torch.linalg.eigh(sum(grams[1:], grams[0])).eigenvectors.flip(1)
        basis = vectors[:, :terms].mT * math.sqrt(n)
        inverse = basis.mT / n  # the rows are orthogonal, of norm √n
    else:
        basis = algebra.structure.flatten(1).to(grams[0].device)
        inverse = torch.linalg.pinv(basis)
    return [part.fit(basis, inverse, gram) for part, gram in zip(parts, grams, strict=True)]


@one_thread()
def spectrum(weight: Tensor, n: int, groups: int = 1, transposed: bool = False) -> Tensor:
    """Singular values of the rearranged weight, n² of them in float64, largest first."""
    return _singular_values(_Rearranged(weight, groups, transposed, n=n).gram())


def errors(spectrum: Tensor) -> Tensor:
    """Relative Frobenius error left by the first 0, 1, 2, … terms, from a spectrum.

    Example:
        >>> errors(torch.tensor([4.0, 3.0]))
        tensor([1.0000, 0.6000, 0.0000])
    """
    energy = spectrum.square()
    tails = torch.cat([energy.flip(0).cumsum(0).flip(0), energy.new_zeros(1)])
    return (tails / tails[0].clamp_min(torch.finfo(tails.dtype).tiny)).sqrt()


def divisors(weight_shape: Sequence[int], groups: int = 1, most: int | None = None) -> list[int]:
    """Dimensions n > 1 that divide both channel counts of a weight, per group, smallest first."""
    common = math.gcd(weight_shape[0] // groups, weight_shape[1])
    limit = common if most is None else min(common, most)
    return [n for n in range(2, limit + 1) if common % n == 0]


def _resolve(n: int | None, terms: int | None, algebra: Algebra | None) -> tuple[int, int]:
    if algebra is not None:
        if n not in (None, algebra.n) or terms not in (None, algebra.n):
            raise ValueError(f"{algebra.name} has n={algebra.n}, got n={n} and terms={terms}")
        return algebra.n, algebra.n
    if n is None:
        raise TypeError("give n=, the dimension of the algebra, or algebra=, a known one")
    _check_dimension(n)
    terms = n if terms is None else terms
    if not 1 <= terms <= n * n:
        raise ValueError(f"terms is between 1 and n²={n * n}, got terms={terms}")
    return n, terms


def _check_dimension(n: int) -> None:
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"n is an integer, at least 1; got n={n}")


def _singular_values(gram: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(gram)
    return values.flip(0).clamp_min(0).sqrt()


class _Rearranged:
    """A weight as the matrix whose rank is the number of Kronecker terms."""

    def __init__(self, weight: Tensor, groups: int, transposed: bool, n: int) -> None:
        if weight.is_meta:
            raise ValueError("the weight is on the meta device and holds no numbers to decompose")
        if not weight.is_floating_point():
            raise TypeError(f"the weight must be real and floating-point, got {weight.dtype}")
        _check_dimension(n)
        if weight.dim() < 2 or weight.shape[0] % (groups * n) or weight.shape[1] % n:
            raise ValueError(
                f"n={n} must divide both channel counts of the weight {tuple(weight.shape)}"
                + (f" with groups={groups}" if groups > 1 else "")
            )
        self.dtype, self.n, self.transposed = weight.dtype, n, transposed
        places = weight.detach().unflatten(0, (groups, n, -1)).unflatten(3, (n, -1))
        # (g, a, o, b, c, …), transposed (g, b, c, a, o, …): rows are always (a, b)
        first, second = (3, 1) if transposed else (1, 3)
        places = places.movedim((first, second), (0, 1))
        self.inner = places.shape[2:]  # (g, rows, columns, *kernel) of a block
        exact = weight.dtype in (torch.float32, torch.float64)
        self.matrix = places.reshape(n * n, -1).to(weight.dtype if exact else torch.float32)

    def gram(self) -> Tensor:
        """The n² × n² products of rows in float64, by columns that fit a cache; on the CPU."""
        size, device = len(self.matrix), self.matrix.device
        if device.type not in ("cpu", "cuda"):
            device = torch.device("cpu")  # not all others have float64
        gram = torch.zeros(size, size, dtype=torch.float64, device=device)
        for columns in self.matrix.split(max(1, 2**20 // size), dim=1):
            exact = columns.to(device).double()
            gram.addmm_(exact, exact.mT)
        gram = gram.cpu()
        if not gram.isfinite().all():
            raise ValueError("the weight holds values that are NaN or infinite")
        return gram

    def fit(self, basis: Tensor, inverse: Tensor, gram: Tensor) -> Nearest:
        """The filters that go best with the given (terms, n²) matrices."""
        filters = self._like(inverse.mT) @ self.matrix
        total, inside = gram.trace(), (basis * (inverse.mT @ gram)).sum()
        tiny = torch.finfo(total.dtype).tiny  # a weight of zeros has no error
        error = ((total - inside).clamp_min(0) / total.clamp_min(tiny)).sqrt().item()
        terms = len(basis)
        F = filters.view(terms, *self.inner).transpose(0, 1).flatten(0, 2)
        return Nearest(
            A=self._like(basis).view(terms, self.n, self.n).to(self.dtype),
            F=F.to(self.dtype).contiguous(),
            error=error,
            spectrum=_singular_values(gram),
        )

    def _like(self, exact: Tensor) -> Tensor:
        """A matrix in the precision of the weight, then where the weight is."""
        return exact.to(self.matrix.dtype).to(self.matrix.device)
