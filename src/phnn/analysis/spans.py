r"""Distances between algebras that do not depend on the choice of their bases.

A change of basis can move between the terms of A and the filters,
:math:`\sum_i A_i \otimes F_i = \sum_j (\sum_i C_{ji} A_i) \otimes (\sum_i C^{-1}_{ij} F_i)`, so
what a layer learned is the span of its terms, a k-dimensional subspace of the n × n matrices. The
layers around it can rotate its outputs and inputs, so two algebras are the same if orthogonal P and
Q carry one span into the other, :math:`L_j \mapsto P L_j Q^\top`. The distance is

.. math::
    d = \min_{P, Q \in O(n)} \sqrt{1 - \tfrac{1}{k}
        \mathrm{tr}(\Pi_A \, \Pi_{P L Q^\top})} \in [0, 1]

with the projectors on both spans: the chordal distance over its largest value √k. If the span of A
has fewer dimensions than the algebra, the distance is 0 when A lies within the algebra.

The trace is a sum of squares that are linear in P, so it is convex in P and lies above each of its
tangents; the best orthogonal matrix for a tangent is the polar factor of the gradient. Alternating
steps for P and Q never decrease the trace. They end in a local maximum, so many random starts run
at once; on algebras in scrambled bases at least one start in four finds the match, within about 25
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phnn.algebra import Algebra, get
from phnn.decompose.threads import one_thread

__all__ = ["MATCH", "NEGLIGIBLE", "Neighbour", "basis", "distance", "neighbours"]

# Below this distance a learned algebra counts as the known one. Noise of 1 % in A moves it by about
# 0.01. Of 300 random algebras with n = 2, which has the fewest kinds, none came this close, but 2 %
# came closer than 0.05; the closest of 15 with n = 3 had 0.38, that of 8 with n = 4 had 0.46.
MATCH = 0.02
# singular values and terms below this fraction of the largest do not count
NEGLIGIBLE = 1e-3
STARTS = 32
ROUND, KEPT = 12, (8, 2)  # steps between two selections, and the number of starts each one keeps
STEPS = 100
SETTLED = 1e-10  # a start has converged if a step gains less than this, relative to the trace


@dataclass(frozen=True)
class Neighbour:
    """A known algebra, and the distance of a learned one from it.

    Attributes:
        algebra: The known algebra.
        distance: The normalised chordal distance, 0 to 1.
        dimension: Dimension k of the span of the learned terms.
    """

    algebra: Algebra
    distance: float
    dimension: int

    @property
    def is_match(self) -> bool:
        """Whether the learned algebra is this one: of full dimension and closer than `MATCH`."""
        return self.dimension == self.algebra.n and self.distance < MATCH


def distance(A: Tensor, algebra: Algebra | str) -> float:
    """Return the distance of a learned algebra from a known one; it does not depend on bases.

    Args:
        A: The learned algebra, (terms, n, n).
        algebra: The known algebra, of the same n, or its name.

    Example:
        >>> from phnn.algebra import complex, dual, split_complex
        >>> A = torch.tensor([[[2.0, 1.0], [-1.0, 2.0]], [[0.0, -3.0], [3.0, 0.0]]])
        >>> [round(distance(A, known), 3) for known in (complex, dual, split_complex)]
        [0.0, 0.5, 0.707]
    """
    return neighbours(A, [algebra])[0].distance


@one_thread()
def neighbours(A: Tensor, algebras: Sequence[Algebra | str]) -> list[Neighbour]:
    """Return known algebras with their distances from a learned one, the nearest first.

    The same A gives the same result; the starts have their own random generator.

    Args:
        A: The learned algebra, (terms, n, n). Parallel terms count once; directions weaker than
            `NEGLIGIBLE` times the strongest do not count.
        algebras: The algebras to compare with, of dimension n, or their names.
    """
    span = basis(A)
    n, dimension = A.shape[-1], len(span)
    known = [get(algebra) if isinstance(algebra, str) else algebra for algebra in algebras]
    for algebra in known:
        if algebra.n != n:
            raise ValueError(
                f"A of shape {tuple(A.shape)} has n={n}, but {algebra.name} has n={algebra.n}"
            )
    if not known:
        return []
    others = [basis(algebra.structure) for algebra in known]
    gaps = _distances(span, _stack(others)).tolist()
    found = [Neighbour(algebra, gap, dimension) for algebra, gap in zip(known, gaps, strict=True)]
    return sorted(found, key=lambda neighbour: neighbour.distance)


def basis(A: Tensor) -> Tensor:
    """Return orthonormal matrices (k, n, n) with the span of A, in float64 on the CPU."""
    if A.dim() != 3 or A.numel() == 0:
        raise ValueError(f"an algebra has shape (terms, n_out, n_in), got {tuple(A.shape)}")
    if A.is_meta:
        raise ValueError("the algebra is on the meta device and holds no numbers to compare")
    exact = A.detach().to("cpu", torch.float64)
    if not exact.isfinite().all():
        raise ValueError("the algebra holds values that are NaN or infinite")
    if not exact.any():
        raise ValueError(f"the algebra is zero everywhere, shape {tuple(A.shape)}")
    _, values, vectors = torch.linalg.svd(exact.flatten(1), full_matrices=False)
    span: Tensor = vectors[values > NEGLIGIBLE * values[0]].unflatten(1, A.shape[1:])
    return span


def _stack(spans: Sequence[Tensor]) -> Tensor:
    """Return one tensor (algebras, k, n, n); smaller spans are zero-padded."""
    most = max(map(len, spans))
    return torch.stack(
        [torch.cat([span, span.new_zeros(most - len(span), *span.shape[1:])]) for span in spans]
    )


class _Search:
    """Random starts for P and Q, improved step by step, for several algebras at once."""

    def __init__(self, span: Tensor, others: Tensor) -> None:
        self.flat, self.others, self.n = span.flatten(1), others.unsqueeze(1), span.shape[-1]
        shape = (len(others), STARTS, self.n, self.n)
        generator = torch.Generator().manual_seed(0)
        self.P, self.Q = (_draw_orthogonal(shape, generator) for _ in "PQ")

    def turn(self) -> tuple[Tensor, Tensor]:
        """Return P L_j Qᵀ as (algebras, starts, k', n²), and its products with the basis of A."""
        # one matrix product for all j: side by side for P, stacked for Q
        wide = self.P @ self.others.movedim(-3, -2).flatten(-2)
        high = wide.unflatten(-1, (-1, self.n)).flatten(-3, -2) @ self.Q.mT
        matrices = high.unflatten(-2, (self.n, -1)).transpose(-3, -2).flatten(-2)
        return matrices, matrices @ self.flat.mT

    def step(self) -> Tensor:
        """Improve P, then Q; return the traces from before the step."""
        _, products = self.turn()
        projected = (products @ self.flat).unflatten(-1, (self.n, self.n))
        rotated = self.others @ self.Q.mT.unsqueeze(-3)  # (P L_j Qᵀ) is linear in P
        self.P = _polar(_sum_of_products(projected, rotated.mT))
        trace = products.square().sum((-2, -1))
        _, products = self.turn()
        projected = (products @ self.flat).unflatten(-1, (self.n, self.n))
        self.Q = _polar(_sum_of_products(projected.mT, self.P.unsqueeze(-3) @ self.others))
        return trace

    def keep(self, trace: Tensor, count: int) -> None:
        """Keep only the best starts."""
        best = trace.topk(count, dim=-1).indices[..., None, None]
        self.P, self.Q = (X.take_along_dim(best, dim=1) for X in (self.P, self.Q))

    def distances(self) -> Tensor:
        """Return the smallest distance for each algebra."""
        matrices, products = self.turn()
        # what the rotated span leaves of A; k − trace would lose half of the digits near a match
        rest = self.flat - products.mT @ matrices
        gaps: Tensor = rest.square().sum((-2, -1)).amin(-1) / len(self.flat)
        return gaps.sqrt()


def _distances(span: Tensor, others: Tensor) -> Tensor:
    """Return the distances of a span (k, n, n) from others (algebras, k', n, n)."""
    search = _Search(span, others)
    for count in KEPT:
        for _ in range(ROUND):
            trace = search.step()
        search.keep(trace, count)
    trace = search.step()
    for _ in range(STEPS):
        before, trace = trace, search.step()
        if bool((trace - before <= SETTLED * len(span)).all()):
            break
    return search.distances()


def _sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    """Return Σ_j left_j @ right_j over the third axis from the end, as one matrix product."""
    return left.movedim(-3, -2).flatten(-2) @ right.flatten(-3, -2)


def _polar(matrices: Tensor) -> Tensor:
    """Return the nearest orthogonal matrices."""
    left, _, right = torch.linalg.svd(matrices)
    nearest: Tensor = left @ right
    return nearest


def _draw_orthogonal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw uniformly from O(n), rotations and reflections."""
    normal = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    Q, R = torch.linalg.qr(normal)
    uniform: Tensor = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return uniform
