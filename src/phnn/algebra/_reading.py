"""Algebras by name: a constant, or a constructor call written as text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

from phnn._names import suggest
from phnn.algebra._algebra import Algebra
from phnn.algebra._families import (
    cayley_dickson,
    clifford,
    complex,
    cyclic,
    direct_sum,
    dual,
    dual_quaternion,
    matrix,
    octonion,
    quaternion,
    real,
    sedenion,
    split_complex,
    split_octonion,
    split_quaternion,
    tensor_product,
    tessarine,
)

T = TypeVar("T")

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
