"""Multiplication tables as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TERM = re.compile(r"([+-]?)(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)?[*·]?(.*)", re.DOTALL)


def read_table(
    table: Sequence[Sequence[object]], labels: Sequence[str] | None
) -> tuple[list[list[list[float]]], tuple[str, ...]]:
    """Return the structure constants A[i, a, b] of a multiplication table, and its labels.

    Args:
        table: In row i and column b the product of the basis elements i and b, such as "-k" or
            "1 + 2j".
        labels: Names of the basis elements; by default those of the first row, which belongs to 1.
    """
    rows = [[str(cell).strip().replace("−", "-") for cell in row] for row in table]
    n = len(rows)
    sizes = [len(row) for row in rows]
    if n == 0 or any(size != n for size in sizes):
        raise ValueError(f"a table has as many columns as rows; got {n} rows of {sizes} cells")
    names = tuple(rows[0] if labels is None else labels)
    if len(names) != n:
        raise ValueError(f"a table with {n} rows has {n} labels, got {len(names)}: {names}")
    if len(set(names)) < n or any(not name or name[0] in "+-" for name in names):
        raise ValueError(
            f"the first row, {', '.join(names)}, must name the basis elements, as it does when the "
            "first of them is 1; otherwise give labels="
        )
    products = [[read_element(cell, names) for cell in row] for row in rows]
    constants = [[[products[i][b][a] for b in range(n)] for a in range(n)] for i in range(n)]
    return constants, names


def read_element(text: str, labels: Sequence[str]) -> list[float]:
    """Return the components of a linear combination of basis elements.

    Args:
        text: Such as "-k", "1 + 2j" or "0".
        labels: Names of the basis elements.

    Example:
        >>> read_element("1 - 0.5j", ["1", "i", "j", "k"])
        [1.0, 0.0, -0.5, 0.0]
    """
    components = [0.0] * len(labels)
    spaced = re.sub(r"\s*([+-])\s*", r" \1", text.strip())
    # the sign of an exponent belongs to its number
    words = re.sub(r"(\de) ([+-]\d)", r"\1\2", spaced).split()
    if not words:
        raise ValueError(f"an empty cell is no element; write 0, or one of {', '.join(labels)}")
    for word in words:
        value, label = _read_term(word, labels)
        if label is not None:
            components[labels.index(label)] += value
    return components


def _read_term(word: str, labels: Sequence[str]) -> tuple[float, str | None]:
    """Return the number and the label of a term; None for zero."""
    bare = word.lstrip("+-")
    sign = -1.0 if word.startswith("-") else 1.0
    if bare in labels:
        return sign, bare
    found = _TERM.fullmatch(word)
    assert found is not None  # the last group takes anything
    number, label = found[2], found[3]
    if number is not None and (label in labels or (not label and "1" in labels)):
        return sign * float(number), label or "1"
    if number is not None and not label and float(number) == 0:
        return 0.0, None
    raise ValueError(
        f"{word!r} is no multiple of a basis element; they are {', '.join(labels)}, and 0 is zero"
    )
