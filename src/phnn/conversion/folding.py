"""PH layers back to plain torch layers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, TypeVar, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from phnn.conversion.calibration import call_model
from phnn.conversion.feeding import Feeds, find_feeds
from phnn.conversion.pretrained import guard
from phnn.conversion.report import Entry, Report
from phnn.conversion.sites import (
    PH_LAYERS,
    Site,
    check_model,
    check_whole,
    find_folds,
    has_own_forward,
    holds_weight,
    hooks,
    replace_modules,
    require_sizes,
)
from phnn.forms.norms import Norm, PlainLayer, fuse
from phnn.nn import PHEmbedding, PHLayer, PHLinear, PHMultiheadAttention

Model = TypeVar("Model", bound=nn.Module)

# exactly these fuse: a subclass may compute its weight anew, or add an activation to the norm
_PLAIN = {*get_args(Norm), *PH_LAYERS, *(layer.dense_type for layer in PH_LAYERS)}


@torch.inference_mode(False)
def to_dense(
    model: Model, *, fuse: bool = False, example_input: Any = None, inplace: bool = False
) -> Model:
    """Replace every PH layer by the torch layer that computes the same.

    Names do not change, so `to_dense(convert(model, n=4))` has the keys of `model`.

    Args:
        model: Any model; without PH layers it is only copied.
        fuse: Also multiply batch norms into the convolutions and linear layers before them; the
            model must be in evaluation mode. The norms become `nn.Identity`. A linear layer before
            a `BatchNorm1d` is taken to give (batch, features).
        example_input: For fuse, if `torch.fx` cannot trace the model: it is run on this, a tensor,
            a tuple of arguments or a dict of named ones, to see which layers feed a norm alone.
            The model must call its layers in the same way for other inputs.
        inplace: Change the model itself instead of a copy.

    Returns:
        The model. Its `phnn_report` says what was done to each layer and prints as a table.
    """
    check_model(model, "to_dense")
    if fuse and model.training:
        raise ValueError("batch norms fuse in evaluation mode only; call model.eval() first")
    check_whole(model)
    require_sizes(model)
    run = None if example_input is None else lambda model: call_model(model, example_input)
    feeds = find_feeds(model, run) if fuse else Feeds()  # before anything is changed
    before = sum(parameter.numel() for parameter in model.parameters())
    sites = find_folds(model)
    layers = fold_layers(model, sites)
    entries = [_entry(site, layers.get(site.name, site.module)) for site in sites]
    folded = replace_modules(model, sites, layers, inplace)
    entries += fuse_batch_norms(folded, feeds)
    guard(folded)
    after = sum(parameter.numel() for parameter in folded.parameters())
    folded.phnn_report = Report(tuple(entries), before, after)  # type: ignore[assignment]
    return cast(Model, folded)


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


def fuse_batch_norms(
    model: nn.Module, feeds: Feeds, besides: Container[nn.Module] = ()
) -> list[Entry]:
    """Fuse the norms that follow a plain torch layer, besides some layers."""
    entries = []
    norms = find_norms(model, feeds)
    order = [name for name, _ in model.named_modules() if name in norms]
    for name, target in ((name, norms[name]) for name in order):
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


def find_norms(model: nn.Module, feeds: Feeds) -> dict[str, str]:
    """Return each norm that can be fused, by the layer that feeds it."""
    norms: dict[str, str] = {}
    for source, target in feeds:
        layer, norm = model.get_submodule(source), model.get_submodule(target)
        if not isinstance(norm, Norm) or not isinstance(layer, PlainLayer | PHLayer):
            continue
        if _is_plain(layer, norm) and _count_outputs(layer) == norm.num_features:
            norms[source] = target
    return norms


def _count_outputs(layer: PlainLayer | PHLayer) -> int:
    """Return the channels of a convolution, or the features of a linear layer: its last axis.

    Of (batch, positions, features) a norm takes the positions.
    """
    return int(getattr(layer, "out_features", None) or layer.out_channels)  # type: ignore[arg-type]


def _is_plain(layer: PlainLayer | PHLayer, norm: Norm) -> bool:
    """Return whether the two do what their types say and nothing else."""
    constant = not norm.training and norm.running_mean is not None
    unhooked = not any((*hooks(layer), *hooks(norm)))
    own = holds_weight(norm) and (isinstance(layer, PHLayer) or holds_weight(layer))
    kept = not has_own_forward(layer) and not has_own_forward(norm)
    return constant and unhooked and own and kept and {type(layer), type(norm)} <= _PLAIN
