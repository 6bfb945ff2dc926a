"""What every PH layer shares: the algebra, the filters and their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.prune import BasePruningMethod

from phnn import functional, init
from phnn.functional import Factors, Known
from phnn.nn._constants import constant_factors
from phnn.nn._weight import (
    PHWeight,
    check_divisible,
    real_dtype,
    register_weight,
    restore_algebras,
)
from phnn.structure import Choice, Structure

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class PHLayer(PHWeight, nn.Module):
    r"""Base of the PH layers: a weight :math:`H = \sum_i A_i \otimes F_i` and a bias.

    The state is what the layer learns: `A`, `F` and `bias`. A fixed algebra is a buffer named `A`,
    so the keys are the same. A layer with a rank has `V` and `W`, and `U` if rank > terms, instead
    of `A`. Nothing is cached: `weight` assembles a new H each time, so in-place writes to it are
    lost.
    """

    dense_type: ClassVar[Callable[..., nn.Module]]  # the torch layer that this one replaces
    dense_args: ClassVar[tuple[str, ...]]  # its hyperparameters: our attributes, its arguments

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        self.structure = structure

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
        shape = (rows, columns, *kernel_size)
        options: dict[str, Any] = {"device": device, "dtype": real_dtype(self, dtype)}
        register_weight(self, self.structure, shape, "", self.transposed, **options)
        empty = None if bias is None else torch.empty(bias, **options)
        self.register_parameter("bias", None if empty is None else nn.Parameter(empty))
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
        rules = self.algebra_tensor if self.rank is None else self.factors
        return functional.kronecker_sum(rules, self.F, self.groups, self.transposed)

    @property
    def rules(self) -> Tensor | Factors | Known:
        """The A of `phnn.functional`: the tensor, the factors of a layer with a rank, or both."""
        if self.rank is not None:
            return self.factors
        A = self.algebra_tensor
        if self.learns_algebra or self.algebra is None or torch.compiler.is_compiling():
            return A
        if type(A) is not Tensor:  # a fake one of some tracer, which no constant fits
            return A
        factors = constant_factors(self.algebra, A.device, A.dtype)
        return A if factors is None else Known(A, factors)

    @classmethod
    def like(cls, dense: nn.Module, **choice: Unpack[Choice]) -> Self:
        """Make a new PH layer with the arguments, device, dtype and mode of a torch layer."""
        arguments = {name: getattr(dense, name) for name in cls.dense_args}
        weight = dense.get_parameter("weight")
        make: Callable[..., Self] = cls  # each layer class has the arguments of its torch twin
        layer = make(
            **arguments,
            bias=dense.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
            **choice,
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
        check_divisible(self.structure, inputs, outputs, self.groups)

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
        if prefix + "weight" in state_dict and prefix + "F" not in state_dict:
            # with strict=False torch would leave this layer as it is, and say nothing
            error_msgs.append(
                f'"{prefix}weight" is of a plain layer, and {type(self).__name__} has A and F; '
                "load the plain model first, and convert it then"
            )
            return
        restored = restore_algebras(
            self.structure, ("A",), state_dict, prefix, local_metadata, error_msgs
        )
        if restored is None:
            return
        super()._load_from_state_dict(
            restored,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )


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
