"""What a PH weight is, whoever owns its tensors: one layer, or a layer with several of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from phnn import algebra as algebras
from phnn import decompose
from phnn.algebra import Algebra
from phnn.functional import Factors
from phnn.structure import Dimension, Structure


class PHWeight:
    r"""The algebra and the filters of one weight, :math:`H = \sum_i A_i \otimes F_i`."""

    structure: Structure
    A: Tensor  # not with a rank
    U: Tensor | None
    V: Tensor
    W: Tensor
    F: Tensor
    bias: Tensor | None
    groups: int = 1
    transposed: bool = False

    @property
    def n(self) -> Dimension:
        """Dimension of the algebra, or the pair (n_out, n_in) of a rectangular one."""
        return self.structure.n

    @property
    def n_out(self) -> int:
        """Components of the output."""
        return self.structure.n_out

    @property
    def n_in(self) -> int:
        """Components of the input."""
        return self.structure.n_in

    @property
    def terms(self) -> int:
        """Number of Kronecker terms."""
        return self.structure.terms

    @property
    def rank(self) -> int | None:
        """CP rank that the algebra is limited to; None without a limit."""
        return self.structure.rank

    @property
    def algebra(self) -> Algebra | None:
        """The known algebra that A holds or starts from; None for one that is only learned."""
        return self.structure.algebra

    @property
    def learns_algebra(self) -> bool:
        """Whether A is learned."""
        return self.structure.learns

    @property
    def algebra_tensor(self) -> Tensor:
        """The tensor A, (terms, n_out, n_in); computed from the factors in a layer with a rank."""
        return self.A if self.rank is None else self.factors.tensor()

    @property
    def factors(self) -> Factors:
        """The parameters that a layer with a rank has instead of A."""
        return Factors(self.U, self.V, self.W)

    @property
    def algebra_names(self) -> tuple[str, ...]:
        """The names of the parameters, or of the buffer, with the algebra."""
        if self.rank is None:
            return ("A",)
        return ("V", "W") if self.U is None else ("U", "V", "W")

    def decompose_algebra(self) -> Factors:
        """Return the CP decomposition of the known algebra, float64 on the CPU.

        If rank = terms, each product has its own filters: those of the algebra in another basis.
        """
        assert self.algebra is not None
        try:
            found = decompose.bilinear(self.algebra, self.rank).factors
        except RuntimeError as error:
            raise ValueError(
                f"{self.algebra.name} was not found to be a sum of rank={self.rank} products "
                f"({error}); phnn.decompose.bilinear searches for the fewest"
            ) from error
        if self.rank == self.terms:
            sizes = found.mixing.norm(dim=0).sqrt()
            return Factors(None, found.V * sizes, found.W * sizes)
        return found

    @property
    def default_std(self) -> float:
        """Standard deviation of torch's default weight, which the start of H has, too."""
        fan_in = (self.n_out if self.transposed else self.n_in) * self.F[0].numel()
        return 1 / math.sqrt(3 * fan_in)


