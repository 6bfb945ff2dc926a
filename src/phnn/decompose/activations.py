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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

__all__ = ["Moments", "dense_fit", "fit", "low_rank_fit"]

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
        energy: Sum of squares of the targets.
    """

    C: Tensor
    B: Tensor
    energy: float

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
        """Return the squared error of a canonical weight, relative to the energy."""
        flat = weight.flatten(2).to(self.C)
        squared = ((flat @ self.C) * flat).sum() - 2 * (flat.mT * self.B).sum()
        return max(0.0, float(squared) + self.energy) / max(self.energy, 1e-300)


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
    directions = torch.linalg.eigh(outputs).eigenvectors.flip(1)[:, :terms]
    F = (directions.mT @ H.mT).unflatten(2, weight.shape[2:]).unsqueeze(2)
    A = directions.mT.reshape(terms, out, 1)
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
    """Return the best F for a given A; all output channels share one system of a group."""
    groups, terms, P, Q, K = F.shape
    n_out, n_in = A.shape[1:]
    C = moments.C.view(groups, n_in, Q * K, n_in, Q * K)
    right = torch.einsum(
        "iab,gbcao->gico", A, moments.B.view(groups, n_in, Q * K, n_out, P)
    ).flatten(1, 2)
    pairs = torch.einsum("iab,jad->ijbd", A, A)
    start = F.flatten(3).transpose(2, 3).flatten(1, 2)

    def block(g: int) -> Tensor:
        return torch.einsum("ijbd,bcde->icje", pairs, C[g]).flatten(2, 3).flatten(0, 1)

    def apply(g: int, f: Tensor) -> Tensor:
        H = torch.einsum("iab,ico->bcao", A, f.view(terms, Q * K, P)).flatten(2, 3)
        product = moments.C[g] @ H.flatten(0, 1)
        back = product.view(n_in, Q * K, n_out, P)
        return torch.einsum("iab,bcao->ico", A, back).flatten(0, 1)

    # with orthonormal terms the system is nearly one block for each, the mean over components
    mean = torch.einsum("gbcbe->gce", C) / n_out
    solved = _solve(terms * Q * K, block, apply, right, start, ridge, mean)
    best: Tensor = solved.view(groups, terms, Q * K, P).transpose(2, 3).unflatten(3, (Q, K))
    return best


def _solve_algebra(moments: Moments, A: Tensor, F: Tensor, ridge: float) -> Tensor:
    """Return the best A for a given F; all rows a share one system, and all groups too."""
    groups, terms, P, Q, K = F.shape
    n_out, n_in = A.shape[1:]
    C = moments.C.view(groups, n_in, Q * K, n_in, Q * K)
    flat = F.flatten(3)
    right = torch.einsum(
        "gioc,gbcao->iba", flat, moments.B.view(groups, n_in, Q * K, n_out, P)
    ).flatten(0, 1)
    start = A.permute(0, 2, 1).flatten(0, 1)

    def block(_: int) -> Tensor:
        inner = torch.einsum("gioc,gjoe->gijce", flat, flat)
        return torch.einsum("gijce,gbcde->ibjd", inner, C).flatten(2, 3).flatten(0, 1)

    def apply(_: int, a: Tensor) -> Tensor:
        rules = a.view(terms, n_in, n_out)
        H = torch.einsum("iba,gioc->gbcao", rules, flat).flatten(3, 4).flatten(1, 2)
        back = (moments.C @ H).view(groups, n_in, Q * K, n_out, P)
        return torch.einsum("gioc,gbcao->iba", flat, back).flatten(0, 1)

    mean = torch.einsum("gioc,gioe,gbcde->bd", flat, flat, C).unsqueeze(0) / terms
    solved = _solve(terms * n_in, block, apply, right[None], start[None], ridge, mean)
    return solved[0].view(terms, n_in, n_out).transpose(1, 2)


def _solve(
    unknowns: int,
    block: Callable[[int], Tensor],
    apply: Callable[[int, Tensor], Tensor],
    right: Tensor,
    start: Tensor,
    ridge: float,
    mean: Tensor,
) -> Tensor:
    """Solve the normal equations of each group: by Cholesky, or iteratively if they are large."""
    solved = []
    for g, r in enumerate(right):
        if unknowns <= UNKNOWNS:
            solved.append(torch.cholesky_solve(r, _factorize(block(g), ridge)))
        else:
            shift = 1e-4 * mean[g].diagonal().mean() + 1e-30
            inverse = torch.linalg.inv(mean[g] + shift * torch.eye(len(mean[g]), dtype=r.dtype))
            solved.append(_conjugate_gradients(partial(apply, g), r, start[g], inverse))
    return torch.stack(solved)


def _conjugate_gradients(
    apply: Callable[[Tensor], Tensor], right: Tensor, x: Tensor, inverse: Tensor
) -> Tensor:
    """Descend from x; all columns take their own steps.

    Args:
        apply: The matrix.
        right: Right sides, in columns.
        x: Where to start.
        inverse: About the inverse of the blocks on the diagonal.
    """

    def precondition(residual: Tensor) -> Tensor:
        blocks: Tensor = inverse @ residual.unflatten(0, (-1, len(inverse)))
        return blocks.flatten(0, 1)

    residual = right - apply(x)
    direction = precondition(residual)
    size = (residual * direction).sum(0)
    for _ in range(ITERATIONS):
        image = apply(direction)
        step = size / (direction * image).sum(0).clamp_min(1e-300)
        x = x + step * direction
        residual = residual - step * image
        solved = precondition(residual)
        new = (residual * solved).sum(0)
        direction = solved + new / size.clamp_min(1e-300) * direction
        size = new
    return x
