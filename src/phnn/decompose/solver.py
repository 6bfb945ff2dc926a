r"""Least-squares CP decompositions: many tensors, and many starts for each, at once.

Every start minimises, with a weight μ that falls to zero,

.. math:: \bigl\lVert T - \textstyle\sum_r u_r \otimes w_r \otimes v_r \bigr\rVert^2
          + \mu \bigl(\lVert U\rVert^2 + \lVert V\rVert^2 + \lVert W\rVert^2\bigr)

by Levenberg–Marquardt steps on U, V and W together. The penalty keeps the terms small while the fit
is coarse; without it they grow and cancel each other. When it is gone, convergence is quadratic and
ends at the precision of float64.

A step is solved in the space of the equations, one for each entry of T. There :math:`J J^\top` is a
sum of three Kronecker products with the identity. So the Jacobian J is never built, and the number
of unknowns may be larger or smaller than that of the equations. A step costs each start one
Cholesky factorisation with as many rows as T has entries: 64 for n = 4, 512 for n = 8, 4096 for
n = 16.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

from phnn.functional import Factors, each

__all__ = ["Fit", "estimate", "solve"]

# The weight μ, for tensors of norm 1. Of 8 starts for each of 20 random 4×4×4 tensors at rank 7,
# 99 % succeeded within 80 steps. A faster decay loses few of them, but ends with larger terms (at
# rank 8, 0.1 from the quaternions: growth 4.0 with decay 0.8, 8.7 with 0.6). Alternating least
# squares with a vanishing proximal term brought 5 % of its starts to 1e-10 in 1000 sweeps.
_REGULARISATION, _DECAY, _VANISHED = 1e-2, 0.8, 1e-5
_DAMPING, _RELAX, _TIGHTEN = 0.1, 0.3, 4.0
# below 1e-13 the factorisation is dominated by rounding; above 1e3 a start no longer moves
_LEAST_DAMPING, _MOST_DAMPING = 1e-13, 1e3
_STEPS, _CHECK = 200, 10  # most steps of a start; steps between two removals of finished starts
_CONVERGED = 1e-14  # relative error at which rounding dominates
_STALLED = 0.5  # a start is given up if it keeps this share of its error over _CHECK steps
_STARTS = (4, 12)  # the first few solve nearly all tensors; the others get more
_CHUNK = 2**22  # entries of the matrices that are factorised together: 32 MB
_TYPICAL, _SPEED = 45, 1e10  # steps of a start that succeeds, operations per second of a core


@dataclass(frozen=True, eq=False)
class Fit:
    """The best start of each tensor.

    Attributes:
        factors: U, V, W with a leading axis for the tensors.
        error: Relative Frobenius error of each.
        growth: Size of the terms of each, relative to the tensor.
        accepted: Whether both are within their bounds.
    """

    factors: Factors
    error: Tensor
    growth: Tensor
    accepted: Tensor


def estimate(shape: torch.Size) -> float:
    """Return roughly the seconds of one core for one rank of one tensor.

    It assumes that the first starts succeed. It is computed, not measured, so which tensors are too
    large does not depend on the machine or its load.
    """
    return _STARTS[0] * _TYPICAL * shape.numel() ** 3 / 3 / _SPEED


def solve(targets: Tensor, rank: int, *, tol: float, bound: float, deadline: float) -> Fit:
    """Fit `rank` terms to each of several tensors of one shape, none of them zero.

    The starts have their own random generator and are the same for every tensor. So the result for
    one tensor depends neither on the other tensors nor on earlier computations.

    Args:
        targets: The tensors, (count, terms, n, n') in float64.
        rank: Number of terms.
        tol: Largest relative error that is accepted.
        bound: Largest growth that is accepted.
        deadline: Value of `time.thread_time` at which the work stops.
    """
    size = targets.flatten(1).norm(dim=1).view(-1, 1, 1)
    targets = targets / size.unsqueeze(-1)
    generator = torch.Generator().manual_seed(rank)
    best: Fit | None = None
    for starts in _STARTS:
        begin = _random(targets.shape[1:], rank, starts, generator)
        if best is None:
            best = _best_start(targets, begin, tol, bound, deadline)
        elif not best.accepted.all():
            again = ~best.accepted
            found = _best_start(targets[again], begin, tol, bound, deadline)
            best = _improve(best, again, found)
    assert best is not None  # _STARTS is not empty
    factors = each(lambda factor: factor * size.pow(1 / 3), best.factors.balanced())
    return Fit(factors, best.error, best.growth, best.accepted)


def _random(shape: torch.Size, rank: int, starts: int, generator: torch.Generator) -> Factors:
    """Draw starts with a norm of about 1, which the tensors have."""
    terms, rows, columns = shape

    def draw(size: int) -> Tensor:
        normal = torch.randn(starts, size, rank, generator=generator, dtype=torch.float64)
        scaled: Tensor = normal / (math.sqrt(size) * rank ** (1 / 6))
        return scaled

    return Factors(U=draw(terms), V=draw(columns), W=draw(rows))


def _best_start(targets: Tensor, begin: Factors, tol: float, bound: float, deadline: float) -> Fit:
    """Run every start on every target; the best is the accepted one with the smallest terms."""
    count, starts = len(targets), len(begin.V)
    pairs = torch.cartesian_prod(torch.arange(count), torch.arange(starts))
    chunk = max(1, _CHUNK // targets[0].numel() ** 2)
    ends, errors = [], []
    for target, start in (part.unbind(1) for part in pairs.split(chunk)):
        x = each(itemgetter(start), begin)
        end, error = _descend(targets[target], x, deadline)
        ends.append(end)
        errors.append(error)
    x = each(lambda *parts: torch.cat(parts), *ends)
    error, growth = torch.cat(errors).view(count, starts), x.growth().view(count, starts)
    accepted = (error <= tol) & (growth <= bound)
    # first the accepted ones by growth, mapped to values below 1; then the others by error
    choice = torch.where(accepted, growth / (1 + growth), 1 + error).argmin(1)
    index = torch.arange(count)
    chosen = each(lambda factor: factor[index * starts + choice], x)
    return Fit(chosen, error[index, choice], growth[index, choice], accepted[index, choice])


def _improve(best: Fit, again: Tensor, found: Fit) -> Fit:
    """Replace the fits of some of the tensors by better ones."""
    better = found.accepted | (found.error < best.error[again])
    where = again.nonzero().flatten()[better]

    put = partial(_put, where)
    return Fit(
        each(put, best.factors, each(itemgetter(better), found.factors)),
        put(best.error, found.error[better]),
        put(best.growth, found.growth[better]),
        put(best.accepted, found.accepted[better]),
    )


def _descend(target: Tensor, x: Factors, deadline: float) -> tuple[Factors, Tensor]:
    """Take each start as far as it goes; return where it ended, with the error there."""
    ends, end_error = each(torch.clone, x), _error(target, x)
    index = torch.arange(len(target))
    damping = target.new_full((len(target),), _DAMPING)
    earlier = torch.full_like(damping, torch.inf)
    weight = _REGULARISATION
    for step in range(1, _STEPS + 1):
        if len(index) == 0 or time.thread_time() > deadline:
            break
        x, damping = _step(target, x, damping, weight)
        weight = weight * _DECAY if weight > _VANISHED else 0.0
        if weight or (step % _CHECK and step < _STEPS):
            continue
        error = _error(target, x)
        ends = each(partial(_put, index), ends, x)
        end_error[index] = error
        going = (error > _CONVERGED) & (error < _STALLED * earlier)
        target, damping, index, earlier = (t[going] for t in (target, damping, index, error))
        x = each(itemgetter(going), x)
    return ends, end_error


def _put(index: Tensor, old: Tensor, new: Tensor) -> Tensor:
    return old.index_copy(0, index, new)


def _error(target: Tensor, x: Factors) -> Tensor:
    error: Tensor = (x.tensor() - target).flatten(1).norm(dim=1)
    return error


def _cost(residual: Tensor, x: Factors, weight: float) -> Tensor:
    penalty = sum(factor.square().sum((1, 2)) for factor in (x.mixing, x.V, x.W))
    return residual.square().sum((1, 2, 3)) + weight * penalty


def _step(target: Tensor, x: Factors, damping: Tensor, weight: float) -> tuple[Factors, Tensor]:
    r"""Take one Levenberg–Marquardt step of each start, unless it would not descend.

    With residual r and c = damping + μ, the minimum of
    :math:`\lVert J\delta + r\rVert^2 + \mu\lVert x + \delta\rVert^2
    + \mathrm{damping}\,\lVert\delta\rVert^2` is

    .. math:: \delta = -\tfrac{\mu}{c} x - J^\top (J J^\top + c)^{-1} (r - \tfrac{\mu}{c} J x)

    and :math:`J x` is three times the model, which is of third degree in x.
    """
    model = x.tensor()
    residual = model - target
    shift = damping + weight
    pull = (weight / shift).view(-1, 1, 1)
    matrix = _equations(x)
    matrix.diagonal(dim1=1, dim2=2).add_(shift.view(-1, 1))
    root, failed = torch.linalg.cholesky_ex(matrix)
    right = residual - pull.unsqueeze(-1) * 3 * model
    z = torch.cholesky_solve(right.flatten(1).unsqueeze(-1), root).view_as(residual)
    new = each(lambda factor, back: factor - pull * factor - back, x, _transposed(x, z))
    # a failed factorisation gives NaN or nonsense; either way the step is refused below
    descends = _cost(new.tensor() - target, new, weight) < _cost(residual, x, weight)
    taken = descends & (failed == 0)
    chosen = taken.view(-1, 1, 1)
    x = each(lambda old, new: torch.where(chosen, new, old), x, new)
    damping = torch.where(taken, damping * _RELAX, damping * _TIGHTEN)
    return x, damping.clamp(_LEAST_DAMPING, _MOST_DAMPING)


def _equations(x: Factors) -> Tensor:
    r"""Return :math:`J J^\top`, with rows and columns indexed by (i, a, b)."""
    U, V, W = x.mixing, x.V, x.W
    (count, i, _), b, a = U.shape, V.shape[1], W.shape[1]
    matrix = U.new_zeros(count, i, a, b, i, a, b)
    # the derivative by U involves only its own i, and so on: hence the diagonals
    matrix.diagonal(dim1=1, dim2=4).add_(_pairs(W, V))
    matrix.diagonal(dim1=2, dim2=5).add_(_pairs(U, V))
    matrix.diagonal(dim1=3, dim2=6).add_(_pairs(U, W))
    return matrix.view(count, i * a * b, i * a * b)


def _pairs(left: Tensor, right: Tensor) -> Tensor:
    """Return `Σ_r l[p, r] m[q, r] l[s, r] m[t, r]`, (count, p, q, s, t, 1)."""
    columns = (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1, 2)
    sizes = (left.shape[1], right.shape[1])
    gram: Tensor = (columns @ columns.mT).unflatten(2, sizes).unflatten(1, sizes)
    return gram.unsqueeze(-1)


def _transposed(x: Factors, z: Tensor) -> Factors:
    r"""Return :math:`J^\top z`, shaped like the factors."""
    by_column = torch.einsum("piab,pbr->piar", z, x.V)
    return Factors(
        U=torch.einsum("piar,par->pir", by_column, x.W),
        V=torch.einsum("piab,pir,par->pbr", z, x.mixing, x.W),
        W=torch.einsum("piar,pir->par", by_column, x.mixing),
    )
