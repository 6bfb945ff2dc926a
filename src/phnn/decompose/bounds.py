"""Bounds on the rank of a tensor that need no search."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phnn.functional import Factors

__all__ = ["by_fibers", "compress", "lower_bound", "scale_slices"]

UNEVEN = 4.0  # times the size of the smallest term, from which on the largest hides it


def _numerical_rank(singular: Tensor, tol: float) -> int:
    """Return how many singular values are needed for a relative error of at most tol."""
    tails = singular.square().flip(0).cumsum(0).sqrt()
    return int((tails > tol * tails[-1]).sum())


def _unfoldings(T: Tensor) -> list[Tensor]:
    return [T.movedim(axis, 0).flatten(1) for axis in range(3)]


def compress(A: Tensor, tol: float) -> tuple[Tensor, Factors]:
    """Return the core of a tensor in orthonormal bases of its three column spaces (Tucker).

    Returns:
        The core, and the bases in the order of U, V, W.
    """
    bases = []
    for unfolding in _unfoldings(A):
        left, singular, _ = torch.linalg.svd(unfolding, full_matrices=False)
        kept = _numerical_rank(singular, tol)
        whole = torch.eye(len(unfolding), dtype=A.dtype)
        bases.append(whole if kept == len(unfolding) else left[:, :kept])
    core = torch.einsum("iab,ij,ac,bd->jcd", A, *bases)
    return core, Factors(U=bases[0], W=bases[1], V=bases[2])


def scale_slices(core: Tensor, bases: Factors) -> tuple[Tensor, Factors]:
    """Return a core whose terms have the same size, and the bases that undo it.

    The rank stays. But next to large terms the solver takes a small one for noise, until it pays a
    product or more for each of its numbers. Terms of like size are left as they are.
    """
    sizes = core.flatten(1).norm(dim=1)
    if bases.U is None or sizes.max() <= UNEVEN * sizes.min():
        return core, bases
    scales = sizes / sizes.max()
    return core / scales[:, None, None], bases._replace(U=bases.U * scales)


def lower_bound(core: Tensor, tol: float) -> int:
    """Return a lower bound on the rank of all tensors within tol.

    One bound comes from the unfoldings, another from Strassen's equations. There, three
    combinations X, Y, Z of the slices form the matrix [0 Z −Y; −Z 0 X; Y −X 0]. It has rank 2 for a
    tensor of rank 1, so at most 2R for a tensor of rank R (V. Strassen, "Rank and
    optimal computation of generic tensors", 1983).
    """
    singular = [torch.linalg.svdvals(unfolding) for unfolding in _unfoldings(core)]
    bounds = [_numerical_rank(values, tol) for values in singular]
    if min(core.shape) < 3:
        return max(bounds)
    generator = torch.Generator().manual_seed(0)
    for axis in range(3):
        normal = torch.randn(core.shape[axis], 3, generator=generator, dtype=core.dtype)
        mix = torch.linalg.qr(normal).Q
        X, Y, Z = torch.einsum("kpq,kx->xpq", core.movedim(axis, 0), mix)
        zero = torch.zeros_like(X)
        rows = [[zero, Z, -Y], [-Z, zero, X], [Y, -X, zero]]
        values = torch.linalg.svdvals(torch.cat([torch.cat(row, dim=1) for row in rows]))
        # each slice appears twice: a change by tol moves a singular value by at most √2 tol
        significant = values > 1.5 * max(tol, 1e-13) * core.norm()
        bounds.append(math.ceil(int(significant.sum()) / 2))
    return max(bounds)


def by_fibers(core: Tensor) -> Factors:
    """Return one product for each nonzero fiber, along the axis with the fewest of them.

    These are at most n² products, as many as a dense layer has: the last resort.
    """
    axis = min(range(3), key=lambda axis: int(_unfoldings(core)[axis].any(0).sum()))
    fibers = _unfoldings(core)[axis]
    first, second = (size for other, size in enumerate(core.shape) if other != axis)
    units = [
        torch.eye(first, dtype=core.dtype).repeat_interleave(second, dim=1),
        torch.eye(second, dtype=core.dtype).repeat(1, first),
    ]
    units.insert(axis, fibers)
    U, W, V = (columns[:, fibers.any(0)] for columns in units)
    return Factors(U=U, V=V, W=W)
