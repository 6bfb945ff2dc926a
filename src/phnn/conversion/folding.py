"""PH layers back to plain torch layers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Container, Iterable, Sequence
from typing import get_args

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from phnn.conversion.report import Entry, Report
from phnn.conversion.sites import (
    PH_LAYERS,
    Site,
    check_whole,
    find_folds,
    has_own_forward,
    holds_weight,
    hooks,
    replace_modules,
)
from phnn.forms.norms import Norm, PlainLayer, fuse
from phnn.nn import PHEmbedding, PHLayer, PHLinear, PHMultiheadAttention

# exactly these fuse: a subclass may compute its weight anew, or add an activation to the norm
_PLAIN = {*get_args(Norm), *PH_LAYERS, *(layer.dense_type for layer in PH_LAYERS)}


@torch.inference_mode(False)
def to_dense(model: nn.Module, *, fuse: bool = False, inplace: bool = False) -> nn.Module:
    """Replace every PH layer by the torch layer that computes the same.

    Names do not change, so `to_dense(convert(model, n=4))` has the keys of `model`.

    Args:
        model: Any model; without PH layers it is only copied.
        fuse: Also multiply batch norms into the convolutions and linear layers before them; the
            model must be in evaluation mode and traceable by `torch.fx`. The norms become
            `nn.Identity`. A linear layer before a `BatchNorm1d` is taken to give (batch, features).
        inplace: Change the model itself instead of a copy.

    Returns:
        The model. Its `phnn_report` says what was done to each layer and prints as a table.
    """
    if fuse and model.training:
        raise ValueError("batch norms fuse in evaluation mode only; call model.eval() first")
    check_whole(model)
    graphs = trace(model) if fuse else ()  # before anything is changed
    before = sum(parameter.numel() for parameter in model.parameters())
    sites = find_folds(model)
    layers = fold_layers(model, sites)
    entries = [_entry(site, layers.get(site.name, site.module)) for site in sites]
    folded = replace_modules(model, sites, layers, inplace)
    if graphs:
        entries += fuse_batch_norms(folded, graphs)
    after = sum(parameter.numel() for parameter in folded.parameters())
    folded.phnn_report = Report(tuple(entries), before, after)  # type: ignore[assignment]
    return folded


def fold_layers(model: nn.Module, sites: Iterable[Site]) -> dict[str, nn.Module]:
    """Return the dense layers of those that fold, by name.

    Where the algebra and F are shared, so is the weight.
    """
    weights: dict[tuple[object, ...], Tensor] = {}
    layers: dict[str, nn.Module] = {}
    for site in sites:
        if site.reason:
            continue
        fold: Callable[[], nn.Module] = site.module.to_dense  # type: ignore[assignment]
        dense = layers[site.name] = fold()
        if not isinstance(site.module, PHLayer):
            continue
        if serves_attention(model, site):
            dense.__class__ = NonDynamicallyQuantizableLinear
        dense.weight = weights.setdefault(weight_key(site.module), dense.get_parameter("weight"))
    return layers


def weight_key(layer: PHLayer) -> tuple[object, ...]:
    """Return what is equal for layers that share their algebra and F, and so their weight.

    A table and a linear layer can do so, unless the table masks a row.
    """
    # an A or F that is computed (weight_norm) is another tensor each time, and never shared
    state = {**layer._parameters, **layer._buffers}
    # of a fixed algebra the value: its tensor is another one after a move
    names = layer.algebra_names if layer.learns_algebra else ()
    rule: list[object] = [id(state.get(name, layer)) for name in names] or [layer.algebra]
    is_matrix = isinstance(layer, PHLinear | PHEmbedding)
    kind = PHLinear if is_matrix else type(layer)
    masked = getattr(layer, "padding_idx", None)
    return (kind, layer.groups, masked, *rule, id(state.get("F", layer)))


def serves_attention(model: nn.Module, site: Site) -> bool:
    """Return whether torch's attention reads the weight itself, and needs it not to be quantized.

    An encoder layer does so, too, with those of its feed-forward part, and of its attention.
    """
    readers = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
    for name in site.names:
        parent = name.rpartition(".")[0]
        if isinstance(model.get_submodule(parent), PHMultiheadAttention):
            parent = parent.rpartition(".")[0]
        if isinstance(model.get_submodule(parent), readers):
            return True
    return False


def _entry(site: Site, dense: nn.Module) -> Entry:
    size = sum(parameter.numel() for parameter in dense.parameters())
    before, after = type(site.module).__name__, type(dense).__name__
    lost = [] if site.reason else list(hooks(site.module))
    note = f"lost its {', '.join(lost)}" if lost else site.reason
    return Entry(site.name, before, after, site.parameters, size, note=note)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Look into containers only: a layer's own code may not be traceable."""
        return next(m.children(), None) is None or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> tuple[fx.Graph, ...]:
    """Trace the calls of a model: with every argument given, and without optional ones.

    A model may do something else where an argument is left out.
    """
    try:
        others = list(inspect.signature(model.forward).parameters.values())[1:]
        absent = {other.name: None for other in others if other.default is None}
        given = _Tracer().trace(_skeleton(model))
        if not absent:
            return (given,)
        return given, _Tracer().trace(_skeleton(model), concrete_args=absent)
    except Exception as error:
        raise ValueError(
            f"torch.fx cannot trace this model, so what feeds a batch norm is unknown ({error}); "
            "use fuse=False"
        ) from error


