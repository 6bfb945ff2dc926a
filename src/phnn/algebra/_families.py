"""Families of algebras, and the algebras that have names of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from phnn.algebra._algebra import Algebra, as_array, as_conjugation

_UNITS = {1: ("1",), 2: ("1", "i"), 4: ("1", "i", "j", "k")}


def _cayley_dickson_labels(n: int) -> tuple[str, ...]:
    return _UNITS.get(n, ("1", *(f"e{i}" for i in range(1, n))))


def cayley_dickson(signs: Sequence[int]) -> Algebra:
    r"""Double the reals repeatedly, by the rule of Cayley and Dickson.

    .. math:: (a, b)(c, d) = (ac + \gamma\bar d b, da + b\bar c)

    Args:
        signs: The :math:`\gamma` of each doubling, −1, +1 or 0; n = 2^len(signs).

    Example:
        >>> cayley_dickson((-1, -1)) == quaternion
        True
    """
    signs = tuple(signs)
    if any(sign not in (-1, 0, 1) for sign in signs):
        raise ValueError(f"signs must be −1, 0 or 1, got {signs}")
    A, conjugation = np.ones((1, 1, 1)), np.ones((1, 1))
    for sign in signs:
        n = len(A)
        doubled = np.zeros((2 * n, 2 * n, 2 * n))
        doubled[:n, :n, :n] = A  # ac
        doubled[:n, n:, n:] = A.transpose(2, 1, 0)  # da
        doubled[n:, n:, :n] = np.einsum("iab,bc->iac", A, conjugation)  # b c̄
        doubled[n:, :n, n:] = sign * np.einsum("dai,db->iab", A, conjugation)  # γ d̄ b
        A = doubled
        conjugation = np.diag([*conjugation.diagonal(), *-np.ones(n)])
    name = f"cayley_dickson({signs})"
    return Algebra(name, A.tolist(), _cayley_dickson_labels(len(A)), conjugation.tolist())


def clifford(p: int, q: int = 0, r: int = 0) -> Algebra:
    """Return the Clifford algebra: p generators square to +1, q to −1 and r to 0.

    Blades are in binary order: 1, e1, e2, e12, e3, e13, e23, e123, …

    Example:
        >>> clifford(2).labels
        ('1', 'e1', 'e2', 'e12')
    """
    if min(p, q, r) < 0:
        raise ValueError(f"p, q and r count generators, got p={p}, q={q}, r={r}")
    squares = [1] * p + [-1] * q + [0] * r
    n = 2 ** len(squares)
    A, conjugation = np.zeros((n, n, n)), np.zeros((n, n))
    for i, b in product(range(n), repeat=2):
        # each generator of b passes the higher generators of i, with one sign change each
        swaps = sum((i >> (g + 1)).bit_count() for g in range(len(squares)) if b >> g & 1)
        sign = (-1) ** swaps
        for g, square in enumerate(squares):
            if i & b & (1 << g):
                sign *= square
        A[i, i ^ b, b] = sign
    for i in range(n):
        grade = i.bit_count()
        conjugation[i, i] = (-1) ** (grade * (grade + 1) // 2)
    labels = ["1"]
    for i in range(1, n):
        labels.append("e" + "".join(str(g + 1) for g in range(len(squares)) if i >> g & 1))
    return Algebra(f"clifford({p}, {q}, {r})", A.tolist(), labels, conjugation.tolist())


def cyclic(n: int) -> Algebra:
    """Return the algebra of the cyclic group, e_i e_j = e_(i+j mod n): H is block-circulant."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got n={n}")
    A, conjugation = np.zeros((n, n, n)), np.zeros((n, n))
    for i, b in product(range(n), repeat=2):
        A[i, (i + b) % n, b] = 1
        conjugation[-i % n, i] = 1
    labels = ["1", "g", *(f"g{i}" for i in range(2, n))][:n]
    return Algebra(f"cyclic({n})", A.tolist(), labels, conjugation.tolist())


def matrix(k: int) -> Algebra:
    """Return the algebra of k×k matrices, n = k².

    The basis is E_pq in row-major order; conjugation is transposition.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got k={k}")
    n = k * k
    A, conjugation = np.zeros((n, n, n)), np.zeros((n, n))
    for p, q in product(range(k), repeat=2):
        conjugation[q * k + p, p * k + q] = 1
        for s in range(k):
            A[p * k + q, p * k + s, q * k + s] = 1  # E_pq E_qs = E_ps
    labels = [f"E{p + 1}{q + 1}" for p, q in product(range(k), repeat=2)]
    return Algebra(f"matrix({k})", A.tolist(), labels, conjugation.tolist())


def tensor_product(a: Algebra, b: Algebra) -> Algebra:
    """Return the tensor product a ⊗ b with basis index `a_index · b.n + b_index`."""
    A = np.kron(as_array(a), as_array(b))
    left, right = as_conjugation(a), as_conjugation(b)
    conjugation = None if left is None or right is None else np.kron(left, right).tolist()
    labels = [_join(x, y) for x, y in product(a.labels, b.labels)]
    return Algebra(f"tensor_product({a.name}, {b.name})", A.tolist(), labels, conjugation)


def direct_sum(a: Algebra, b: Algebra) -> Algebra:
    """Return the direct sum a ⊕ b, with (x, y)(u, v) = (xu, yv)."""
    n = a.n + b.n
    A = np.zeros((n, n, n))
    A[: a.n, : a.n, : a.n] = as_array(a)
    A[a.n :, a.n :, a.n :] = as_array(b)
    left, right = as_conjugation(a), as_conjugation(b)
    conjugation = None
    if left is not None and right is not None:
        block = np.zeros((n, n))
        block[: a.n, : a.n], block[a.n :, a.n :] = left, right
        conjugation = block.tolist()
    labels = [f"({label},0)" for label in a.labels] + [f"(0,{label})" for label in b.labels]
    return Algebra(f"direct_sum({a.name}, {b.name})", A.tolist(), labels, conjugation)


def _join(x: str, y: str) -> str:
    return y if x == "1" else x if y == "1" else x + y


real = replace(cayley_dickson(()), name="real")
complex = replace(cayley_dickson((-1,)), name="complex")
split_complex = replace(cayley_dickson((1,)), name="split_complex", labels=("1", "j"))
dual = replace(cayley_dickson((0,)), name="dual", labels=("1", "ε"))
quaternion = replace(cayley_dickson((-1, -1)), name="quaternion")
split_quaternion = replace(cayley_dickson((-1, 1)), name="split_quaternion")
octonion = replace(cayley_dickson((-1, -1, -1)), name="octonion")
split_octonion = replace(cayley_dickson((-1, -1, 1)), name="split_octonion")
sedenion = replace(cayley_dickson((-1, -1, -1, -1)), name="sedenion")
# i² = k² = −1, j² = +1, all commute: complex numbers in i over split-complex ones in j
tessarine = replace(
    tensor_product(split_complex, complex), name="tessarine", labels=("1", "i", "j", "k")
)
# conjugating the quaternions alone makes x·x̄ the (dual) squared norm, as rigid motions need it
dual_quaternion = replace(
    tensor_product(dual, quaternion),
    name="dual_quaternion",
    conjugation=np.diag([1.0, -1, -1, -1, 1, -1, -1, -1]).tolist(),
)
