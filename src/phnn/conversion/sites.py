"""The layers of a model that a PH layer can replace, or that are PH layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

import phnn.nn as ph
from phnn.conversion.attentions import OpenAttention
from phnn.conversion.opening import Matrix, Opened, PHPart, Whole
from phnn.conversion.recurrences import RECURRENT
from phnn.nn._layer import computes_state
from phnn.nn._matrices import PHMatrices
from phnn.nn.delta import AdaptedLayer
from phnn.nn.transformer import _PHTransformerLayer

PH_LAYERS: tuple[type[ph.PHLayer], ...] = (
    ph.PHLinear,
    ph.PHConv1d,
    ph.PHConv2d,
    ph.PHConv3d,
    ph.PHConvTranspose1d,
    ph.PHConvTranspose2d,
    ph.PHConvTranspose3d,
)
LAYERS: tuple[type[ph.PHLayer], ...] = (*PH_LAYERS, ph.PHEmbedding)
_TWINS: dict[object, type[ph.PHLayer]] = {layer.dense_type: layer for layer in LAYERS}
_TWINS[NonDynamicallyQuantizableLinear] = ph.PHLinear  # the output projection of attention
_DENSE = tuple(kind for kind in _TWINS if isinstance(kind, type))
OPENED: dict[type[nn.Module], type[Opened]] = {**RECURRENT, nn.MultiheadAttention: OpenAttention}
SEVERAL: tuple[type[PHMatrices], ...] = tuple(
    opened.twin for opened in RECURRENT.values() if issubclass(opened.twin, PHMatrices)
)
# layers that know the torch layer which computes the same as they and all their parts
FOLDING = (ph.PHLayer, PHMatrices, ph.PHMultiheadAttention, _PHTransformerLayer)


@dataclass(frozen=True, eq=False)
class Site:
    """A layer with one matrix in a model: its module and its names.

    Attributes:
        module: The layer.
        names: Its names; more than one when the module is shared.
        twin: The PH class with the same hyperparameters; None when the layer cannot be replaced.
        reason: Why it cannot be replaced, or folded; empty when it can.
        whole: The layer with several matrices that this is one of; None for most layers.
    """

    module: nn.Module
    names: tuple[str, ...]
    twin: type[ph.PHLayer] | None
    reason: str = ""
    whole: Whole | None = None

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
        """The dense weight in torch's layout; the two sides of a matrix are kernel positions."""
        weight = self.dense.get_parameter("weight")
        return self.dense.arrange(weight) if isinstance(self.dense, Matrix) else weight

    @property
    def bias(self) -> Tensor | None:
        """The bias; None where there is none."""
        return self.dense._parameters.get("bias")

    @property
    def is_table(self) -> bool:
        """Whether it looks up the rows of its weight, as an embedding does."""
        return isinstance(self.module, nn.Embedding)

    @property
    def is_part(self) -> bool:
        """Whether it exists only while its layer is opened."""
        return self.whole is not None and self.name.rpartition(".")[2] in self.whole.opened.parts

    @property
    def kind(self) -> str:
        """The name of its class, or of the layer that it is a part of."""
        layer = self.whole.module if self.whole is not None and self.is_part else self.module
        return type(layer).__name__

    def write(self, layer: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
        """Write a canonical weight (groups, out, in, K), and a bias, into a copy of the layer."""
        if self.transposed:
            weight = weight.flip(-1).transpose(1, 2)
        weight = weight.reshape(self.weight.shape)
        if self.dense is not self.module:
            weight = weight.mT
        if weight.dim() == 3 and isinstance(layer, Matrix):
            weight = weight.transpose(1, 2).flatten(1)
        with torch.no_grad():
            layer.get_parameter("weight").copy_(weight)
            if bias is not None:
                layer.get_parameter("bias").copy_(bias)

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


def find_sites(model: nn.Module, allow: Collection[str] = ()) -> list[Site]:
    """Return every dense layer of a model, in order, with the reason where it must stay.

    Args:
        model: Any model.
        allow: Class names of subclasses that compute what their torch class does.
    """
    require_sizes(model)
    sites: list[Site] = []
    inside: dict[int, Whole] = {}
    adapted: set[int] = set()
    for module, names in _modules(model):
        if id(module) in adapted:
            continue
        if isinstance(module, AdaptedLayer):
            adapted.update(map(id, module.modules()))
            sites.append(Site(module, names, None, "adapted; phnn.merge folds the adapter in"))
            continue
        whole = _open(module, names, allow)
        if whole is None:
            site = _site(module, names, allow, inside.get(id(module)))
            sites += [] if site is None else [site]
            continue
        inside.update((id(child), whole) for child in module.children())
        for part in whole.opened.parts:
            child = whole.opened.get_submodule(part)
            twin = PHPart if isinstance(child, Matrix) else ph.PHLinear
            sites.append(
                Site(child, tuple(f"{name}.{part}".lstrip(".") for name in names), twin, "", whole)
            )
    return sites


def find_ph_sites(model: nn.Module) -> list[Site]:
    """Return every PH layer of a model, in order, with the reason where it cannot be folded."""
    return [
        Site(module, names, None, _own_forward_reason(module))
        for module, names in _modules(model)
        if isinstance(module, ph.PHLayer)
    ]


def require_sizes(model: nn.Module) -> None:
    """Refuse a model with lazy layers that have not run yet."""
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
                raise ValueError(
                    f"{prefix or 'the model'} is a {type(module).__name__} whose {name} has no "
                    "size yet; run the model on an example first"
                )


def holds_numbers(tensor: Tensor) -> bool:
    """Return whether a tensor has values, which those of the meta device and fake ones lack."""
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def find_folds(model: nn.Module) -> list[Site]:
    """Return what folds into a torch layer, in order, with the reason where it cannot.

    These are the PH layers, and layers with several matrices instead of their matrices.
    """
    sites: list[Site] = []
    inside: set[int] = set()
    for module, names in _modules(model):
        if isinstance(module, AdaptedLayer):
            inside.update(map(id, module.modules()))
        if id(module) in inside or not isinstance(module, FOLDING):
            continue
        site = Site(module, names, None, _own_forward_reason(module))
        if not site.reason:
            inside.update(map(id, module.modules()))
        sites.append(site)
    return sites


def _modules(model: nn.Module) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """Return the modules of a model, each with all its names."""
    found: dict[int, tuple[nn.Module, list[str]]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found.setdefault(id(module), (module, []))[1].append(name)
    return [(module, tuple(names)) for module, names in found.values()]


def _own_forward_reason(layer: nn.Module) -> str:
    """Say why the torch layer would not compute what this layer does; nothing when it would."""
    if has_own_forward(layer):
        return "its forward was replaced; what it adds is unknown"
    kind = type(layer)
    known = [base for base in kind.__mro__ if base.__module__.startswith("phnn.nn.")]
    ours: Any = next((base for base in known if "dense_type" in vars(base)), ph.PHLayer)
    theirs: Any = kind
    if theirs.forward is ours.forward or theirs.to_dense is not ours.to_dense:
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


def _site(
    module: nn.Module, names: tuple[str, ...], allow: Collection[str], whole: Whole | None
) -> Site | None:
    kind = type(module)
    if kind in _TWINS or _is_conv1d(module) or isinstance(module, _DENSE):
        reason = _obstacle(module, allow)
        return Site(module, names, None if reason else _twin(kind), reason, whole)
    if isinstance(module, tuple(OPENED)):
        return Site(module, names, None, _fused_obstacle(module, allow))
    if isinstance(module, nn.EmbeddingBag):
        return Site(module, names, None, "it sums rows while it looks them up; no PH layer does")
    if "quantized" in kind.__module__ and {"weight", "_all_weight_values"} & set(dir(module)):
        return Site(module, names, None, "quantized; convert first, then quantize")
    return None


def _open(module: nn.Module, names: tuple[str, ...], allow: Collection[str]) -> Whole | None:
    """Return an opened layer; None where there are no several matrices, or an obstacle."""
    kind = next((kind for kind in OPENED if isinstance(module, kind)), None)
    if kind is None or _fused_obstacle(module, allow):
        return None
    opened: Callable[[nn.Module], Opened] = OPENED[kind]
    return Whole(opened(module), names)


def _fused_obstacle(module: nn.Module, allow: Collection[str]) -> str:
    """Say why a layer with several matrices cannot be replaced; nothing when it can."""
    kind = type(module)
    if has_own_forward(module):
        return "its forward was replaced; what it adds is unknown"
    if kind not in OPENED and kind.__name__ not in allow:
        return f"{kind.__name__} is a subclass; what it adds is unknown (allow= can name it)"
    names: Sequence[str] = getattr(module, "_flat_weights_names", ("weight_ih", "weight_hh"))
    if isinstance(module, nn.MultiheadAttention):
        names = ("in_proj_weight", "in_proj_bias", *(f"{x}_proj_weight" for x in "qkv"))
    if not module._parameters.keys() >= set(names):
        return "its weight is computed (weight_norm, pruning, …); remove that first"
    dtypes = {parameter.dtype for parameter in module.parameters(recurse=False)}
    if not all(dtype.is_floating_point for dtype in dtypes):
        return f"its weights are {dtypes.pop()}, not real floating-point"
    return ""


def _obstacle(module: nn.Module, allow: Collection[str]) -> str:
    """Say why a dense layer cannot be replaced; nothing when it can."""
    kind = type(module)
    if isinstance(module, _DENSE) and not holds_weight(module):
        return "its weight is computed (weight_norm, pruning, …); remove that first"
    if isinstance(module, _DENSE) and has_own_forward(module):
        return "its forward was replaced; what it adds is unknown"
    if kind not in _TWINS and not _is_conv1d(module) and kind.__name__ not in allow:
        return f"{kind.__name__} is a subclass; what it adds is unknown (allow= can name it)"
    weight = module.get_parameter("weight")
    if not weight.numel():
        return f"its weight {tuple(weight.shape)} is empty"
    if not weight.dtype.is_floating_point:
        return f"its weight is {weight.dtype}, not real floating-point"
    padding = getattr(module, "padding_idx", None)
    if padding is not None and holds_numbers(weight) and weight[padding].any():
        return f"its padding row {padding} is not zero, and that of PHEmbedding is"
    return ""


def _twin(kind: type[nn.Module]) -> type[ph.PHLayer]:
    """Return the PH class for a type, or for the torch class that it is a subclass of."""
    return next((_TWINS[base] for base in kind.__mro__ if base in _TWINS), ph.PHLinear)


def holds_weight(layer: nn.Module) -> bool:
    """Return whether weight and bias are parameters of the layer, not computed by a hook."""
    names = {"weight"} if isinstance(layer, nn.Embedding) else {"weight", "bias"}
    return names <= layer._parameters.keys()


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


def check_model(model: object, function: str) -> None:
    """Raise an error for what is no model, and say how to make one of it.

    Args:
        model: What was given.
        function: The function that takes a model.

    Example:
        >>> check_model(3, "convert")
        Traceback (most recent call last):
        TypeError: convert takes a torch.nn.Module, got an object of the type int
    """
    if isinstance(model, nn.Module):
        return
    if isinstance(model, str):
        given = (
            f"the string {model!r}; build a network with phnn.create_model({model!r}), or load a "
            f"file with phnn.load({model!r})"
        )
    elif isinstance(model, type):
        given = f"the class {model.__name__}; make an object of it first: {model.__name__}(...)"
    else:
        given = f"an object of the type {type(model).__name__}"
    raise TypeError(f"{function} takes a torch.nn.Module, got {given}")


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
