"""The algebra as an immutable value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phnn.algebra._elements import read_table

Array = NDArray[np.float64]


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
            >>> import phnn
            >>> Algebra.from_table([["1", "i"], ["i", "-1"]]) == phnn.algebra.complex
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
            >>> import phnn
            >>> i, j = torch.eye(4)[1], torch.eye(4)[2]
            >>> phnn.algebra.quaternion.multiply(i, j)
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
        A, n = as_array(self), self.n
        eye = np.eye(n).ravel()
        sides = np.concatenate([A.reshape(n, -1).T, A.transpose(2, 1, 0).reshape(n, -1).T])
        unit, *_ = np.linalg.lstsq(sides, np.concatenate([eye, eye]), rcond=None)
        unit = np.round(unit, 12)
        found = np.allclose(sides @ unit, np.concatenate([eye, eye]), atol=1e-9)
        return torch.from_numpy(unit + 0.0) if found else None

    @property
    def is_commutative(self) -> bool:
        """Whether xy = yx for all x, y."""
        A = as_array(self)
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
        products = as_array(self).transpose(0, 2, 1)  # [i, j, component]
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
        products = as_array(self).transpose(0, 2, 1)
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


def as_array(algebra: Algebra) -> Array:
    """Return the structure constants as an array."""
    return np.asarray(algebra.constants, dtype=np.float64)


def as_conjugation(algebra: Algebra) -> Array | None:
    """Return the matrix of the conjugation; None for an algebra without one."""
    return (
        None if algebra.conjugation is None else np.asarray(algebra.conjugation, dtype=np.float64)
    )
