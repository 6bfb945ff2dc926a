r"""The kinds of two-dimensional algebras.

For n = 2 the determinant of :math:`x A_0 + y A_1` is a quadratic form in x and y, and its
discriminant is Cayley's hyperdeterminant of A. Its sign is the same in all bases of the terms, the
inputs and the outputs, orthogonal or not, so it tells the kinds apart.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from phnn.analysis.spans import basis

__all__ = ["Plane", "classify", "hyperdeterminant"]

ZERO = 1e-3  # a smaller hyperdeterminant counts as zero


class Plane(Enum):
    """The kind of a two-dimensional algebra, whatever its basis."""

    COMPLEX = "complex-like"
    SPLIT = "split"
    DEGENERATE = "dual or degenerate"


def hyperdeterminant(A: Tensor) -> float:
    """Return Cayley's hyperdeterminant of an orthonormal basis of the span of A.

    It is between −1 (complex numbers) and 1 (split-complex numbers), and 0 for the dual numbers.

    Args:
        A: The algebra, (terms, 2, 2), with a span of two dimensions.

    Example:
        >>> from phnn import algebra
        >>> [round(hyperdeterminant(known.structure), 3) + 0.0
        ...  for known in (algebra.complex, algebra.dual, algebra.split_complex)]
        [-1.0, 0.0, 1.0]
    """
    span = basis(A)
    if span.shape != (2, 2, 2):
        raise ValueError(
            f"the hyperdeterminant needs two dimensions; A of shape {tuple(A.shape)} has n="
            f"{A.shape[-1]} and a span of {len(span)} dimensions"
        )
    first, second, both = torch.linalg.det(torch.stack([span[0], span[1], span[0] + span[1]]))
    return float((both - first - second).square() - 4 * first * second)


def classify(A: Tensor) -> Plane:
    """Return the kind of a two-dimensional algebra, by the sign of its hyperdeterminant.

    Args:
        A: The algebra, (terms, 2, 2), with a span of two dimensions.

    Example:
        >>> from phnn import algebra
        >>> classify(algebra.dual.structure).value
        'dual or degenerate'
    """
    value = hyperdeterminant(A)
    if abs(value) < ZERO:
        return Plane.DEGENERATE
    return Plane.COMPLEX if value < 0 else Plane.SPLIT
