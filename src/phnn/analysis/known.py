"""The known algebras that a learned one is compared with."""

from __future__ import annotations

import math

from phnn import algebra
from phnn.algebra import Algebra

__all__ = ["cross", "known"]

# The vector product of 3-space. It has no unit, so phnn.algebra does not have it. Its span is that
# of all antisymmetric matrices.
cross = Algebra(
    "cross",
    [
        [[0, 0, 0], [0, 0, -1], [0, 1, 0]],
        [[0, 0, 1], [0, 0, 0], [-1, 0, 0]],
        [[0, -1, 0], [1, 0, 0], [0, 0, 0]],
    ],
    labels=("i", "j", "k"),
)

# One of each kind: algebras that an orthogonal change of basis makes equal are listed once.
# split_quaternion stands for matrix(2), clifford(2) and clifford(1, 1); clifford(3) for
# clifford(1, 2) and the complex 2×2 matrices; clifford(0, 3) is two quaternions, clifford(2, 1) two
# 2×2 matrices; split_complex is cyclic(2). Sums and products of split_complex with reals are real
# numbers that multiply one by one.
_KNOWN = {
    1: ("real",),
    2: ("complex", "split_complex", "dual"),
    3: ("cyclic(3)", "direct_sum(real, split_complex)", "direct_sum(real, dual)"),
    4: (
        "quaternion",
        "split_quaternion",
        "tessarine",
        "cyclic(4)",
        "tensor_product(split_complex, split_complex)",
        "tensor_product(dual, complex)",
        "tensor_product(dual, split_complex)",
        "tensor_product(dual, dual)",
        "clifford(1, 0, 1)",
        "clifford(0, 1, 1)",
        "clifford(0, 0, 2)",
    ),
    8: (
        "octonion",
        "split_octonion",
        "dual_quaternion",
        "clifford(3)",
        "clifford(2, 1)",
        "clifford(0, 3)",
        "cyclic(8)",
        "tensor_product(complex, tessarine)",
        "tensor_product(split_complex, tensor_product(split_complex, split_complex))",
    ),
    16: ("sedenion", "clifford(4)", "matrix(4)", "cyclic(16)"),
}


def known(n: int) -> tuple[Algebra, ...]:
    """Return the algebras of dimension n that a learned one may match, the best known first.

    For n = 1, 2, 3 (with the vector product), 4, 8 and 16 there is a list with one algebra of each
    kind; two algebras are of one kind if an orthogonal change of basis makes them equal. For any
    other n the result is `cyclic(n)` and, for n = k², `matrix(k)`.

    Args:
        n: Dimension of the algebra.

    Example:
        >>> known(2)
        (<algebra complex, n=2>, <algebra split_complex, n=2>, <algebra dual, n=2>)
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got n={n}")
    if n in _KNOWN:
        named = tuple(map(algebra.get, _KNOWN[n]))
        return (cross, *named) if n == cross.n else named
    root = math.isqrt(n)
    return (algebra.cyclic(n), *([algebra.matrix(root)] if root * root == n else []))
