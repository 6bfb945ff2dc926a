r"""Sums of Kronecker products fitted to what a layer computes, not to its weight.

A layer sees its inputs as patches x of in · k numbers. With the second moment C of the patches, the
error of a weight H that replaces W is, summed over the patches,

.. math:: \lVert (W - H) X \rVert^2 = \operatorname{tr}\,(W - H)\, C\, (W - H)^\top

It is quadratic in F for a given A, and in A for a given F, so each is solved exactly in turn
(alternating least squares). More generally the target is any Y = W X that H should compute from
other patches X̃, those of a network whose earlier layers have changed: then C is that of X̃, and
:math:`B = \tilde X Y^\top` stands for :math:`C W^\top`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

__all__ = [
    "Moments",
    "dense_fit",
    "fit",
    "input_low_rank_fit",
    "low_rank_fit",
    "reads_one_input",
]

RIDGE = 1e-8  # of the mean diagonal: keeps the factorisations defined; 1e-3 can raise the error
GAIN = 0.01  # a round that gains less of the squared error is the last
UNKNOWNS = 1000  # most that are solved by one factorisation; above it, conjugate gradients
ITERATIONS = 8  # of conjugate gradients, from the solution of the round before


@dataclass(frozen=True)
class Moments:
    """What a fit needs to know of the data, in float64.

    Attributes:
        C: Second moment of the patches, (groups, in · K, in · K).
        B: Moment of patches and targets, (groups, in · K, out).
        energy: Sum of squares of the targets, in the metric of the outputs.
        G: Metric of the outputs, (groups, out, out): what an error there costs; None for squares.
        rows: Factors of the rows, (out, 1, 1), that the targets have been multiplied by; None for
            1. The fit is one of the weight times these.
    """

    C: Tensor
    B: Tensor
    energy: float
    G: Tensor | None = None
    rows: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor, second_moment: Tensor) -> Moments:
        """Return the moments of a layer that should compute what it computes now.

        Args:
            weight: Canonical, (groups, out, in, K).
            second_moment: Of its patches, (groups, in · K, in · K).
        """
        flat = weight.flatten(2).double()
        C = second_moment.to(flat)
        B = C @ flat.mT
        return cls(C, B, float((flat.mT * B).sum()))

    def error(self, weight: Tensor) -> float:
        """Return the squared error of a canonical weight, relative to the energy.

        It is infinite for a weight that is not finite.
        """
        flat = weight.flatten(2).to(self.C)
        weighed = self.weigh(flat.mT)
        squared = ((self.C @ flat.mT) * weighed).sum() - 2 * (weighed * self.B).sum()
        error = float(squared) + self.energy
        # rounding may take it below zero, and a singular system may have no solution at all
        return max(0.0, error) / max(self.energy, 1e-300) if math.isfinite(error) else math.inf

    def weigh(self, outputs: Tensor) -> Tensor:
        """Return something of the outputs (groups, …, out) times the metric."""
        return outputs if self.G is None else outputs @ self.G


def assemble(A: Tensor, F: Tensor) -> Tensor:
    """Return the canonical weight (groups, out, in, K) of A and F (groups, terms, P, Q, K)."""
    return torch.einsum("iab,giock->gaobck", A, F).flatten(3, 4).flatten(1, 2)


def fit(
    moments: Moments,
    A: Tensor,
    F: Tensor,
    *,
    rounds: int = 4,
    gain: float = GAIN,
    ridge: float = RIDGE,
    fixed: bool = False,
) -> tuple[Tensor, Tensor, float]:
    """Improve A and F by alternating least squares; the result is never worse than the start.

    Args:
        moments: Of the data.
        A: The start, (terms, n_out, n_in), float64.
        F: The start, (groups, terms, P, Q, K), float64.
        rounds: Most rounds.
        gain: A round that gains less than this share of the squared error is the last.
        ridge: Added to the normal equations, relative to their mean diagonal.
        fixed: Keep A, a known algebra, as it is.

    Returns:
        A, F and the squared error relative to the energy of the targets.
    """
    best = A, F, moments.error(assemble(A, F))
    if fixed:
        F = _solve_filters(moments, A, F, ridge)
        return min(best, (A, F, moments.error(assemble(A, F))), key=itemgetter(2))
    for _ in range(rounds):
        A, F = _orthonormalize(A, F)
        F = _solve_filters(moments, A, F, ridge)
        A = _solve_algebra(moments, A, F, ridge)
        error = moments.error(assemble(A, F))
        before = best[2]
        if error < before:
            best = A, F, error
        if not error < (1 - gain) * before:
            break
    return *_orthonormalize(best[0], best[1]), best[2]


def low_rank_fit(moments: Moments, weight: Tensor, terms: int) -> tuple[Tensor, Tensor, float]:
    """Return the best n = (out, 1) in closed form: the main directions of the outputs.

    Args:
        moments: Of the data.
        weight: The canonical weight, (groups, out, in, K).
        terms: Number of Kronecker terms, the rank.
    """
    out = weight.shape[1]
    H = _regress(moments, RIDGE)  # (groups, in · K, out)
    outputs = (H.mT @ (moments.C @ H)).sum(0)
    root = inverse = torch.eye(out, dtype=outputs.dtype)
    if moments.G is not None:  # one A serves all groups, so their metrics are averaged
        values, vectors = torch.linalg.eigh(moments.G.mean(0))
        roots = values.clamp_min(RIDGE * values[-1]).sqrt()
        root, inverse = (vectors * r @ vectors.mT for r in (roots, 1 / roots))
    directions = torch.linalg.eigh(root @ outputs @ root).eigenvectors.flip(1)[:, :terms]
    F = (directions.mT @ root @ H.mT).unflatten(2, weight.shape[2:]).unsqueeze(2)
    A = (inverse @ directions).mT.reshape(terms, out, 1)
    return A, F, moments.error(assemble(A, F))


def reads_one_input(moments: Moments) -> bool:
    """Return whether all groups see the same patches, as the gates of a recurrent layer do."""
    return torch.equal(moments.C[:1].expand_as(moments.C), moments.C)


def input_low_rank_fit(
    moments: Moments, weight: Tensor, terms: int
) -> tuple[Tensor, Tensor, float]:
    """Return the best n = (1, in) in closed form: the main directions of the inputs.

    Args:
        moments: Of the data; all groups read the same input.
        weight: The canonical weight, (groups, out, in, 1).
        terms: Number of Kronecker terms, the rank of all groups together.
    """
    H = _regress(moments, RIDGE)  # (groups, in, out)
    values, vectors = torch.linalg.eigh(moments.C[0])
    roots = values.clamp_min(RIDGE * values[-1] + 1e-30).sqrt()
    root, inverse = (vectors * r @ vectors.mT for r in (roots, 1 / roots))
    outputs = (moments.weigh(H) @ H.mT).sum(0)
    directions = torch.linalg.eigh(root @ outputs @ root).eigenvectors.flip(1)[:, :terms]
    A = (directions.mT @ inverse).unsqueeze(1)
    F = (H.mT @ root @ directions).transpose(1, 2)[..., None, None]
    return A, F, moments.error(assemble(A, F))


def dense_fit(moments: Moments, weight: Tensor, ridge: float) -> Tensor:
    """Return the best dense weight near the given one.

    Args:
        moments: Of the data.
        weight: Canonical, (groups, out, in, K).
        ridge: Pull towards the given weight, relative to the mean diagonal of C.
    """
    flat = weight.flatten(2).to(moments.C)
    shift = ridge * moments.C.diagonal(dim1=1, dim2=2).mean(1).view(-1, 1, 1)
    eye = torch.eye(moments.C.shape[1], dtype=moments.C.dtype)
    solved = torch.linalg.solve(moments.C + (shift + 1e-30) * eye, moments.B + shift * flat.mT)
    best: Tensor = solved.mT.unflatten(2, weight.shape[2:])
    return best


def _regress(moments: Moments, ridge: float) -> Tensor:
    """Solve C h = B, which is the weight itself when B = C Wᵀ."""
    pairs = zip(moments.C, moments.B, strict=True)
    return torch.stack([torch.cholesky_solve(B, _factorize(C, ridge)) for C, B in pairs])


def _factorize(matrix: Tensor, ridge: float) -> Tensor:
    """Return the Cholesky factor, with as much of a ridge as a matrix of low rank needs."""
    size = matrix.diagonal().mean() + 1e-30
    eye = torch.eye(len(matrix), dtype=matrix.dtype)
    while True:
        root: Tensor
        root, failed = torch.linalg.cholesky_ex(matrix + ridge * size * eye)
        if not failed:
            return root
        if ridge > 1:
            raise ValueError("the second moment is not positive, so no data can have made it")
        ridge = max(100 * ridge, 1e-12)


def _orthonormalize(A: Tensor, F: Tensor) -> tuple[Tensor, Tensor]:
    """Make the terms of A orthonormal and give F the rest; H stays as it is."""
    Q, R = torch.linalg.qr(A.flatten(1).mT)
    F = torch.einsum("ij,gjock->giock", R, F)
    return Q.mT.reshape(A.shape), F


def _solve_filters(moments: Moments, A: Tensor, F: Tensor, ridge: float) -> Tensor:
    """Return the best F for a given A; without a metric all output channels share one system."""
    groups, terms, P, Q, K = F.shape
    n_out, n_in = A.shape[1:]
    C = moments.C.view(groups, n_in, Q * K, n_in, Q * K)
    right = torch.einsum(
        "iab,gbcao->gico", A, moments.weigh(moments.B).view(groups, n_in, Q * K, n_out, P)
    ).flatten(1, 2)
    start = F.flatten(3).transpose(2, 3).flatten(1, 2)

    def block(g: int) -> Tensor:
        pairs = torch.einsum("iab,jad->ijbd", A, A)
        return torch.einsum("ijbd,bcde->icje", pairs, C[g]).flatten(2, 3).flatten(0, 1)

    def apply(g: int, f: Tensor) -> Tensor:
        H = torch.einsum("iab,ico->bcao", A, f.view(terms, Q * K, P)).flatten(2, 3)
        product = moments.C[g] @ H.flatten(0, 1)
        if moments.G is not None:
            product = product @ moments.G[g]
        back = product.view(n_in, Q * K, n_out, P)
        return torch.einsum("iab,bcao->ico", A, back).flatten(0, 1)

    # with orthonormal terms the system is nearly one block for each, the mean over components
    left = torch.einsum("gbcbe->gce", C) / n_out
    across = None
    if moments.G is not None:
        across = torch.einsum("gaoap->gop", moments.G.view(groups, n_out, P, n_out, P))
    solved = _solve(terms * Q * K, block, apply, right, start, ridge, left, across)
    best: Tensor = solved.view(groups, terms, Q * K, P).transpose(2, 3).unflatten(3, (Q, K))
    return best


def _solve_algebra(moments: Moments, A: Tensor, F: Tensor, ridge: float) -> Tensor:
    """Return the best A for a given F; without a metric all rows share one system."""
    groups, terms, P, Q, K = F.shape
    n_out, n_in = A.shape[1:]
    C = moments.C.view(groups, n_in, Q * K, n_in, Q * K)
    flat = F.flatten(3)
    right = torch.einsum(
        "gioc,gbcao->iba", flat, moments.weigh(moments.B).view(groups, n_in, Q * K, n_out, P)
    ).flatten(0, 1)
    start = A.permute(0, 2, 1).flatten(0, 1)

    def block(_: int) -> Tensor:
        inner = torch.einsum("gioc,gjoe->gijce", flat, flat)
        return torch.einsum("gijce,gbcde->ibjd", inner, C).flatten(2, 3).flatten(0, 1)

    def apply(_: int, a: Tensor) -> Tensor:
        rules = a.view(terms, n_in, n_out)
        H = torch.einsum("iba,gioc->gbcao", rules, flat).flatten(3, 4).flatten(1, 2)
        back = moments.weigh(moments.C @ H).view(groups, n_in, Q * K, n_out, P)
        return torch.einsum("gioc,gbcao->iba", flat, back).flatten(0, 1)

    left = torch.einsum("gioc,gioe,gbcde->bd", flat, flat, C).unsqueeze(0) / terms
    across = None
    if moments.G is not None:
        metric = moments.G.view(groups, n_out, P, n_out, P)
        across = torch.einsum("gaodo->ad", metric).unsqueeze(0)
    solved = _solve(terms * n_in, block, apply, right[None], start[None], ridge, left, across)
    return solved[0].view(terms, n_in, n_out).transpose(1, 2)


def _solve(
    unknowns: int,
    block: Callable[[int], Tensor],
    apply: Callable[[int, Tensor], Tensor],
    right: Tensor,
    start: Tensor,
    ridge: float,
    left: Tensor,
    across: Tensor | None,
) -> Tensor:
    """Solve the normal equations of each group: by Cholesky, or iteratively if they are large.

    Args:
        unknowns: Of one column.
        block: Returns the matrix of a group, which all columns share without a metric.
        apply: Multiplies by the matrix of a group.
        right: Right sides, (groups, unknowns, columns).
        start: Where iterations begin.
        ridge: Added to the matrix, relative to its mean diagonal.
        left: About the blocks on the diagonal of the matrix, for preconditioning.
        across: The same for the columns, which a metric couples.
    """
    if across is None and unknowns <= UNKNOWNS:
        pairs = enumerate(right)
        return torch.stack([torch.cholesky_solve(r, _factorize(block(g), ridge)) for g, r in pairs])
    solved = []
    for g, r in enumerate(right):
        inverse = _invert(left[g])
        other = None if across is None else _invert(across[g])
        solved.append(_conjugate_gradients(partial(apply, g), r, start[g], inverse, other))
    return torch.stack(solved)


def _invert(matrix: Tensor) -> Tensor:
    shift = 1e-4 * matrix.diagonal().mean() + 1e-30
    inverse: Tensor = torch.linalg.inv(matrix + shift * torch.eye(len(matrix), dtype=matrix.dtype))
    return inverse


def _conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    right: Tensor,
    x: Tensor,
    inverse: Tensor,
    across: Tensor | None,
) -> Tensor:
    """Descend from x. Columns take their own steps, unless a metric couples them.

    Args:
        apply: The matrix.
        right: Right sides, in columns.
        x: Where to start.
        inverse: About the inverse of the blocks on the diagonal.
        across: The same for the columns; None where nothing couples them.
    """

    def precondition(residual: Tensor) -> Tensor:
        blocks: Tensor = inverse @ residual.unflatten(0, (-1, len(inverse)))
        solved = blocks.flatten(0, 1)
        return solved if across is None else solved @ across

    def multiply(first: Tensor, second: Tensor) -> Tensor:
        return (first * second).sum(0) if across is None else (first * second).sum()

    residual = right - apply(x)
    direction = precondition(residual)
    size = multiply(residual, direction)
    for _ in range(ITERATIONS):
        image = apply(direction)
        step = _divide(size, multiply(direction, image))
        x = x + step * direction
        residual = residual - step * image
        solved = precondition(residual)
        new = multiply(residual, solved)
        direction = solved + _divide(new, size) * direction
        size = new
    return x


def _divide(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole; 0 for columns that are solved, and directions that no data take."""
    return torch.where(whole > 1e-30 * part, part / whole, 0.0)
