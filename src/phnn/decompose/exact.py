r"""Exact CP decompositions of known algebras, with small rational entries.

A table holds the classical ones (Gauss's three products for complex numbers, Strassen's seven for
2×2 matrices, Howell and Lafon's eight for quaternions). Others are composed: direct sums and tensor
products from their components, matrices from blocks, Clifford algebras from 2×2 matrices,
quaternions, complex and split-complex numbers, circular convolution from the Fourier transform. In
the remaining algebras (octonions, sedenions) basis elements multiply to ± basis elements. They take
one product for each character of the underlying group, and one for each sign that no change of
signs removes: n(n − 1)/2 + 2 products, 30 for octonions.

Entries are integers over powers of two, so float64 holds them and their products without rounding;
only the Fourier transform rounds. Algebras are recognised by their structure constants, not by
their names.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from phnn import algebra
from phnn.algebra import Algebra
from phnn.functional import Factors, each

__all__ = ["Exact", "find"]


class Exact(NamedTuple):
    """An exact decomposition.

    Attributes:
        factors: U, V and W.
        optimal: Whether a theorem says that no rank is smaller.
    """

    factors: Factors
    optimal: bool


def find(A: Tensor) -> Exact | None:
    """Return the exact decomposition with the smallest known rank, or None.

    Args:
        A: Structure constants (n, n, n) in float64, compared exactly.
    """
    n = len(A)
    if A.shape != (n, n, n):
        return None
    for known, factors in _table():
        if _equal(A, known.structure):
            return Exact(factors, optimal=True)
    if n > 2 and _equal(A, algebra.cyclic(n).structure):
        return Exact(_cyclic(n), optimal=True)  # 2n − irreducible factors of xⁿ − 1 (Winograd)
    methods = (_as_sum, _as_product, _as_matrices, _as_blades, _as_signs)
    candidates = [method(A) for method in methods]
    found = [factors for factors in candidates if factors is not None]
    return Exact(min(found, key=lambda f: f.rank), optimal=False) if found else None


def _equal(A: Tensor, B: Tensor) -> bool:
    return A.shape == B.shape and torch.equal(A, B)


def _matrix(rows: Sequence[Sequence[int]], denominator: int = 1) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64) / denominator


@functools.cache
def _table() -> tuple[tuple[Algebra, Factors], ...]:
    """Return the algebras of known rank, with a decomposition of that rank."""
    split = [[1, 1], [1, -1]]
    gauss = _matrix([[1, 0, 1], [0, 1, 1]])  # ac, bd, (a + b)(c + d)
    split_complex = Factors(_matrix(split), _matrix(split), _matrix(split, 2))
    complex = Factors(gauss, gauss, _matrix([[1, -1, 0], [-1, -1, 1]]))
    strassen = _strassen()
    # 1, i, j, k = ij as 2×2 matrices in row-major order, one per row; the rows are orthogonal
    units = _matrix([[1, 0, 0, 1], [0, -1, 1, 0], [1, 0, 0, -1], [0, 1, 1, 0]])
    return (
        (algebra.real, Factors(_matrix([[1]]), _matrix([[1]]), _matrix([[1]]))),
        (algebra.split_complex, split_complex),
        (algebra.complex, complex),
        (algebra.dual, Factors(gauss, gauss, _matrix([[1, 0, 0], [-1, -1, 1]]))),
        (algebra.tessarine, _multiply(split_complex, complex)),
        (algebra.matrix(2), strassen),
        (algebra.split_quaternion, _change_basis(strassen, units.mT, units / 2)),
        (algebra.quaternion, _howell_lafon()),
    )


def _strassen() -> Factors:
    """Return the decomposition of V. Strassen, "Gaussian elimination is not optimal", 1969.

    The rows are E11, E12, E21, E22.
    """
    return Factors(
        U=_matrix(
            [
                [1, 0, 1, 0, 1, -1, 0],
                [0, 0, 0, 0, 1, 0, 1],
                [0, 1, 0, 0, 0, 1, 0],
                [1, 1, 0, 1, 0, 0, -1],
            ]
        ),
        V=_matrix(
            [
                [1, 1, 0, -1, 0, 1, 0],
                [0, 0, 1, 0, 0, 1, 0],
                [0, 0, 0, 1, 0, 0, 1],
                [1, 0, -1, 0, 1, 0, 1],
            ]
        ),
        W=_matrix(
            [
                [1, 0, 0, 1, -1, 0, 1],
                [0, 0, 1, 0, 1, 0, 0],
                [0, 1, 0, 1, 0, 0, 0],
                [1, -1, 1, 0, 0, 1, 0],
            ]
        ),
    )


def _howell_lafon() -> Factors:
    """Return that of Howell and Lafon, "The complexity of the quaternion product", 1975."""
    return Factors(
        U=_matrix(
            [
                [1, 0, 1, 0, 0, 0, 1, 1],
                [1, 0, -1, 0, 1, 1, 0, 0],
                [0, -1, 0, 1, 0, 0, 1, -1],
                [0, 1, 0, 1, 1, -1, 0, 0],
            ]
        ),
        V=_matrix(
            [
                [1, 0, 0, 1, 0, 0, 1, 1],
                [1, 0, 0, -1, 1, 1, 0, 0],
                [0, 1, 1, 0, 1, -1, 0, 0],
                [0, -1, 1, 0, 0, 0, -1, 1],
            ]
        ),
        W=_matrix(
            [
                [0, 2, 0, 0, -1, -1, 1, 1],
                [2, 0, 0, 0, -1, -1, -1, -1],
                [0, 0, 2, 0, 1, -1, 1, -1],
                [0, 0, 0, 2, 1, -1, -1, 1],
            ],
            denominator=2,
        ),
    )


def _add(parts: Sequence[Factors]) -> Factors:
    """Return the decomposition of a direct sum: the products of each summand in turn."""
    return each(torch.block_diag, *parts)


def _multiply(a: Factors, b: Factors) -> Factors:
    """Return the decomposition of a tensor product: each product of a multiplies in b."""
    return each(torch.kron, a, b)


def _change_basis(factors: Factors, into: Tensor, back: Tensor) -> Factors:
    """Change the basis: map both operands by `into`, the product by `back`."""
    return Factors(into.mT @ factors.mixing, into.mT @ factors.V, back @ factors.W)


def _cyclic(n: int) -> Factors:
    """Return circular convolution: real and complex products of Fourier coefficients."""
    frequency = torch.arange(n, dtype=torch.float64).view(-1, 1)
    angle = 2 * math.pi / n * (frequency * torch.arange(n) % n)
    rows, inverse, parts = [], [], []
    by_name = {known.name: factors for known, factors in _table()}
    for k in range(n // 2 + 1):
        if 2 * k % n == 0:
            rows += [angle[k].cos()]
            inverse += [angle[k].cos() / n]
            parts += [by_name["real"]]
        else:  # the frequency −k is the conjugate, so this one counts twice
            rows += [angle[k].cos(), -angle[k].sin()]
            inverse += [angle[k].cos() * 2 / n, -angle[k].sin() * 2 / n]
            parts += [by_name["complex"]]
    return _change_basis(_add(parts), torch.stack(rows), torch.stack(inverse, dim=1))


def _as_sum(A: Tensor) -> Factors | None:
    """Split a direct sum a ⊕ b at the first index where it decomposes."""
    for p in range(1, len(A)):
        a, b = A[:p, :p, :p], A[p:, p:, p:]
        if a.count_nonzero() + b.count_nonzero() == A.count_nonzero():
            parts = [find(part) for part in (a, b)]
            return _compose(parts, _add)
    return None


def _as_product(A: Tensor) -> Factors | None:
    """Split a tensor product a ⊗ b with the smallest possible a."""
    n = len(A)
    for p in (p for p in range(2, n) if n % p == 0):
        q = n // p
        entries = A.view(p, q, p, q, p, q).permute(0, 2, 4, 1, 3, 5).reshape(p**3, q**3)
        row, column = divmod(int(entries.abs().argmax()), q**3)
        a, b = entries[:, column] / entries[row, column], entries[row]
        if torch.equal(torch.outer(a, b), entries):
            parts = [find(a.view(p, p, p)), find(b.view(q, q, q))]
            return _compose(parts, lambda both: _multiply(*both))
    return None


def _as_matrices(A: Tensor) -> Factors | None:
    """Split matrices of even size k into 2×2 matrices of blocks."""
    k = math.isqrt(len(A))
    if k % 2 or not _equal(A, algebra.matrix(k).structure):
        return None
    half = k // 2
    # E_pq ⊗ E_st has index (p, q, s, t); in the large matrix it is in row (p, s), column (q, t)
    indices = torch.arange(k * k).view(2, half, 2, half).transpose(1, 2).flatten()
    into = torch.eye(k * k, dtype=A.dtype)[indices]
    blocks = [find(algebra.matrix(size).structure) for size in (2, half)]
    return _compose(blocks, lambda both: _change_basis(_multiply(*both), into, into.mT))


def _compose(
    parts: Sequence[Exact | None], build: Callable[[list[Factors]], Factors]
) -> Factors | None:
    known = [part.factors for part in parts if part is not None]
    return build(known) if len(known) == len(parts) else None


def _signs(A: Tensor) -> Tensor | None:
    """Return the signs s of `e_i e_b = s[i, b] e_(i xor b)`, if A has that form."""
    n = len(A)
    if n & (n - 1):
        return None
    i = torch.arange(n).view(-1, 1)
    b = torch.arange(n)
    signs = A[i, i ^ b, b]
    is_whole = int(signs.count_nonzero()) == int(A.count_nonzero())
    return signs if is_whole and bool((signs == signs.sign()).all()) else None


def _as_blades(A: Tensor) -> Factors | None:
    """Split a Clifford algebra into commuting factors of dimension 4 and 2.

    Each is generated by basis elements, so the change of basis is a permutation with signs.
    """
    signs = _signs(A)
    groups = None if signs is None else _commuting_groups(signs)
    if signs is None or not groups:
        return None
    indices, values = torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=A.dtype)
    parts = []
    for group in groups:
        index, value = _span(signs, group)
        values = (values.view(-1, 1) * value * signs[indices.view(-1, 1), index]).flatten()
        indices = (indices.view(-1, 1) ^ index).flatten()
        parts.append(_generated([int(signs[g, g]) for g in group]))
    into = torch.zeros(len(A), len(A), dtype=A.dtype)
    into[torch.arange(len(A)), indices] = values
    factors = _change_basis(functools.reduce(_multiply, parts), into, into.mT)
    # the steps above assume an associative algebra; here it is checked
    return factors if torch.equal(factors.tensor(), A) else None


def _span(signs: Tensor, group: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return indices and signs of the basis 1, z or 1, x, y, xy that the group generates."""
    if len(group) == 1:
        return torch.tensor([0, group[0]]), torch.ones(2, dtype=signs.dtype)
    x, y = group
    ones = torch.ones(3, dtype=signs.dtype)
    return torch.tensor([0, x, y, x ^ y]), torch.cat([ones, signs[x, y].view(1)])


