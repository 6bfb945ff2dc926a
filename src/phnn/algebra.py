r"""Hypercomplex algebras as immutable values.

An algebra of dimension n is given by its structure constants, the tensor `A` in

.. math:: e_i \cdot e_b = \sum_a A[i, a, b]\, e_a

so that `A[i]` is the matrix of "multiply from the left by basis element i". A PH layer uses that
same tensor, learned or fixed:

>>> from phnn import algebra
>>> print(algebra.quaternion.table())
×   1   i   j   k
1   1   i   j   k
i   i  -1   k  -j
j   j  -k  -1   i
k   k   j  -i  -1
>>> algebra.get("clifford(0, 2)") == algebra.quaternion
True
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phnn._elements import read_table
from phnn._names import suggest

__all__ = [
    "Algebra",
    "cayley_dickson",
    "clifford",
    "complex",
    "cyclic",
    "dimension",
    "direct_sum",
    "dual",
    "dual_quaternion",
    "get",
    "matrix",
    "names",
    "octonion",
    "quaternion",
    "real",
    "sedenion",
    "split_complex",
    "split_octonion",
    "split_quaternion",
    "tensor_product",
    "tessarine",
]

Array = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Algebra:
    """A real algebra of dimension n; algebras with the same structure constants are equal.

    Args:
        name: The name to show; `phnn.algebra.get` reads the names made in this module.
        constants: The structure constants `A[i, a, b]`, as anything `numpy.asarray` takes.
        labels: Names of the basis elements, `("1", "i", "j", "k")`; `e0 … e(n-1)` by default.
        conjugation: Matrix of the conjugation, for algebras that have one.

    Example:
        >>> cross = Algebra("cross", [[[0, 0, 0], [0, 0, -1], [0, 1, 0]],
        ...                           [[0, 0, 1], [0, 0, 0], [-1, 0, 0]],
        ...                           [[0, -1, 0], [1, 0, 0], [0, 0, 0]]])
        >>> cross.n, cross.is_commutative, cross.unit
        (3, False, None)
    """

    name: str = field(compare=False)
    constants: Sequence[object]
    labels: Sequence[str] = field(default=(), compare=False)
    conjugation: Sequence[object] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        constants = np.asarray(self.constants, dtype=np.float64)
        n = len(constants)
        if n == 0 or constants.shape != (n, n, n):
            raise ValueError(f"structure constants have shape (n, n, n), got {constants.shape}")
        if not (np.isfinite(constants).all() and constants.any()):
            raise ValueError(f"structure constants are finite and not all zero, got {constants}")
        labels = tuple(self.labels) or tuple(f"e{i}" for i in range(n))
        if len(labels) != n:
            raise ValueError(f"an algebra with n={n} has {n} labels, got {len(labels)}: {labels}")
        object.__setattr__(self, "constants", _freeze(constants))
        object.__setattr__(self, "labels", labels)
        if self.conjugation is not None:
            conjugation = np.asarray(self.conjugation, dtype=np.float64)
            if conjugation.shape != (n, n):
                raise ValueError(f"conjugation has shape ({n}, {n}), got {conjugation.shape}")
            object.__setattr__(self, "conjugation", _freeze(conjugation))

    @classmethod
    def from_table(
        cls,
        table: Sequence[Sequence[object]],
        *,
        name: str = "own",
        labels: Sequence[str] | None = None,
    ) -> Algebra:
        """Return the algebra with a multiplication table, row times column, as `table` shows it.

        Args:
            table: In each cell a linear combination of basis elements, such as "-k" or "1 + 2j".
            name: The name to show.
            labels: Names of the basis elements. By default they are the first row, which is right
                when the first basis element is 1.

        Example:
            >>> Algebra.from_table([["1", "i"], ["i", "-1"]]) == complex
            True
            >>> cross = Algebra.from_table(
            ...     [["0", "k", "-j"], ["-k", "0", "i"], ["j", "-i", "0"]],
            ...     name="cross",
            ...     labels="ijk",
            ... )
            >>> cross.n, cross.is_commutative
            (3, False)
        """
        constants, names = read_table(table, labels)
        return cls(name, constants, labels=names)

    def __repr__(self) -> str:
        return f"<algebra {self.name}, n={self.n}>"

    @property
    def n(self) -> int:
        """Dimension of the algebra."""
        return len(self.constants)

    @property
    def structure(self) -> Tensor:
        """The structure constants as a fresh float64 tensor (n, n, n), indexed `[i, a, b]`."""
        # an explicit device: layers are also built under `with torch.device("meta")`
        return torch.tensor(self.constants, dtype=torch.float64, device="cpu")

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        r"""Return the product :math:`x \cdot y`; the last axis holds the components.

        Shape:
            - x, y: :math:`(*, n)`, broadcast against each other; output :math:`(*, n)`.

        Example:
            >>> i, j = torch.eye(4)[1], torch.eye(4)[2]
            >>> quaternion.multiply(i, j)
            tensor([0., 0., 0., 1.])
        """
        for operand in (x, y):
            if operand.dim() == 0 or operand.shape[-1] != self.n:
                raise ValueError(
                    f"{self.name} numbers have {self.n} components in the last axis, "
                    f"got shape {tuple(operand.shape)}"
                )
        A = self.structure.to(x)
        return torch.einsum("iab,...i,...b->...a", A, x, y)

    def conjugate(self, x: Tensor) -> Tensor:
        r"""Return the conjugate :math:`\bar x`, with :math:`\overline{xy} = \bar y\,\bar x`."""
        if self.conjugation is None:
            raise ValueError(f"{self.name} was defined without a conjugation")
        return x @ torch.tensor(self.conjugation, dtype=x.dtype, device=x.device).mT

    @property
    def unit(self) -> Tensor | None:
        """The element that changes no other, from either side; None if there is none."""
        A, n = _array(self), self.n
        eye = np.eye(n).ravel()
        sides = np.concatenate([A.reshape(n, -1).T, A.transpose(2, 1, 0).reshape(n, -1).T])
        unit, *_ = np.linalg.lstsq(sides, np.concatenate([eye, eye]), rcond=None)
        unit = np.round(unit, 12)
        found = np.allclose(sides @ unit, np.concatenate([eye, eye]), atol=1e-9)
        return torch.from_numpy(unit + 0.0) if found else None

    @property
    def is_commutative(self) -> bool:
        """Whether xy = yx for all x, y."""
        A = _array(self)
        return bool(np.allclose(A, A.transpose(2, 1, 0)))

    @property
    def is_associative(self) -> bool:
        """Whether (xy)z = x(yz) for all x, y, z."""
        return bool(np.allclose(self._associator(), 0))

    @property
    def is_alternative(self) -> bool:
        """Whether (xx)y = x(xy) and (yx)x = y(xx) for all x, y."""
        associator = self._associator()  # alternating in its three arguments, by polarisation
        left = associator + associator.swapaxes(0, 1)
        right = associator + associator.swapaxes(1, 2)
        return bool(np.allclose(left, 0) and np.allclose(right, 0))

    def _associator(self) -> Array:
        """Return `(e_i e_j) e_k − e_i (e_j e_k)` with its components in the last axis."""
        products = _array(self).transpose(0, 2, 1)  # [i, j, component]
        left = np.einsum("ijc,cka->ijka", products, products, optimize=True)
        right = np.einsum("jkc,ica->ijka", products, products, optimize=True)
        associator: Array = left - right
        return associator

    def table(self, format: str = "text") -> str:
        """Return the multiplication table, row times column.

        Args:
            format: "text" or "markdown".
        """
        if format not in ("text", "markdown"):
            raise ValueError(f'format must be "text" or "markdown", got {format!r}')
        products = _array(self).transpose(0, 2, 1)
        rows = [["×", *self.labels]]
        for label, row in zip(self.labels, products, strict=True):
            rows.append([label, *(self._element(product) for product in row)])
        if format == "markdown":
            lines = ["| " + " | ".join(row) + " |" for row in rows]
            return "\n".join([lines[0], "|" + "---|" * len(rows), *lines[1:]])
        width = max(len(cell) for row in rows[1:] for cell in row[1:])
        first = max(len(row[0]) for row in rows)
        return "\n".join(
            "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell in row[1:])])
            for row in rows
        )

    def _element(self, components: Array) -> str:
        """Return a linear combination of basis elements as text: `-k`, `1 + 2j`, `0`."""
        text = ""
        for value, label in zip(components, self.labels, strict=True):
            if value == 0:
                continue
            size = "" if abs(value) == 1 else f"{abs(value):g}"
            term = size if label == "1" and size else size + label
            if text:
                text += " - " if value < 0 else " + "
            elif value < 0:
                text = "-"
            text += term
        return text or "0"


def _freeze(array: Array) -> tuple[object, ...]:
    """Return nested tuples, which are hashable, comparable, picklable and immutable."""
    return tuple(row if np.ndim(row) == 0 else _freeze(np.asarray(row)) for row in array.tolist())


def _array(algebra: Algebra) -> Array:
    return np.asarray(algebra.constants, dtype=np.float64)


def _conjugation(algebra: Algebra) -> Array | None:
    return (
        None if algebra.conjugation is None else np.asarray(algebra.conjugation, dtype=np.float64)
    )


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
    A = np.kron(_array(a), _array(b))
    left, right = _conjugation(a), _conjugation(b)
    conjugation = None if left is None or right is None else np.kron(left, right).tolist()
    labels = [_join(x, y) for x, y in product(a.labels, b.labels)]
    return Algebra(f"tensor_product({a.name}, {b.name})", A.tolist(), labels, conjugation)


def direct_sum(a: Algebra, b: Algebra) -> Algebra:
    """Return the direct sum a ⊕ b, with (x, y)(u, v) = (xu, yv)."""
    n = a.n + b.n
    A = np.zeros((n, n, n))
    A[: a.n, : a.n, : a.n] = _array(a)
    A[a.n :, a.n :, a.n :] = _array(b)
    left, right = _conjugation(a), _conjugation(b)
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

_CONSTANTS = {
    algebra.name: algebra
    for algebra in (
        real,
        complex,
        split_complex,
        dual,
        quaternion,
        split_quaternion,
        tessarine,
        dual_quaternion,
        octonion,
        split_octonion,
        sedenion,
    )
}
_CONSTRUCTORS: dict[str, Callable[..., Algebra]] = {
    f.__name__: f for f in (cayley_dickson, clifford, cyclic, matrix, tensor_product, direct_sum)
}


def names() -> list[str]:
    """Return the names of the constants that `get` knows; `get` also takes constructor calls."""
    return list(_CONSTANTS)


LARGEST = 100  # n of an algebra by name, which may come from a file; this takes seconds to build


@lru_cache(maxsize=64)  # a file names one algebra for many layers
def get(name: str) -> Algebra:
    """Return an algebra by its name: a constant, or a constructor call written as text.

    Example:
        >>> get("octonion")
        <algebra octonion, n=8>
        >>> get("tensor_product(complex, matrix(2))").n
        8
    """
    try:
        n = dimension(name)
    except ValueError:
        n = 0  # building it says what is wrong
    if n > LARGEST:
        raise ValueError(
            f"{name} has n = {n}, and n³ numbers; a name stands for at most n = {LARGEST}, and "
            "phnn.algebra builds larger ones"
        )
    return _read(name, _CONSTANTS, _CONSTRUCTORS)


def dimension(name: str) -> int:
    """Return n of the algebra that `get` finds by this name, without building it.

    Example:
        >>> dimension("tensor_product(quaternion, cyclic(300))")
        1200
    """
    sizes = {constant: algebra.n for constant, algebra in _CONSTANTS.items()}
    return _read(name, sizes, _DIMENSIONS)


_DIMENSIONS: dict[str, Callable[..., int]] = {
    "cayley_dickson": lambda signs: 1 << len(signs),
    "clifford": lambda p, q=0, r=0: 1 << min(p + q + r, 64),  # no number of a billion bits
    "cyclic": lambda n: n,
    "matrix": lambda k: k * k,
    "tensor_product": lambda a, b: a * b,
    "direct_sum": lambda a, b: a + b,
}


def _read(name: str, constants: Mapping[str, T], constructors: Mapping[str, Callable[..., T]]) -> T:
    """Return what a name stands for; only the given names and integers are understood."""

    def evaluate(node: ast.expr) -> T:
        if isinstance(node, ast.Name) and node.id in constants:
            return constants[node.id]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id not in constructors:
                raise _UnknownNameError(node.func.id)
            named = {word.arg: argument(word.value) for word in node.keywords if word.arg}
            try:
                return constructors[node.func.id](*map(argument, node.args), **named)
            except (TypeError, AttributeError) as error:  # a number where an algebra belongs
                raise ValueError(f"{ast.unparse(node)}: {error}") from None
        raise _UnknownNameError(ast.unparse(node))

    def argument(node: ast.expr) -> T | int | tuple[int, ...]:
        try:
            value = ast.literal_eval(node)
        except ValueError:
            return evaluate(node)
        is_tuple = isinstance(value, tuple) and all(isinstance(v, int) for v in value)
        return value if isinstance(value, int) or is_tuple else evaluate(node)

    try:
        return evaluate(ast.parse(name.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, _UnknownNameError) as error:
        known = [*constants, *constructors]
        wrong = error.args[0] if isinstance(error, _UnknownNameError) else name
        hint = f"{suggest(wrong, known)}known are {', '.join(known)}"
        raise ValueError(f"unknown algebra {name!r}; {hint}") from None


class _UnknownNameError(Exception):
    pass
