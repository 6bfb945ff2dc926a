"""What every PH layer shares: the algebra, the filters and their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.prune import BasePruningMethod

from phnn import algebra as algebras
from phnn import decompose, functional, init
from phnn.algebra import Algebra
from phnn.functional import Factors
from phnn.structure import Dimension, Structure

if TYPE_CHECKING:
    from typing_extensions import Self


class PHLayer(nn.Module):
    r"""Base of the PH layers: a weight :math:`H = \sum_i A_i \otimes F_i` and a bias.

    The state is what the layer learns: `A`, `F` and `bias`. A fixed algebra is a buffer named `A`,
    so the keys are the same. A layer with a rank has `V` and `W`, and `U` if rank > terms, instead
    of `A`. Nothing is cached: `weight` assembles a new H each time, so in-place writes to it are
    lost.
    """

    dense_type: ClassVar[Callable[..., nn.Module]]  # the torch layer that this one replaces
    dense_args: ClassVar[tuple[str, ...]]  # its hyperparameters: our attributes, its arguments

    A: Tensor  # not in layers with a rank
    U: Tensor | None
    V: Tensor
    W: Tensor
    F: Tensor
    bias: Tensor | None
    groups: int = 1
    transposed: bool = False

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        self.structure = structure

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

    def _make_state(
        self,
        rows: int,
        columns: int,
        kernel_size: tuple[int, ...],
        bias: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Register the state for a dense weight (rows, columns, *kernel_size)."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            hint = (
                "; algebra=phnn.algebra.complex computes with real tensors"
                if dtype.is_complex
                else ""
            )
            raise TypeError(
                f"{type(self).__name__} needs a real floating-point dtype, got {dtype}{hint}"
            )
        n_out, n_in, terms, rank = self.n_out, self.n_in, self.terms, self.rank

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, device=device, dtype=dtype)

        if rank is not None:
            mixes_filters = rank > terms
            self.register_parameter(
                "U", nn.Parameter(empty(terms, rank)) if mixes_filters else None
            )
            self.register_parameter("V", nn.Parameter(empty(n_in, rank)))
            self.register_parameter("W", nn.Parameter(empty(n_out, rank)))
        elif self.learns_algebra:
            self.register_parameter("A", nn.Parameter(empty(terms, n_out, n_in)))
        else:
            self.register_buffer("A", empty(terms, n_out, n_in))
        first, second = (n_in, n_out) if self.transposed else (n_out, n_in)
        filters = empty(rows // first * terms, columns // second, *kernel_size)
        self.register_parameter("F", nn.Parameter(filters))
        self.register_parameter("bias", None if bias is None else nn.Parameter(empty(bias)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the starting values of `phnn.init.default_`; restore a fixed algebra."""
        init.default_(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            raise AttributeError(
                f"{type(self).__name__} computes its weight from A and F, so it cannot be set; "
                "phnn.decompose.nearest finds A and F for a given weight, and phnn.to_dense makes "
                "a torch layer that holds one"
            )
        super().__setattr__(name, value)

    @property
    def weight(self) -> Tensor:
        """The assembled H, of the shape of the torch layer's weight; for reading only."""
        return functional.kronecker_sum(self.rules, self.F, self.groups, self.transposed)

    @property
    def rules(self) -> Tensor | Factors:
        """The A of `phnn.functional`: the tensor, or the factors of a layer with a rank."""
        return self.A if self.rank is None else self.factors

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

    @classmethod
    def like(
        cls,
        dense: nn.Module,
        *,
        n: Dimension | None = None,
        algebra: Algebra | str | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> Self:
        """Make a new PH layer with the arguments, device, dtype and mode of a torch layer."""
        arguments = {name: getattr(dense, name) for name in cls.dense_args}
        weight = dense.get_parameter("weight")
        make: Callable[..., Self] = cls  # each layer class has the arguments of its torch twin
        layer = make(
            **arguments,
            bias=dense.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
            n=n,
            algebra=algebra,
            learn_algebra=learn_algebra,
            terms=terms,
            rank=rank,
        )
        return layer.train(dense.training)

    def to_dense(self) -> nn.Module:
        """Return the torch layer that computes the same, equally trainable and in the same mode."""
        compute_state(self)
        arguments = {name: getattr(self, name) for name in self.dense_args}
        dense = self.dense_type(
            **arguments, bias=self.bias is not None, device="meta", dtype=self.F.dtype
        )
        dense.weight = nn.Parameter(self.weight.detach(), requires_grad=self.F.requires_grad)
        if self.bias is not None:
            bias = self.bias.detach().clone()
            dense.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)
        return dense.train(self.training)

    def _check_divisible(self, inputs: tuple[str, int], outputs: tuple[str, int]) -> None:
        sides = (("n_in", self.n_in, *inputs), ("n_out", self.n_out, *outputs))
        for side, n, name, size in sides:
            if size < 1:
                raise ValueError(f"{name} is at least 1, got {name}={size}")
            if size % self.groups:
                raise ValueError(f"groups={self.groups} must divide {name}={size}")
            if size % (n * self.groups):
                label = f"n={n}" if self.structure.is_square else f"{side}={n} of n={self.n}"
                raise ValueError(_not_divisible(label, n, self.groups, name, size))

    def _check_input(
        self, input: Tensor, axis: int, size: int, ranks: tuple[int, ...] | None
    ) -> None:
        """Raise an error where torch's message would be about the assembled weight."""
        name = type(self).__name__
        if isinstance(input, fx.Proxy):
            raise TypeError(
                f"{name} cannot be traced by torch.fx; make PH layers leaves of the tracer "
                "(is_leaf_module), or trace phnn.to_dense(model)"
            )
        if not isinstance(input, Tensor):
            raise TypeError(f"{name} expects a torch.Tensor, got {type(input).__name__}")
        if not input.is_floating_point():
            raise TypeError(f"{name} expects a real floating-point input, got {input.dtype}")
        if ranks is not None and input.dim() not in ranks:
            raise ValueError(
                f"{name} expects {ranks[0]}D (unbatched) or {ranks[1]}D (batched) input, "
                f"got shape {tuple(input.shape)}"
            )
        if input.dim() == 0 or input.shape[axis] != size:
            raise ValueError(
                f"{name} expects {size} channels in axis {axis}, "
                f"got input of shape {tuple(input.shape)}"
            )

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        loaded = state_dict.get(prefix + "A")
        if not self.learns_algebra and isinstance(loaded, Tensor) and not loaded.is_meta:
            assert self.algebra is not None
            if not _is_algebra(loaded, self.algebra):
                error_msgs.append(self._explain_other_algebra(prefix + "A", loaded))
                return
            exact = self.algebra.structure  # in a state of lower precision it is rounded
            if local_metadata.get("assign_to_params_buffers", False):
                exact = exact.to(loaded.device, loaded.dtype)
            state_dict = {**state_dict, prefix + "A": exact}
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )

    def _explain_other_algebra(self, key: str, loaded: Tensor) -> str:
        assert self.algebra is not None
        known = _known(loaded)
        found = f"a learned algebra of shape {tuple(loaded.shape)}" if known is None else known.name
        remedy = "n=" + str(loaded.shape[-1]) if known is None else f"algebra={known.name}"
        return (
            f'"{key}" holds {found}, but this layer computes with the fixed algebra '
            f"{self.algebra.name}; build it with {remedy} to load this state"
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


def computes_state(hook: object) -> bool:
    """Return whether a hook of torch computes a parameter: pruning, or the old weight_norm."""
    return isinstance(hook, BasePruningMethod) or type(hook).__module__.startswith("torch.nn.utils")


def compute_state(layer: nn.Module) -> None:
    """Compute the parameters that hooks compute, as a call would; their inputs may have changed.

    Args:
        layer: Any layer; in evaluation mode meanwhile, so that spectral_norm learns nothing.
    """
    training, layer.training = layer.training, False
    for hook in layer._forward_pre_hooks.values():
        if computes_state(hook):
            hook(layer, ())
    layer.training = training


def _is_algebra(A: Tensor, algebra: Algebra) -> bool:
    """Return whether a state, of any precision, holds an algebra."""
    structure, found = algebra.structure, A.detach().cpu().double()
    precisions = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    rounded = (structure.to(precision).double() for precision in precisions)
    return A.shape == structure.shape and any(torch.equal(found, value) for value in rounded)


def _known(A: Tensor) -> Algebra | None:
    candidates = (algebras.get(name) for name in algebras.names())
    return next((candidate for candidate in candidates if _is_algebra(A, candidate)), None)
