"""The dense layers of a model, as places where a PH layer could stand."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

import phnn.nn as ph
from phnn.nn._layer import computes_state

PH_LAYERS: tuple[type[ph.PHLayer], ...] = (
    ph.PHLinear,
    ph.PHConv1d,
    ph.PHConv2d,
    ph.PHConv3d,
    ph.PHConvTranspose1d,
    ph.PHConvTranspose2d,
    ph.PHConvTranspose3d,
)
_TWINS: dict[object, type[ph.PHLayer]] = {layer.dense_type: layer for layer in PH_LAYERS}
_TWINS[NonDynamicallyQuantizableLinear] = ph.PHLinear  # the output projection of attention
_DENSE = tuple(kind for kind in _TWINS if isinstance(kind, type))


@dataclass(frozen=True)
class Choice:
    """The size of one PH layer."""

    n: int
    terms: int


@dataclass
class Slot:
    """A dense layer, the names it has in the model, and the class that could replace it.

    Attributes:
        module: The dense layer.
        names: Its names; more than one when the module is shared.
        twin: The PH class with the same hyperparameters; None when there is none.
        note: Why the layer stays as it is; empty when it can be replaced.
        tied_to: The layer whose weight this one shares.
    """

    module: nn.Module
    names: list[str]
    twin: type[ph.PHLayer] | None
    note: str = ""
    tied_to: Slot | None = None
    dense: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        # transformers' Conv1D is a linear layer that holds its weight transposed
        transposed = self.twin is not None and _is_conv1d(self.module)
        self.dense = _as_linear(self.module) if transposed else self.module

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    @property
    def is_open(self) -> bool:
        """Whether it can be replaced and its size is not that of a layer it is tied to."""
        return self.twin is not None and self.tied_to is None

    @property
    def weight(self) -> Tensor:
        """The dense weight in torch's layout."""
        return self.dense.get_parameter("weight")

    @property
    def groups(self) -> int:
        """Groups of the convolution; 1 for linear layers."""
        return int(getattr(self.module, "groups", 1))

    @property
    def transposed(self) -> bool:
        """Whether it is a transposed convolution."""
        return bool(getattr(self.module, "transposed", False))

    @property
    def parameters(self) -> int:
        """Number of parameters of the dense layer."""
        return sum(parameter.numel() for parameter in self.module.parameters())


def find_slots(model: nn.Module) -> list[Slot]:
    """Every dense layer of the model, in order, with the reason where it cannot be replaced."""
    slots: dict[int, Slot] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if id(module) in slots:
            slots[id(module)].names.append(name)
            continue
        slot = _slot(name, module)
        if slot is not None:
            slots[id(module)] = slot
    return list(slots.values())


def find_ph_slots(model: nn.Module) -> list[Slot]:
    """Every PH layer of the model, in order, with the reason where it cannot be folded."""
    slots: dict[int, Slot] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, ph.PHLayer):
            new = Slot(module, [], None, _own_way(module))
            slots.setdefault(id(module), new).names.append(name)
    return list(slots.values())


def _own_way(layer: ph.PHLayer) -> str:
    """Why the plain layer does not compute what a layer does; empty when it does."""
    if has_own_forward(layer):
        return "its forward was replaced; what it adds is unknown"
    kind = type(layer)
    inherited = kind.forward in [known.forward for known in PH_LAYERS]
    if inherited or kind.to_dense is not ph.PHLayer.to_dense:
        return ""
    return f"{kind.__name__} has a forward of its own; give it a to_dense as well to fold it"


def has_own_forward(module: nn.Module) -> bool:
    """Whether somebody has set the forward of this very module."""
    return "forward" in vars(module)


def owners(model: nn.Module) -> dict[int, list[str]]:
    """Names of each parameter tensor by identity; more than one where weights are tied."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def _slot(name: str, module: nn.Module) -> Slot | None:
    kind = type(module)
    if isinstance(module, _DENSE) and not holds_weight(module):
        note = "its weight is computed (weight_norm, pruning, …); remove that first"
        return Slot(module, [name], None, note)
    if isinstance(module, _DENSE) and has_own_forward(module):
        return Slot(module, [name], None, "its forward was replaced; what it adds is unknown")
    if kind in _TWINS or _is_conv1d(module):
        twin = _TWINS.get(kind, ph.PHLinear)
        dtype = module.get_parameter("weight").dtype
        if not dtype.is_floating_point:
            return Slot(module, [name], None, f"its weight is {dtype}, not real floating-point")
        return Slot(module, [name], twin)
    if isinstance(module, _DENSE):
        return Slot(module, [name], None, f"{kind.__name__} is a subclass; what it adds is unknown")
    if isinstance(module, nn.RNNBase):
        return Slot(module, [name], None, "recurrent layers have no PH twin")
    if isinstance(module, nn.MultiheadAttention):
        note = "its input projections (in_proj_weight) are parameters, not layers; out_proj is one"
        return Slot(module, [name], None, note)
    if "quantized" in kind.__module__ and hasattr(module, "weight"):
        return Slot(module, [name], None, "quantized; convert first, then quantize")
    return None


def holds_weight(layer: nn.Module) -> bool:
    """Whether weight and bias are parameters of the layer, not computed by a hook from others."""
    return {"weight", "bias"} <= layer._parameters.keys()


def _is_conv1d(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def _as_linear(module: nn.Module) -> nn.Linear:
    """A view of transformers' Conv1D as `nn.Linear`, sharing its bias."""
    weight = module.get_parameter("weight")
    inputs, outputs = weight.shape
    linear = nn.Linear(inputs, outputs, device="meta", dtype=weight.dtype)
    linear.weight = nn.Parameter(weight.detach().mT, requires_grad=weight.requires_grad)
    linear.bias = module.get_parameter("bias")
    return linear.train(module.training)


def hooks(module: nn.Module) -> Iterator[str]:
    """Kinds of hooks that sit on a module and would be lost with it.

    Not those of torch that compute a parameter (pruning, the old weight_norm): what they compute is
    what is replaced.
    """
    for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        found = getattr(module, kind, None) or {}
        if not all(map(computes_state, found.values())):
            yield kind.strip("_").replace("_", " ")


def replace_modules(
    model: nn.Module, slots: list[Slot], layers: Mapping[str, nn.Module], inplace: bool
) -> nn.Module:
    """The model, or a copy of it, with the named layers in the place of those of their slots."""
    new = {slot.name: (slot, layers[slot.name]) for slot in slots if slot.name in layers}
    if not inplace:
        # a deep copy that meets a replaced module takes the new one, wherever the model holds it
        memo: dict[int, object] = {id(slot.module): layer for slot, layer in new.values()}
        try:
            return copy.deepcopy(model, memo)
        except Exception as error:
            raise ValueError(
                f"the model cannot be copied ({error}); convert and to_dense can change it in "
                "place, with inplace=True"
            ) from error
    if "" in new:
        raise ValueError(f"{type(model).__name__} is itself the layer; use inplace=False")
    for slot, layer in new.values():
        for name in slot.names:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)
    return model