def _generated(squares: Sequence[int]) -> Factors:
    """Return the decomposition for one generator, or two that anticommute, with these squares."""
    known = algebra.cayley_dickson(squares)
    return next(factors for other, factors in _table() if other == known)


def _commuting_groups(signs: Tensor) -> list[list[int]] | None:
    """Return generators among the basis elements: anticommuting pairs, then commuting ones."""
    group = list(range(len(signs)))
    found: list[list[int]] = []
    while (pair := _anticommuting(signs, group)) is not None:
        found.append(pair)
        group = [g for g in group if all(signs[g, p] == signs[p, g] for p in pair)]
    if not torch.equal(signs[group][:, group], signs[group][:, group].mT):
        return None
    spanned = {0}
    # elements of square +1 first: they take two products each, those of −1 and 0 take three
    for z in sorted(group, key=lambda g: -signs[g, g]):
        if z not in spanned:
            found.append([z])
            spanned |= {s ^ z for s in spanned}
    # without associativity, what commutes with a pair may not be its complement
    return found if 2 ** sum(map(len, found)) == len(signs) else None


def _anticommuting(signs: Tensor, group: Sequence[int]) -> list[int] | None:
    """Return a pair that generates the 2×2 matrices (rank 7), or else the quaternions (8)."""
    s = signs.tolist()
    for second in (1, -1):
        for x, y in itertools.product(group, repeat=2):
            if (s[x][x], s[y][y]) == (-1, second) and s[x][y] == -s[y][x] != 0:
                return [x, y]
    return None


