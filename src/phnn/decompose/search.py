"""The search for the smallest rank of one tensor, between a lower and an upper bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from phnn.decompose import exact, solver
from phnn.decompose.bounds import by_fibers, compress, lower_bound, scale_slices
from phnn.functional import Factors, each

__all__ = ["Request", "Search"]


@dataclass(frozen=True)
class Request:
    """The decompositions that are accepted.

    Args:
        rank: The required rank; None for the smallest.
        tol: Largest relative Frobenius error.
        bound: Largest growth.
        seconds: Processor time for each tensor.
    """

    rank: int | None
    tol: float
    bound: float
    seconds: float

    def __post_init__(self) -> None:
        if self.rank is not None and (not isinstance(self.rank, int) or self.rank < 1):
            raise ValueError(
                f"rank must be an integer of at least 1, or None to search; got rank={self.rank!r}"
            )
        if not 0 < self.tol < 1:
            raise ValueError(f"tol must be a relative error between 0 and 1, got tol={self.tol}")
        if not self.bound >= 1:
            raise ValueError(f"bound must be at least 1, got bound={self.bound}")
        if not self.seconds >= 0:
            raise ValueError(f"seconds must not be negative, got seconds={self.seconds}")


class Search:
    """The state of the search for one tensor: what is known, and what to try next.

    The search begins at the rank of a generic tensor of this shape. Until a rank succeeds, it goes
    up by one. After a success it goes down in growing strides, and after a failure below a success
    it halves the interval.

    Args:
        A: The tensor (terms, n, n) in float64.
        request: What is accepted.

    Attributes:
        core: The tensor in bases of its column spaces, with terms of like size, for the solver.
        is_scaled: Whether the terms of the core were scaled to like size.
        lower: Smaller ranks are excluded, by a bound or by a failed probe.
        upper: This rank and larger ones need not be tried.
    """

    def __init__(self, A: Tensor, request: Request) -> None:
        self.A, self.request = A, request
        core, bases = compress(A, request.tol / 4)
        self.core, self._bases = scale_slices(core, bases)
        self.is_scaled = self.core is not core
        self._estimate = solver.estimate(self.core.shape)
        self._stride = 1
        self._is_solved = False
        self._failures: list[str] = []
        known = exact.find(A)
        self._best = known.factors if known is not None and self._fits(known.factors) else None
        fibers = self._expand(by_fibers(self.core))
        self._fibers = fibers if self._fits(fibers) else None
        self.lower = lower_bound(core, request.tol)
        if request.rank is not None:
            self.lower, last = max(request.rank, self.lower), request.rank + 1
        else:
            last = fibers.rank if self._fibers is not None else fibers.rank + 1
            if known is not None and known.optimal:
                self.lower = known.factors.rank
        self.upper = last if self._best is None else self._best.rank

    def _fits(self, factors: Factors) -> bool:
        """Return whether a decomposition that needed no solver is acceptable."""
        growth = float(factors.growth() / self.A.norm())
        return growth <= self.request.bound and self.request.rank in (None, factors.rank)

    def _expand(self, factors: Factors) -> Factors:
        """Return the factors of the tensor itself, from those of the core."""
        return each(torch.matmul, self._bases, factors)

    @property
    def is_complete(self) -> bool:
        """Whether there is no rank left to try."""
        return self.lower >= self.upper

    def probe(self) -> int | None:
        """Return the rank to try next, or None if there is nothing to try."""
        # do not begin what cannot end in the given time: the work would be lost
        if self.is_complete or self._estimate > self.request.seconds:
            return None
        if self._is_solved and self._failures:
            return (self.lower + self.upper) // 2
        if self._is_solved:
            return max(self.lower, self.upper - self._stride)
        if self._failures:
            return self.lower
        generic = math.ceil(self.core.numel() / (sum(self.core.shape) - 2))
        return min(max(generic, self.lower), self.upper - 1)

    def succeed(self, factors: Factors) -> None:
        """Record a decomposition of the core."""
        found = self._expand(factors)
        growth = float(found.growth() / self.A.norm())
        if growth > self.request.bound:  # which that of the scaled core need not be
            error = float((found.tensor() - self.A).norm() / self.A.norm())
            self.fail(factors.rank, error, growth)
            return
        if self._is_solved:
            self._stride *= 2
        self._is_solved = True
        self._best, self.upper = found, factors.rank

    def fail(self, rank: int, error: float, growth: float) -> None:
        """Record a rank that failed."""
        self._failures.append(f"rank {rank} leaves an error of {error:.1e} at growth {growth:.1f}")
        self.lower = rank + 1

    def found(self) -> Factors | None:
        """Return the best decomposition so far; the one by fibers only if there is no other."""
        return self._fibers if self._best is None and self.is_complete else self._best

    def reason(self) -> str:
        """Return why nothing was found."""
        what = f"the algebra of shape {tuple(self.A.shape)}"
        rank, seconds = self.request.rank, self.request.seconds
        tried = self._failures[-1] if self._failures else "no attempt was completed"
        if rank is not None and self.lower > rank and not self._failures:
            return f"{what} cannot have rank={rank}: its rank is at least {self.lower}"
        if self._estimate > seconds:
            return (
                f"{what} would take the solver {self._estimate:.1g} s of one core or more, "
                f"and seconds={seconds:g} is allowed"
            )
        if not self.is_complete:
            return f"seconds={seconds:g} was not enough for {what}: {tried}"
        return (
            f"no decomposition of {what} has an error below tol={self.request.tol:g} and a growth "
            f"below bound={self.request.bound:g}: {tried}"
        )