def real_dtype(module: nn.Module, dtype: torch.dtype | None) -> torch.dtype:
    """Return the type of the state, torch's default if none is given; refuse what is not real."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        hint = (
            "; algebra=phnn.algebra.complex computes with real tensors" if dtype.is_complex else ""
        )
        raise TypeError(
            f"{type(module).__name__} needs a real floating-point dtype, got {dtype}{hint}"
        )
    return dtype


def register_weight(
    module: nn.Module,
    structure: Structure,
    shape: tuple[int, ...],
    suffix: str = "",
    transposed: bool = False,
    **options: Any,
) -> None:
    """Register A, or U, V and W, and F for a dense weight of this shape, (rows, columns, *k).

    Args:
        module: The owner.
        structure: How the weight is built.
        shape: Shape of the dense weight.
        suffix: What follows the letters in the names of the state.
        transposed: Whether its first axis is that of the inputs.
        options: Device and dtype.
    """
    n_out, n_in, terms, rank = structure.n_out, structure.n_in, structure.terms, structure.rank

    def register(letter: str, *sizes: int) -> None:
        module.register_parameter(letter + suffix, nn.Parameter(torch.empty(sizes, **options)))

    if rank is not None:
        if rank > terms:
            register("U", terms, rank)
        else:
            module.register_parameter("U" + suffix, None)
        register("V", n_in, rank)
        register("W", n_out, rank)
    elif structure.learns:
        register("A", terms, n_out, n_in)
    else:
        module.register_buffer("A" + suffix, torch.empty(terms, n_out, n_in, **options))
    first, second = (n_in, n_out) if transposed else (n_out, n_in)
    rows, columns, *kernel = shape
    register("F", rows // first * terms, columns // second, *kernel)


def check_divisible(
    structure: Structure, inputs: tuple[str, int], outputs: tuple[str, int], groups: int = 1
) -> None:
    """Refuse sizes, given with their names, that do not split into components.

    Args:
        structure: Says how many components there are.
        inputs: Name and number of the inputs.
        outputs: Name and number of the outputs.
        groups: Groups of a convolution, each of which is split.
    """
    sides = (("n_in", structure.n_in, *inputs), ("n_out", structure.n_out, *outputs))
    for side, n, name, size in sides:
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {name}={size}")
        if size % groups:
            raise ValueError(f"groups={groups} must divide {name}={size}")
        if size % (n * groups):
            label = f"n={n}" if structure.is_square else f"{side}={n} of n={structure.n}"
            raise ValueError(_not_divisible(label, n, groups, name, size))


def check_components(n: int, name: str, size: int) -> None:
    """Refuse a number of components that does not divide a size."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n={n!r} must be an integer of at least 1, the number of components")
    if size < 1 or size % n:
        lower, upper = size // n * n, -(-size // n) * n
        near = (
            f"the nearest that work are {lower} and {upper}" if lower > 0 else f"the least is {n}"
        )
        raise ValueError(f"n={n} must divide {name}={size}; {near}")


def restore_algebras(
    structure: Structure,
    names: Iterable[str],
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: dict[str, Any],
    error_msgs: list[str],
) -> dict[str, Any] | None:
    """Return a state with exact fixed algebras; None, and an error, for one with another algebra.

    A state of lower precision holds them rounded.

    Args:
        structure: Says which algebra is fixed.
        names: Names of the algebras in the module.
        state_dict: What is loaded.
        prefix: What precedes the names there.
        local_metadata: torch's, says whether the tensors are assigned.
        error_msgs: Where errors are collected.
    """
    if structure.learns:
        return state_dict
    assert structure.algebra is not None
    exact: dict[str, Any] = {}
    for key in (prefix + name for name in names):
        loaded = state_dict.get(key)
        if not isinstance(loaded, Tensor) or loaded.is_meta:
            continue
        if not _is_algebra(loaded, structure.algebra):
            error_msgs.append(_explain_other_algebra(structure.algebra, key, loaded))
            return None
        exact[key] = structure.algebra.structure
        if local_metadata.get("assign_to_params_buffers", False):
            exact[key] = exact[key].to(loaded.device, loaded.dtype)
    return {**state_dict, **exact}


def _explain_other_algebra(algebra: Algebra, key: str, loaded: Tensor) -> str:
    known = _known(loaded)
    found = f"a learned algebra of shape {tuple(loaded.shape)}" if known is None else known.name
    remedy = "n=" + str(loaded.shape[-1]) if known is None else f"algebra={known.name}"
    return (
        f'"{key}" holds {found}, but this layer computes with the fixed algebra '
        f"{algebra.name}; build it with {remedy} to load this state"
    )


def _not_divisible(label: str, n: int, groups: int, name: str, size: int) -> str:
    step = n * groups
    lower, upper = size // step * step, -(-size // step) * step
    nearest = f"the nearest that work are {lower} and {upper}" if lower else f"the least is {upper}"
    if groups == 1:
        return f"{label} must divide {name}={size}; {nearest}"
    if size == groups:
        return f"{label} must divide {name}/groups=1: a depthwise layer admits only n=1"
    return f"{label} must divide {name}/groups={size}/{groups}; for {name}, {nearest}"


def _is_algebra(A: Tensor, algebra: Algebra) -> bool:
    """Return whether a state, of any precision, holds an algebra."""
    structure, found = algebra.structure, A.detach().cpu().double()
    precisions = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    rounded = (structure.to(precision).double() for precision in precisions)
    return A.shape == structure.shape and any(torch.equal(found, value) for value in rounded)


def _known(A: Tensor) -> Algebra | None:
    candidates = (algebras.get(name) for name in algebras.names())
    return next((candidate for candidate in candidates if _is_algebra(A, candidate)), None)
