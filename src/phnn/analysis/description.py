"""A description of what each PH layer of a model learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from phnn import decompose, functional
from phnn._tables import align
from phnn.algebra import Algebra
from phnn.analysis.known import known
from phnn.analysis.planar import Plane, classify
from phnn.analysis.spans import MATCH, NEGLIGIBLE, Neighbour, basis, neighbours
from phnn.analysis.terms import effective_terms, usage
from phnn.decompose import Declined, Decomposition
from phnn.nn import named_weights
from phnn.nn._weight import PHWeight
from phnn.structure import Dimension, show_dimension

__all__ = ["Description", "LayerDescription", "describe"]

ROUNDING = 1e-6  # the precision of A, which was learned in float32, when its rank is sought
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, eq=False)
class LayerDescription:
    """What one layer learned; prints as a table.

    Attributes:
        name: Its name in the model; empty when the model is the layer itself.
        type: Its class.
        A: The algebra, (terms, n_out, n_in), float64 on the CPU.
        usage: Norm of each term A_i ⊗ F_i, scaled so that the squares sum to one.
        spectrum: The n_out · n_in singular values of the rearranged H, largest first.
        dimension: Dimension of the span of the terms in use.
        neighbours: Known algebras with their distances, the nearest first; see
            `phnn.analysis.neighbours`. Empty when H is zero.
        plane: For n = 2, the kind of algebra, by the sign of the hyperdeterminant.
        rank: The CP decomposition of the algebra, or why none was found; None when not asked for.
    """

    name: str
    type: str
    A: Tensor = field(repr=False)
    usage: Tensor = field(repr=False)
    spectrum: Tensor = field(repr=False)
    dimension: int
    neighbours: tuple[Neighbour, ...]
    plane: Plane | None
    rank: Decomposition | Declined | None

    @property
    def n(self) -> Dimension:
        """Dimension of the algebra, or the pair (n_out, n_in)."""
        _, n_out, n_in = self.A.shape
        return n_out if n_out == n_in else (n_out, n_in)

    @property
    def terms(self) -> int:
        """Number of Kronecker terms."""
        return len(self.A)

    @property
    def match(self) -> Algebra | None:
        """The known algebra that equals this one up to orthogonal changes of basis, or None."""
        return next((found.algebra for found in self.neighbours if found.is_match), None)

    @property
    def unused(self) -> tuple[int, ...]:
        """The terms that contribute almost nothing to H."""
        return tuple((self.usage < NEGLIGIBLE).nonzero().flatten().tolist())

    @property
    def effective_terms(self) -> float:
        """The number of equally strong terms with the same spread; see `effective_terms`."""
        return effective_terms(self.spectrum)

    @property
    def errors(self) -> Tensor:
        """Relative error of H with only its best 0, 1, …, terms Kronecker terms."""
        return decompose.errors(self.spectrum)[: self.terms + 1]

    def __str__(self) -> str:
        kind = f", {self.plane.value}" if self.plane else ""
        facts = [
            f"{self.name or 'layer'}: {self.type}, n={show_dimension(self.n)}, terms={self.terms}",
            f"span of A: {self.dimension} dimensions{kind}",
            f"share of each term: {_show(self.usage)}",
            f"error with only the best 1, 2, … terms: {_show(self.errors[1:])}",
        ]
        if isinstance(self.rank, Declined):
            facts.append(f"multiplications: {self.rank.reason}")
        elif self.rank is not None:
            facts.append(f"multiplications: {_show_rank(self.rank)} of {self.A[0].numel()}")
        rows = [("algebra", "distance", "")]
        for found in self.neighbours:
            rows.append((found.algebra.name, f"{found.distance:.4f}", _remark(found)))
        return "\n".join([*facts, *align(rows)])


@dataclass(frozen=True, eq=False)
class Description:
    """What the PH layers of a model learned; prints as a table, as each layer does.

    Attributes:
        layers: The layers, in the order of the model.
    """

    layers: tuple[LayerDescription, ...]

    def __getitem__(self, name: str) -> LayerDescription:
        names = [layer.name for layer in self.layers]
        if name not in names:
            raise KeyError(f"no PH layer is called {name!r}; there are {', '.join(names)}")
        return self.layers[names.index(name)]

    def __iter__(self) -> Iterator[LayerDescription]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __str__(self) -> str:
        nearest = [layer.neighbours[0] if layer.neighbours else None for layer in self.layers]
        columns = {
            "layer": [layer.name for layer in self.layers],
            "type": [layer.type for layer in self.layers],
            "n": [show_dimension(layer.n) for layer in self.layers],
            "terms": [str(layer.terms) for layer in self.layers],
            "effective": [f"{layer.effective_terms:.1f}" for layer in self.layers],
            "unused": [" ".join(map(str, layer.unused)) for layer in self.layers],
            "kind": [layer.plane.value if layer.plane else "" for layer in self.layers],
            "rank": [_show_rank(layer.rank) for layer in self.layers],
            "nearest": [found.algebra.name if found else "" for found in nearest],
            "distance": [f"{found.distance:.4f}" if found else "" for found in nearest],
            "match": [layer.match.name if layer.match else "" for layer in self.layers],
        }
        told = {name: column for name, column in columns.items() if any(column)}
        return "\n".join(align([tuple(told), *zip(*told.values(), strict=True)]))


def describe(
    model: nn.Module,
    *,
    algebras: Sequence[Algebra] | None = None,
    rank: bool = True,
    seconds: float = 10.0,
) -> Description:
    """Describe what the PH layers of a model learned.

    Args:
        model: A PH layer, or a model with PH layers. Each matrix of a recurrent layer is one.
        algebras: Known algebras to compare each layer of the same n with; those of
            `phnn.analysis.known` by default.
        rank: Whether to search for the smallest CP rank of each algebra. For n = 4 it takes about
            0.1 s per layer, for n = 8 all of the given time.
        seconds: Processor time for the rank of each layer.

    Example:
        >>> import phnn
        >>> layer = phnn.PHLinear(8, 8, algebra=phnn.algebra.quaternion)
        >>> found = describe(layer).layers[0]
        >>> found.match, found.rank.rank, found.dimension, found.unused
        (<algebra quaternion, n=4>, 8, 4, ())
    """
    layers = dict(named_weights(model))
    if not layers:
        raise ValueError(
            f"{type(model).__name__} holds no PH layer; phnn.convert makes them from dense layers"
        )
    measured = {name: _measure(name, layer) for name, layer in layers.items()}
    ranks = _ranks([found.A for found in measured.values()], rank, seconds)
    return Description(
        tuple(
            _describe(name, type(layers[name]).__name__, found, tensor_rank, algebras)
            for (name, found), tensor_rank in zip(measured.items(), ranks, strict=True)
        )
    )


class _Measured(NamedTuple):
    """The tensors that the description of one layer is made of."""

    A: Tensor
    usage: Tensor
    spectrum: Tensor


def _measure(name: str, layer: PHWeight) -> _Measured:
    where = name or type(layer).__name__
    A, F = layer.algebra_tensor.detach(), layer.F.detach()
    if A.is_meta or F.is_meta:
        raise ValueError(f"{where} is on the meta device and holds no numbers to describe")
    if not (A.isfinite().all() and F.isfinite().all()):
        raise ValueError(f"{where} holds values that are NaN or infinite")
    # without the order of columns that the matrix of a bidirectional layer has
    weight = functional.kronecker_sum(A, F, layer.groups, layer.transposed)
    spectrum = decompose.spectrum(weight, layer.n, layer.groups, layer.transposed)
    return _Measured(A.to("cpu", torch.float64), usage(A, F, layer.groups), spectrum.cpu())


def _ranks(
    algebras: Sequence[Tensor], wanted: bool, seconds: float
) -> list[Decomposition | Declined | None]:
    """Search for the CP ranks of all algebras together; return None for each if not wanted."""
    if not wanted:
        return [None] * len(algebras)
    nonzero = [A for A in algebras if A.any()]
    found = iter(decompose.bilinear_many(nonzero, tol=ROUNDING, seconds=seconds))
    return [next(found) if A.any() else Declined("A is zero everywhere") for A in algebras]


def _describe(
    name: str,
    type: str,
    measured: _Measured,
    rank: Decomposition | Declined | None,
    algebras: Sequence[Algebra] | None,
) -> LayerDescription:
    A, shares, spectrum = measured
    _, n_out, n_in = A.shape
    n = n_out if n_out == n_in else 0  # no known algebra is rectangular
    if algebras is None:
        algebras = known(n) if n else ()
    # scale each term to its strength in H: how A and F share that scale is arbitrary
    strong = A * (shares / A.flatten(1).norm(dim=1).clamp_min(TINY)).view(-1, 1, 1)
    dimension = len(basis(strong)) if strong.any() else 0
    return LayerDescription(
        name=name,
        type=type,
        A=A,
        usage=shares,
        spectrum=spectrum,
        dimension=dimension,
        neighbours=tuple(
            neighbours(strong, [known for known in algebras if known.n == n]) if dimension else ()
        ),
        plane=classify(strong) if n == dimension == 2 else None,
        rank=rank,
    )


def _remark(found: Neighbour) -> str:
    if found.is_match:
        return "match"
    if found.dimension < found.algebra.n and found.distance < MATCH:
        return f"within it, {found.dimension} of {found.algebra.n} dimensions"
    return ""


def _show_rank(rank: Decomposition | Declined | None) -> str:
    if isinstance(rank, Decomposition):
        return str(rank.rank) if rank.searched else f"≤ {rank.rank}"
    return "" if rank is None else "?"


def _show(numbers: Tensor) -> str:
    return " ".join(f"{number:.3f}" for number in numbers.tolist())
