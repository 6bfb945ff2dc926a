"""PH layers back to plain torch layers."""

from __future__ import annotations

from typing import TypeAlias

from torch import fx, nn

from phnn.nn import PHLayer
from phnn.surgery.report import Entry, Report
from phnn.surgery.slots import Slot, replace_modules

_Norm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
_Layer: TypeAlias = nn.Linear | nn.modules.conv._ConvNd
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def to_dense(model: nn.Module, *, fuse: bool = False, inplace: bool = False) -> nn.Module:
    """Replaces every PH layer by the torch layer that computes the same.

    Names do not change, so `to_dense(convert(model, n=4))` has the keys of `model`.

    Args:
        model: Any model; without PH layers it is only copied.
        fuse: Also multiply batch norms into the convolutions and linear layers before them; the
            model must be in evaluation mode and traceable by `torch.fx`. The norms become
            `nn.Identity`.
        inplace: Change the model itself instead of a copy.

    Returns:
        The model. Its `phnn_report` says what was done to each layer and prints as a table.
    """
    if fuse and model.training:
        raise ValueError("batch norms fuse in evaluation mode only; call model.eval() first")
    before = sum(parameter.numel() for parameter in model.parameters())
    slots: dict[int, Slot] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, PHLayer):
            slots.setdefault(id(module), Slot(module, [], None)).names.append(name)
    layers = {slot.name: slot.module.to_dense() for slot in slots.values()}  # type: ignore[operator]
    entries = [_entry(slot, layers[slot.name]) for slot in slots.values()]
    folded = replace_modules(model, list(slots.values()), layers, inplace)
    if fuse:
        entries += _fuse_batch_norms(folded)
    after = sum(parameter.numel() for parameter in folded.parameters())
    folded.phnn_report = Report(tuple(entries), before, after)  # type: ignore[assignment]
    return folded


def _entry(slot: Slot, dense: nn.Module) -> Entry:
    size = sum(parameter.numel() for parameter in dense.parameters())
    before, after = type(slot.module).__name__, type(dense).__name__
    return Entry(slot.name, before, after, slot.parameters, size)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Only containers are looked into: a layer's own code may not be traceable."""
        return next(m.children(), None) is None or super().is_leaf_module(m, module_qualified_name)


def _fuse_batch_norms(model: nn.Module) -> list[Entry]:
    """Fuses each norm whose only input is a layer that feeds nothing else."""
    try:
        graph = _Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"torch.fx cannot trace this model, so what feeds a batch norm is unknown ({error}); "
            "use fuse=False"
        ) from error
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[node.target] = calls.get(node.target, 0) + 1
    entries = []
    for node in graph.nodes:
        norm, layer = _module(model, node), _module(model, node.args[0] if node.args else None)
        if not isinstance(norm, _Norm) or not isinstance(layer, _Layer):
            continue
        source = node.args[0]
        alone = len(source.users) == calls[node.target] == calls[source.target] == 1
        if not alone or norm.running_mean is None:
            continue
        entries.append(
            Entry(
                name=node.target,
                before=type(norm).__name__,
                after="Identity",
                parameters_before=sum(parameter.numel() for parameter in norm.parameters()),
                parameters_after=0,
                note=f"fused into {source.target}",
            )
        )
        _fuse(layer, norm)
        parent, _, child = node.target.rpartition(".")
        setattr(model.get_submodule(parent), child, nn.Identity())
    return entries


def _module(model: nn.Module, node: object) -> nn.Module | None:
    if isinstance(node, fx.Node) and node.op == "call_module":
        return model.get_submodule(str(node.target))
    return None


def _fuse(layer: _Layer, norm: _Norm) -> None:
    """Multiplies the scale of the norm into the weight, and its shift into the bias."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight
    shift = norm.running_mean.neg() * scale
    shift = shift if norm.bias is None else shift + norm.bias
    weight = layer.weight
    inner = (1,) * (weight.dim() - 2)
    if isinstance(layer, _TRANSPOSED):  # (in, out/groups, *k): the outputs of each group in axis 1
        outputs = scale.view(layer.groups, 1, -1, *inner)
        fused = (weight.unflatten(0, (layer.groups, -1)) * outputs).flatten(0, 1)
    else:
        fused = weight * scale.view(-1, 1, *inner)
    bias = shift if layer.bias is None else layer.bias * scale + shift
    layer.weight = nn.Parameter(fused.detach(), requires_grad=weight.requires_grad)
    layer.bias = nn.Parameter(bias.detach(), requires_grad=weight.requires_grad)
