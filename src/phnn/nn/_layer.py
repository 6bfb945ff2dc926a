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

if TYPE_CHECKING:
    from typing_extensions import Self


class PHLayer(nn.Module):
    r"""Base of the PH layers: a weight :math:`H = \sum_i A_i \otimes F_i` and a bias.

    State is what is learned: `A`, `F` and `bias`. A fixed algebra is a buffer named `A`, so that
    keys do not depend on it. Nothing is cached; `weight` assembles H anew, and in-place writes to
    it vanish. With a rank the state has `V` and `W`, and `U` where rank > terms, in the place of
    `A`, which is then assembled as `weight` is.
    """

    dense_type: ClassVar[Callable[..., nn.Module]]  # the torch layer this one stands in for
    dense_args: ClassVar[tuple[str, ...]]  # its hyperparameters: attributes here, arguments there

    A: Tensor
    U: Tensor | None
    V: Tensor
    W: Tensor
    F: Tensor
    bias: Tensor | None
    rank: int | None = None
    groups: int = 1
    transposed: bool = False

    def __init__(
        self,
        *,
        n: int | None,
        algebra: Algebra | None,
        learn_algebra: bool | None,
        terms: int | None,
        rank: int | None,
    ) -> None:
        super().__init__()
        self.n, self.terms = _resolve(n, algebra, learn_algebra, terms, rank)
        self.rank = rank
        self.algebra = algebra
        self.learns_algebra = algebra is None if learn_algebra is None else learn_algebra

    def _make_state(
        self,
        rows: int,
        columns: int,
        kernel_size: tuple[int, ...],
        bias: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Registers the state for a dense weight (rows, columns, *kernel_size)."""
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
        n, terms, rank = self.n, self.terms, self.rank

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, device=device, dtype=dtype)

        if rank is not None:
            mixes_filters = rank > terms
            self.register_parameter(
                "U", nn.Parameter(empty(terms, rank)) if mixes_filters else None
            )
            self.register_parameter("V", nn.Parameter(empty(n, rank)))
            self.register_parameter("W", nn.Parameter(empty(n, rank)))
        elif self.learns_algebra:
            self.register_parameter("A", nn.Parameter(empty(terms, n, n)))
        else:
            self.register_buffer("A", empty(terms, n, n))
        self.register_parameter(
            "F", nn.Parameter(empty(rows // n * terms, columns // n, *kernel_size))
        )
        self.register_parameter("bias", None if bias is None else nn.Parameter(empty(bias)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the starting values of `phnn.init.default_`; a fixed algebra is restored."""
        init.default_(self)

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        # not a property: torch would not register a parameter of the same name in other layers
        if name == "A" and self.rank is not None:
            return self.factors.tensor()
        return super().__getattr__(name)

    @property
    def weight(self) -> Tensor:
        """The assembled H, as large as the torch layer's weight; to be read, not written."""
        return functional.kronecker_sum(self.A, self.F, self.groups, self.transposed)

    @property
    def factors(self) -> Factors:
        """The parameters that a layer with a rank has in the place of A."""
        return Factors(self.U, self.V, self.W)

    @property
    def algebra_names(self) -> tuple[str, ...]:
        """The names of the parameters or the buffer that hold the algebra."""
        if self.rank is None:
            return ("A",)
        return ("V", "W") if self.U is None else ("U", "V", "W")

    @property
    def _rules(self) -> Tensor | Factors:
        """What `phnn.functional` computes with in the place of A."""
        return self.A if self.rank is None else self.factors

    def decompose_algebra(self) -> Factors:
        """The known algebra in `rank` products, float64 on the CPU.

        With as many products as terms, each gets filters of its own: those of the algebra in
        another basis.
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
        n: int | None = None,
        algebra: Algebra | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> Self:
        """A fresh PH layer with the hyperparameters, device, dtype and mode of a torch layer."""
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
        """The plain torch layer that computes the same, in the same mode and as trainable."""
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

    def _check_divisible(self, **sizes: int) -> None:
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is at least 1, got {name}={size}")
            if size % self.groups:
                raise ValueError(f"groups={self.groups} must divide {name}={size}")
            if size % (self.n * self.groups):
                raise ValueError(self._not_divisible(name, size))

    def _not_divisible(self, name: str, size: int) -> str:
        n, groups = self.n, self.groups
        step = n * groups
        lower, upper = size // step * step, -(-size // step) * step
        nearest = (
            f"the nearest that work are {lower} and {upper}" if lower else f"the least is {upper}"
        )
        if groups == 1:
            return f"n={n} must divide {name}={size}; {nearest}"
        if size == groups:
            return f"n={n} must divide {name}/groups=1: a depthwise layer admits only n=1"
        return f"n={n} must divide {name}/groups={size}/{groups}; for {name}, {nearest}"

    def _check_input(
        self, input: Tensor, axis: int, size: int, ranks: tuple[int, ...] | None
    ) -> None:
        """Refuses what torch would blame on an assembled weight that the user never saw."""
        name = type(self).__name__
        if isinstance(input, fx.Proxy):
            raise TypeError(
                f"{name} is a layer that torch.fx must not look into; make PH layers leaves of "
                "the tracer (is_leaf_module), or trace phnn.to_dense(model), which leaves those "
                "alone whose forward is their own"
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

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        loaded = state_dict.get(prefix + "A")
        if self.learns_algebra or not isinstance(loaded, Tensor) or loaded.is_meta:
            return super()._load_from_state_dict(state_dict, prefix, *args)
        assert self.algebra is not None
        if _is_algebra(loaded, self.algebra):
            local_metadata: dict[str, Any] = args[0]
            exact = self.algebra.structure  # a state of lower precision holds it rounded
            if local_metadata.get("assign_to_params_buffers", False):
                exact = exact.to(loaded.device, loaded.dtype)
            state_dict = {**state_dict, prefix + "A": exact}
            return super()._load_from_state_dict(state_dict, prefix, *args)
        known = _known(loaded)
        found = f"a learned algebra of shape {tuple(loaded.shape)}" if known is None else known.name
        remedy = "n=" + str(loaded.shape[-1]) if known is None else f"algebra={known.name}"
        error_msgs: list[str] = args[-1]  # torch passes them last and raises one error with all
        error_msgs.append(
            f'"{prefix}A" holds {found}, but this layer computes with the fixed algebra '
            f"{self.algebra.name}; build it with {remedy} to load this state"
        )
        return None

    def _algebra_repr(self) -> str:
        parts = [f"n={self.n}" if self.algebra is None else f"algebra={self.algebra.name}"]
        if self.algebra is not None and self.learns_algebra:
            parts.append("learn_algebra=True")
        if self.terms != self.n:
            parts.append(f"terms={self.terms}")
        if self.rank is not None:
            parts.append(f"rank={self.rank}")
        return ", ".join(parts)


def computes_state(hook: object) -> bool:
    """Whether a hook is one of torch's that compute a parameter: pruning, the old weight_norm."""
    return isinstance(hook, BasePruningMethod) or type(hook).__module__.startswith("torch.nn.utils")


def compute_state(layer: nn.Module) -> None:
    """Computes the parameters that hooks compute, as a call would: theirs may have changed since.

    Args:
        layer: Any layer. It is in evaluation mode meanwhile, so that spectral_norm learns nothing.
    """
    training, layer.training = layer.training, False
    for hook in layer._forward_pre_hooks.values():
        if computes_state(hook):
            hook(layer, ())
    layer.training = training


def _resolve(
    n: int | None,
    algebra: Algebra | None,
    learn_algebra: bool | None,
    terms: int | None,
    rank: int | None,
) -> tuple[int, int]:
    """The dimension and the number of terms that the arguments ask for."""
    if algebra is None:
        if n is None:
            raise TypeError("give n=, the dimension of a learned algebra, or algebra=, a known one")
        if learn_algebra is False:
            raise ValueError("learn_algebra=False needs an algebra= to keep fixed")
    elif not isinstance(algebra, Algebra):
        raise TypeError(
            f"algebra is a phnn.algebra.Algebra, got {algebra!r}; "
            "phnn.algebra.get finds one by name"
        )
    elif n is not None and n != algebra.n:
        raise ValueError(f"{algebra.name} has n={algebra.n}, which contradicts n={n}; leave n out")
    elif terms is not None and terms != algebra.n:
        raise ValueError(
            f"{algebra.name} has {algebra.n} terms, which contradicts terms={terms}; "
            "leave terms out, or learn the algebra with n="
        )
    elif rank is not None and not learn_algebra:
        raise ValueError(
            f"rank={rank} limits an algebra that is learned, and {algebra.name} is fixed; leave "
            "rank out, or start from the algebra with learn_algebra=True"
        )
    else:
        n = terms = algebra.n
    assert n is not None
    _check_integer("n", n)
    if n < 1:
        raise ValueError(f"n is at least 1, got n={n}")
    if rank is not None:
        _check_integer("rank", rank)
    if terms is None:
        terms = n if rank is None else min(n, rank)
    _check_integer("terms", terms)
    if rank is not None and not 1 <= rank <= n * n:
        raise ValueError(f"rank is between 1 and n²={n * n}, got rank={rank}")
    if not 1 <= terms <= n * n:
        raise ValueError(f"terms is between 1 and n²={n * n}, got terms={terms}")
    if rank is not None and rank < terms:
        raise ValueError(
            f"rank={rank} products cannot serve terms={terms} terms; "
            f"raise rank to {terms}" + (f", or lower terms to {rank}" if algebra is None else "")
        )
    return n, terms


def _check_integer(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is an integer, got {value!r}")


def _is_algebra(A: Tensor, algebra: Algebra) -> bool:
    """Whether a state, of whatever precision, is that of an algebra."""
    structure, found = algebra.structure, A.detach().cpu().double()
    precisions = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    rounded = (structure.to(precision).double() for precision in precisions)
    return A.shape == structure.shape and any(torch.equal(found, value) for value in rounded)


def _known(A: Tensor) -> Algebra | None:
    candidates = (algebras.get(name) for name in algebras.names())
    return next((candidate for candidate in candidates if _is_algebra(A, candidate)), None)
