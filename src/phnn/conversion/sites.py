"""The layers of a model that a PH layer can replace, or that are PH layers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True, eq=False)
class Site:
    """A layer in a model: its module and its names.

    Attributes:
        module: The layer.
        names: Its names; more than one when the module is shared.
        twin: The PH class with the same hyperparameters; None when the layer cannot be replaced.
        reason: Why it cannot be replaced, or folded; empty when it can.
    """

    module: nn.Module
    names: tuple[str, ...]
    twin: type[ph.PHLayer] | None
    reason: str = ""

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    @cached_property
    def dense(self) -> nn.Module:
        """The layer as torch's own; transformers' Conv1D is a linear layer, transposed."""
        is_conv1d = self.twin is not None and _is_conv1d(self.module)
        return _as_linear(self.module) if is_conv1d else self.module

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
        """Number of parameters of the layer."""
        return sum(parameter.numel() for parameter in self.module.parameters())


def find_sites(model: nn.Module, allow: Sequence[str] = ()) -> list[Site]:
    """Return every dense layer of a model, in order, with the reason where it must stay.

    Args:
        model: Any model.
        allow: Class names of subclasses that compute what their torch class does.
    """
    found = (_site(module, names, allow) for module, names in _modules(model))
    return [site for site in found if site is not None]


def find_ph_sites(model: nn.Module) -> list[Site]:
    """Return every PH layer of a model, in order, with the reason where it cannot be folded."""
    return [
        Site(module, names, None, _own_forward_reason(module))
        for module, names in _modules(model)
        if isinstance(module, ph.PHLayer)
    ]


def _modules(model: nn.Module) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """Return the modules of a model, each with all its names."""
    found: dict[int, tuple[nn.Module, list[str]]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found.setdefault(id(module), (module, []))[1].append(name)
    return [(module, tuple(names)) for module, names in found.values()]


def _own_forward_reason(layer: ph.PHLayer) -> str:
    """Say why the torch layer would not compute what this layer does; nothing when it would."""
    if has_own_forward(layer):
        return "its forward was replaced; what it adds is unknown"
    kind = type(layer)
    inherited = kind.forward in [known.forward for known in PH_LAYERS]
    if inherited or kind.to_dense is not ph.PHLayer.to_dense:
        return ""
    return f"{kind.__name__} has a forward of its own; give it a to_dense as well to fold it"


def has_own_forward(module: nn.Module) -> bool:
    """Return whether somebody has set the forward of this very module."""
    return "forward" in vars(module)


def owners(model: nn.Module) -> dict[int, list[str]]:
    """Return the names of each parameter by identity; more than one where weights are tied."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def _site(module: nn.Module, names: tuple[str, ...], allow: Sequence[str]) -> Site | None:
    kind = type(module)
    if kind in _TWINS or _is_conv1d(module) or isinstance(module, _DENSE):
        reason = _obstacle(module, allow)
        return Site(module, names, None if reason else _twin(kind), reason)
    if isinstance(module, nn.RNNBase):
        return Site(module, names, None, "recurrent layers have no PH twin")
    if isinstance(module, nn.MultiheadAttention):
        reason = "its input projections (in_proj_weight) are parameters; out_proj is a layer"
        return Site(module, names, None, reason)
    if "quantized" in kind.__module__ and hasattr(module, "weight"):
        return Site(module, names, None, "quantized; convert first, then quantize")
    return None


def _obstacle(module: nn.Module, allow: Sequence[str]) -> str:
    """Say why a dense layer cannot be replaced; nothing when it can."""
    kind = type(module)
    if isinstance(module, _DENSE) and not holds_weight(module):
        return "its weight is computed (weight_norm, pruning, …); remove that first"
    if isinstance(module, _DENSE) and has_own_forward(module):
        return "its forward was replaced; what it adds is unknown"
    if kind not in _TWINS and not _is_conv1d(module) and kind.__name__ not in allow:
        return f"{kind.__name__} is a subclass; what it adds is unknown (allow= can name it)"
    dtype = module.get_parameter("weight").dtype
    if not dtype.is_floating_point:
        return f"its weight is {dtype}, not real floating-point"
    return ""


def _twin(kind: type[nn.Module]) -> type[ph.PHLayer]:
    """Return the PH class for a type, or for the torch class that it is a subclass of."""
    return next((_TWINS[base] for base in kind.__mro__ if base in _TWINS), ph.PHLinear)


def holds_weight(layer: nn.Module) -> bool:
    """Return whether weight and bias are parameters of the layer, not computed by a hook."""
    return {"weight", "bias"} <= layer._parameters.keys()


def _is_conv1d(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def _as_linear(module: nn.Module) -> nn.Linear:
    """Return a view of transformers' Conv1D as `nn.Linear`, sharing its bias."""
    weight = module.get_parameter("weight")
    inputs, outputs = weight.shape
    linear = nn.Linear(inputs, outputs, device="meta", dtype=weight.dtype)
    linear.weight = nn.Parameter(weight.detach().mT, requires_grad=weight.requires_grad)
    linear.bias = module.get_parameter("bias")
    return linear.train(module.training)


def hooks(module: nn.Module) -> Iterator[str]:
    """Yield the kinds of hooks that sit on a module and would be lost with it.

    Not those of torch that compute a parameter (pruning, the old weight_norm): what they compute is
    what is replaced.
    """
    for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        found = getattr(module, kind, None) or {}
        if not all(map(computes_state, found.values())):
            yield kind.strip("_").replace("_", " ")


def replace_modules(
    model: nn.Module, sites: Sequence[Site], layers: Mapping[str, nn.Module], inplace: bool
) -> nn.Module:
    """Return the model, or a copy of it, with new layers at some of its sites.

    Args:
        model: The model.
        sites: Its sites.
        layers: The new layers, by the first name of their site.
        inplace: Change the model itself instead of a copy.
    """
    new = {site.name: (site, layers[site.name]) for site in sites if site.name in layers}
    if not inplace:
        # a deep copy that meets a replaced module takes the new one, wherever the model holds it
        memo: dict[int, object] = {id(site.module): layer for site, layer in new.values()}
        try:
            return copy.deepcopy(model, memo)
        except Exception as error:
            raise ValueError(
                f"the model cannot be copied ({error}); convert and to_dense can change it in "
                "place, with inplace=True"
            ) from error
    if "" in new:
        raise ValueError(f"{type(model).__name__} is itself the layer; use inplace=False")
    for site, layer in new.values():
        for name in site.names:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)
    return model


def check_whole(model: nn.Module) -> None:
    """Raise an error for a model whose tensors are shared out to several processes.

    Gathering takes all processes, and a function that one of them calls would wait forever.
    """
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "full_tensor"):  # DTensor; its import takes a second
            raise ValueError(
                f"{name} is shared out to several processes (fully_shard), and each has a part. "
                "Let all of them call torch.distributed.checkpoint.state_dict.get_model_state_dict "
                "with StateDictOptions(full_state_dict=True, cpu_offload=True), and load the "
                "result into a whole model in the first"
            )