def _as_signs(A: Tensor) -> Factors | None:
    """Use one product for each character of the group (Z/2)^k, and one for each wrong sign."""
    signs = _signs(A)
    if signs is None:
        return None
    n = len(signs)
    i, b = torch.arange(n).view(-1, 1), torch.arange(n)
    f, g, h = _flips(signs)
    wrong = signs - f.view(-1, 1) * g * h[i ^ b]
    rows, columns = wrong.nonzero().unbind(1)
    eye = torch.eye(n, dtype=A.dtype)
    twos = [_matrix([[1, 1], [1, -1]])] * (n.bit_length() - 1)
    characters = functools.reduce(torch.kron, twos, _matrix([[1]]))
    corrections = eye[:, rows ^ columns] * wrong[rows, columns]
    return Factors(
        U=torch.cat([f.view(-1, 1) * characters, eye[:, rows]], dim=1),
        V=torch.cat([g.view(-1, 1) * characters, eye[:, columns]], dim=1),
        W=torch.cat([h.view(-1, 1) * characters / n, corrections], dim=1),
    )


def _flips(signs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return signs f, g, h such that `f[i] g[b] h[i xor b]` equals many of the given ones."""
    n = len(signs)
    i, b = torch.arange(n).view(-1, 1), torch.arange(n)
    f, g, h = (torch.ones(n, dtype=signs.dtype) for _ in range(3))
    for _ in range(n):  # each becomes optimal for the other two; a few rounds are enough
        h = _majority(
            torch.zeros_like(h).index_add(
                0, (i ^ b).flatten(), (f.view(-1, 1) * g * signs).flatten()
            )
        )
        f = _majority((signs * g * h[i ^ b]).sum(1))
        g = _majority((signs * f.view(-1, 1) * h[i ^ b]).sum(0))
    return f, g, h


def _majority(votes: Tensor) -> Tensor:
    return torch.where(votes < 0, -1.0, 1.0).to(votes.dtype)
