r"""How a PH weight is built: the sizes of A, and what is known of it.

A weight :math:`H = \sum_i A_i \otimes F_i` has n_out output components and n_in input components.
The paper's layers are square, n_out = n_in = n, with n terms. A pair n = (n_out, n_in) with any
number of terms covers the rest of the family; n = (out, 1) and (1, in) are the low-rank layers.

Every room that takes `n=`, `terms=`, `rank=` and `algebra=` checks them here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from phnn import algebra as algebras
from phnn.algebra import Algebra

__all__ = ["Choice", "Dimension", "Structure", "find_algebra", "show_dimension"]

Dimension = int | tuple[int, int]


class Choice(TypedDict, total=False):
    """The keyword arguments by which a layer's weight is chosen; `Structure.of` explains them."""

    n: Dimension | None
    algebra: Algebra | str | None
    learn_algebra: bool | None
    terms: int | None
    rank: int | None


@dataclass(frozen=True)
class Structure:
    """The structure of one PH weight; prints as `n=4` or `n=16x4 terms=3`.

    Attributes:
        n_out: Components of the output.
        n_in: Components of the input.
        terms: Number of Kronecker terms.
        algebra: The known algebra that A holds or starts from; None for one that is only learned.
        learns: Whether A is learned.
        rank: CP rank that A is limited to; None without a limit.
    """

    n_out: int
    n_in: int
    terms: int
    algebra: Algebra | None = None
    learns: bool = True
    rank: int | None = None

    @classmethod
    def of(
        cls,
        n: Dimension | None = None,
        *,
        algebra: Algebra | str | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> Structure:
        """Return the structure that the arguments of a layer ask for, or say why there is none.

        Args:
            n: Dimension of the algebra; a pair (n_out, n_in) for a rectangular A.
            algebra: A known algebra, or its name; it implies n.
            learn_algebra: Whether A is learned; by default exactly when no algebra is given.
            terms: Number of Kronecker terms. By default n, or the rank of a rectangular A.
            rank: CP rank that a learned A is limited to.
        """
        known = find_algebra(algebra)
        learns = known is None if learn_algebra is None else learn_algebra
        if known is None and not learns:
            raise ValueError("learn_algebra=False needs an algebra= to keep fixed")
        if known is not None:
            _check_known(known, n, terms, rank, learns)
            return cls(known.n, known.n, known.n, known, learns, _check_rank(rank, known.n**2))
        if n is None:
            raise TypeError("give n=, the dimension of a learned algebra, or algebra=, a known one")
        n_out, n_in = _check_dimension(n)
        most = n_out * n_in
        rank = _check_rank(rank, most)
        if terms is None:
            terms = _default_terms(n, rank)
        elif not isinstance(terms, int) or isinstance(terms, bool):
            raise TypeError(f"terms must be an integer, got {terms!r}")
        if not 1 <= terms <= most:
            raise ValueError(f"terms must be between 1 and {_product(n)}={most}, got terms={terms}")
        if rank is not None and rank < terms:
            raise ValueError(
                f"rank={rank} must be at least terms={terms}; "
                f"raise rank to {terms}, or lower terms to {rank}"
            )
        return cls(n_out, n_in, terms, rank=rank)

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> Structure:
        """Return the structure that the arguments of a constructor ask for, others among them."""
        return cls.of(**{name: arguments[name] for name in Choice.__annotations__})

    @property
    def n(self) -> Dimension:
        """Dimension of a square A, or the pair (n_out, n_in)."""
        return self.n_out if self.is_square else (self.n_out, self.n_in)

    @property
    def pair(self) -> tuple[int, int]:
        """The pair (n_out, n_in), of a square A too."""
        return self.n_out, self.n_in

    @property
    def is_square(self) -> bool:
        """Whether A is made of square matrices, as the paper's is."""
        return self.n_out == self.n_in

    @property
    def is_paper(self) -> bool:
        """Whether this is the paper's layer: square, with n terms."""
        return self.n_out == self.n_in == self.terms

    @property
    def arguments(self) -> Choice:
        """The keyword arguments by which a layer class builds this structure."""
        if self.algebra is not None:
            return {"algebra": self.algebra, "learn_algebra": self.learns, "rank": self.rank}
        return {"n": self.n, "terms": self.terms, "rank": self.rank}

    def count(self, weight: tuple[int, ...], groups: int = 1) -> int:
        """Return the number of parameters that replace a dense weight.

        Args:
            weight: Shape of the dense weight, (out, in/groups, *k) or, transposed, (in, out/groups,
                *k).
            groups: Groups of the convolution.
        """
        filters = self.terms * math.prod(weight) // (self.n_out * self.n_in)
        if not self.learns:
            return filters
        if self.rank is None:
            return filters + self.terms * self.n_out * self.n_in
        mixing = self.terms if self.rank > self.terms else 0
        return filters + self.rank * (self.n_out + self.n_in + mixing)

    def __str__(self) -> str:
        if self.algebra is not None:
            text = f"algebra={self.algebra.name}" + ", learn_algebra=True" * self.learns
        else:
            text = f"n={show_dimension(self.n)}"
            if self.terms != self.n:
                text += f", terms={self.terms}"
        return text if self.rank is None else f"{text}, rank={self.rank}"


def find_algebra(algebra: Algebra | str | None) -> Algebra | None:
    """Return the algebra that a user means: one by its name, or the object itself."""
    if algebra is None or isinstance(algebra, Algebra):
        return algebra
    if isinstance(algebra, str):
        return algebras.get(algebra)
    raise TypeError(f"algebra must be a phnn.algebra.Algebra or its name, got {algebra!r}")


def show_dimension(n: Dimension) -> str:
    """Write a dimension as `parse_dimension` reads it."""
    return str(n) if isinstance(n, int) else f"{n[0]}x{n[1]}"


def _check_dimension(n: Dimension) -> tuple[int, int]:
    pair = n if isinstance(n, tuple | list) else (n, n)
    if len(pair) != 2 or any(not isinstance(size, int) or isinstance(size, bool) for size in pair):
        raise TypeError(f"n must be an integer or a pair (n_out, n_in) of integers, got {n!r}")
    if min(pair) < 1:
        raise ValueError(f"n must be at least 1, got n={n}")
    return pair[0], pair[1]


def _check_known(
    known: Algebra, n: Dimension | None, terms: int | None, rank: int | None, learns: bool
) -> None:
    if n is not None and n not in (known.n, (known.n, known.n)):
        raise ValueError(f"{known.name} has n={known.n}, which contradicts n={n}; leave n out")
    if terms not in (None, known.n):
        raise ValueError(
            f"{known.name} has {known.n} terms, which contradicts terms={terms}; "
            "leave terms out, or learn the algebra with n="
        )
    if rank is not None and not learns:
        raise ValueError(
            f"rank={rank} limits an algebra that is learned, and {known.name} is fixed; leave "
            "rank out, or start from the algebra with learn_algebra=True"
        )
    if rank is not None and isinstance(rank, int) and rank < known.n:
        raise ValueError(f"rank={rank} must be at least terms={known.n}; raise rank to {known.n}")


def _check_rank(rank: int | None, most: int) -> int | None:
    if rank is None:
        return None
    if not isinstance(rank, int) or isinstance(rank, bool):
        raise TypeError(f"rank must be an integer, got {rank!r}")
    if not 1 <= rank <= most:
        root = math.isqrt(most)
        name = "n²" if root * root == most else "n_out·n_in"
        raise ValueError(f"rank must be between 1 and {name}={most}, got rank={rank}")
    return rank


def _default_terms(n: Dimension, rank: int | None) -> int:
    if isinstance(n, int):
        return n if rank is None else min(n, rank)
    if rank is None:
        raise TypeError(f"terms= is required for the pair n={n}: any number from 1 to n_out·n_in")
    return rank


def _product(n: Dimension) -> str:
    return "n²" if isinstance(n, int) else "n_out·n_in"