def _skeleton(model: nn.Module) -> nn.Module:
    """Return a copy that shares the tensors: what forward keeps in the model stays in the copy."""
    tensors: dict[int, object] = {}
    for module in model.modules():
        held = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
        tensors.update((id(value), value) for value in held if isinstance(value, Tensor))
    return copy.deepcopy(model, tensors)


def fuse_batch_norms(
    model: nn.Module, graphs: Sequence[fx.Graph], besides: Container[nn.Module] = ()
) -> list[Entry]:
    """Fuse the norms that follow a plain torch layer, besides some layers."""
    entries = []
    for name, target in find_norms(model, graphs).items():
        layer, norm = model.get_submodule(name), model.get_submodule(target)
        if not isinstance(layer, PlainLayer) or layer in besides:
            continue
        assert isinstance(norm, Norm)
        entries.append(
            Entry(
                name=target,
                before=type(norm).__name__,
                after="Identity",
                parameters_before=sum(parameter.numel() for parameter in norm.parameters()),
                parameters_after=0,
                note=f"fused into {name}",
            )
        )
        fuse(layer, norm)
        parent, _, child = target.rpartition(".")
        setattr(model.get_submodule(parent), child, nn.Identity())
    return entries


def find_norms(model: nn.Module, graphs: Sequence[fx.Graph]) -> dict[str, str]:
    """Return each norm by the layer that is its only input and feeds nothing else."""
    first, *others = (_find_norms(model, graph) for graph in graphs)
    return {
        layer: norm
        for layer, norm in first.items()
        if all(other.get(layer) == norm for other in others)
    }


def _find_norms(model: nn.Module, graph: fx.Graph) -> dict[str, str]:
    calls: dict[str, int] = {}
    read = set()  # modules whose parameters the model uses itself
    for node in graph.nodes:
        if node.op == "call_module":
            calls[node.target] = calls.get(node.target, 0) + 1
        elif node.op == "get_attr":
            read.add(node.target.rpartition(".")[0])
    norms: dict[str, str] = {}
    for node in graph.nodes:
        norm, layer = _module(model, node), _module(model, node.args[0] if node.args else None)
        if not isinstance(norm, Norm) or not isinstance(layer, PlainLayer | PHLayer):
            continue
        source = node.args[0]
        alone = len(source.users) == calls[node.target] == calls[source.target] == 1
        alone = alone and read.isdisjoint((node.target, source.target))
        if alone and _is_plain(layer, norm) and _count_outputs(layer) == norm.num_features:
            norms[source.target] = node.target
    return norms


def _count_outputs(layer: PlainLayer | PHLayer) -> int:
    """Return the channels of a convolution, or the features of a linear layer: its last axis.

    Of (batch, positions, features) a norm takes the positions.
    """
    return int(getattr(layer, "out_features", None) or layer.out_channels)  # type: ignore[arg-type]


def _module(model: nn.Module, node: object) -> nn.Module | None:
    if isinstance(node, fx.Node) and node.op == "call_module":
        return model.get_submodule(str(node.target))
    return None


def _is_plain(layer: PlainLayer | PHLayer, norm: Norm) -> bool:
    """Return whether the two do what their types say and nothing else."""
    constant = not norm.training and norm.running_mean is not None
    unhooked = not any((*hooks(layer), *hooks(norm)))
    own = holds_weight(norm) and (isinstance(layer, PHLayer) or holds_weight(layer))
    kept = not has_own_forward(layer) and not has_own_forward(norm)
    return constant and unhooked and own and kept and {type(layer), type(norm)} <= _PLAIN
