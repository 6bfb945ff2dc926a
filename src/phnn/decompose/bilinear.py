r"""CP decompositions of algebras: products in few multiplications.

An algebra of CP rank R needs R multiplications of one number by one number:

.. math:: A[i, a, b] = \sum_{r=1}^{R} U[i, r] \, W[a, r] \, V[b, r]

A PH layer mixes its inputs with V and its filters with U, multiplies R times, and mixes the
outputs with W. A dense layer multiplies n² times; a generic algebra needs about ⌈n³/(3n − 2)⌉: 2 or
3 for n = 2, 5 for n = 3, 7 for n = 4, 24 for n = 8.

Some tensors are limits of tensors of a smaller rank: the dual numbers have rank 3 and are a limit
of tensors of rank 2. Such a fit has a small error only with huge terms that cancel each other. So a
rank is accepted only with a small error *and* a bounded growth.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import itemgetter

import torch
from torch import Tensor

from phnn.algebra import Algebra, get
from phnn.decompose import solver
from phnn.decompose.search import Request, Search
from phnn.decompose.threads import one_thread
from phnn.functional import Factors, each

__all__ = ["Declined", "Decomposition", "bilinear", "bilinear_many"]


@dataclass(frozen=True, eq=False)
class Decomposition:
    r"""A CP decomposition of an algebra, with its accuracy.

    Attributes:
        factors: U, V and W, float64 on the CPU.
        error: Relative Frobenius error: zero for most named algebras, about 1e-16 for learned ones,
            and never above the tolerance.
        growth: Size of the terms, :math:`\sum_r \lVert u_r\rVert \lVert v_r\rVert \lVert w_r\rVert
            / \lVert A\rVert`; at least 1, and about the factor by which it amplifies rounding.
        searched: Whether every smaller rank was excluded by a bound or failed; False when a rank
            was given, or when the time was over before all were tried.
    """

    factors: Factors = field(repr=False)
    error: float
    growth: float
    searched: bool

    @property
    def rank(self) -> int:
        """The CP rank R."""
        return self.factors.rank


@dataclass(frozen=True)
class Declined:
    """An algebra without a known decomposition.

    Attributes:
        reason: What was tried, and how it failed.
    """

    reason: str


def bilinear(
    A: Tensor | Algebra | str,
    rank: int | None = None,
    *,
    tol: float = 1e-10,
    bound: float = 30.0,
    seconds: float = 60.0,
) -> Decomposition:
    r"""Return the CP decomposition of an algebra with the smallest rank that can be found.

    Algebras of known rank have exact decompositions with small rational entries: split-complex 2,
    complex and dual 3, tessarine 6, 2×2 matrices 7, quaternion 8. So do larger algebras made of
    them, Clifford algebras, octonions and sedenions; for these, up to n = 8, a solver tries smaller
    ranks. Learned algebras are left to the solver. The same A gives the same result.

    Args:
        A: The algebra: a tensor (terms, n, n), or a known algebra or its name.
        rank: The CP rank; by default the smallest that is found.
        tol: Largest relative Frobenius error that is accepted. An algebra of known rank is exact
            all the same, unless another rank is asked for.
        bound: Largest growth that is accepted.
        seconds: Processor time for the search. A random algebra takes about 0.1 s for n = 4 and
            10 s for n = 8; n = 16 would take many minutes and is declined at once, unless
            `seconds` allows them.

    Raises:
        RuntimeError: No decomposition was found; the message says why.

    Example:
        >>> from phnn import algebra
        >>> found = bilinear(algebra.quaternion)
        >>> found.rank, found.error, round(found.growth, 6)
        (8, 0.0, 4.0)
        >>> torch.equal(found.factors.tensor(), algebra.quaternion.structure)
        True
    """
    found = bilinear_many([A], rank, tol=tol, bound=bound, seconds=seconds)[0]
    if isinstance(found, Declined):
        raise RuntimeError(found.reason)
    return found


@one_thread()
def bilinear_many(
    algebras: Iterable[Tensor | Algebra | str],
    rank: int | None = None,
    *,
    tol: float = 1e-10,
    bound: float = 30.0,
    seconds: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Decomposition | Declined]:
    """Return the decompositions of many algebras, such as those of all layers of a network.

    They are searched together, and equal ones once.

    Args:
        algebras: Tensors (terms, n, n) of any shapes, or known algebras or their names.
        rank: The CP rank of all; by default the smallest that is found for each.
        tol: Largest relative Frobenius error that is accepted.
        bound: Largest growth that is accepted.
        seconds: Processor time for each distinct algebra; together they share the sum.
        progress: Called with the number of distinct algebras that are done and of all of them,
            whenever the first number changes.

    Example:
        >>> from phnn import algebra
        >>> [found.rank for found in bilinear_many([algebra.complex, algebra.matrix(2)])]
        [3, 7]
    """
    request = Request(rank, tol, bound, seconds)
    tensors = [_structure(A) for A in algebras]
    keys = [(A.shape, A.numpy().tobytes()) for A in tensors]
    different = dict(zip(keys, tensors, strict=True))
    # small matrices: faster here than on a default device, and float64 exists
    with torch.device("cpu"):
        # a rank beyond all reason would take memory for as many products
        large = {key: A.numel() for key, A in different.items() if (rank or 0) > A.numel()}
        searches = {key: Search(A, request) for key, A in different.items() if key not in large}
        _run(list(searches.values()), request, progress or (lambda done, total: None))
        results = {key: _result(search) for key, search in searches.items()}
    for key, size in large.items():
        results[key] = Declined(f"rank {rank} is more than the {size} numbers of the algebra")
    return [results[key] for key in keys]


def _structure(A: Tensor | Algebra | str) -> Tensor:
    """Return the tensor (terms, n, n), checked, in float64 on the CPU."""
    if isinstance(A, str):
        return get(A).structure
    if isinstance(A, Algebra):
        return A.structure
    if not isinstance(A, Tensor):
        raise TypeError(
            "an algebra must be a Tensor, a phnn.algebra.Algebra or its name, got "
            f"{type(A).__name__}"
        )
    if A.dim() != 3 or A.numel() == 0:
        raise ValueError(f"an algebra has shape (terms, n_out, n_in), got {tuple(A.shape)}")
    if A.is_meta:
        raise ValueError("the algebra is on the meta device and holds no numbers to decompose")
    if not A.is_floating_point():
        raise TypeError(f"the algebra must be real and floating-point, got {A.dtype}")
    A = A.detach().to("cpu", torch.float64).contiguous()
    if not A.isfinite().all():
        raise ValueError("the algebra holds values that are NaN or infinite")
    if not A.any():
        raise ValueError(f"the algebra is zero everywhere, shape {tuple(A.shape)}")
    return A


def _run(searches: list[Search], request: Request, progress: Callable[[int, int], None]) -> None:
    """Probe in rounds: one call of the solver for all searches of the same shape and rank."""
    deadline = time.thread_time() + request.seconds * len(searches)
    finished = -1
    while True:
        groups: dict[tuple[torch.Size, int, bool], list[Search]] = defaultdict(list)
        for search in searches:
            if (rank := search.probe()) is not None:
                groups[search.core.shape, rank, search.is_scaled].append(search)
        done = len(searches) - sum(map(len, groups.values()))
        if done > finished:
            finished = done
            progress(done, len(searches))
        if not groups or time.thread_time() > deadline:
            return
        # the small ones first: if time runs out, it should be on the large ones
        (_, rank, _), group = min(groups.items(), key=lambda item: (item[0][0].numel(), item[0][1]))
        _probe(group, rank, request, deadline)


def _probe(group: list[Search], rank: int, request: Request, deadline: float) -> None:
    """Ask the solver for one rank of several tensors of one shape."""
    cores = torch.stack([search.core for search in group])
    # half of tol for the fit; the compression to the core has used some of the rest
    tol = request.tol / 2
    if group[0].is_scaled:  # then the error of the largest term may be that of all
        tol /= math.sqrt(cores.shape[1])
    fit = solver.solve(cores, rank, tol=tol, bound=request.bound, deadline=deadline)
    is_late = time.thread_time() > deadline
    for index, search in enumerate(group):
        if fit.accepted[index]:
            search.succeed(each(itemgetter(index), fit.factors))
        elif not is_late:
            search.fail(rank, float(fit.error[index]), float(fit.growth[index]))


def _result(search: Search) -> Decomposition | Declined:
    found = search.found()
    if found is None:
        return Declined(search.reason())
    size = search.A.norm()
    return Decomposition(
        factors=each(torch.clone, found),  # exact factors belong to a shared table
        error=float((found.tensor() - search.A).norm() / size),
        growth=float(found.growth() / size),
        searched=search.is_complete and search.request.rank is None,
    )
