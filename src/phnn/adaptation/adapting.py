"""Adapters: added to a model, switched, removed, and folded into it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from torch import nn

from phnn.adaptation.adapters import Adapter, adapted_layers, find_adapter, list_adapters
from phnn.algebra import Algebra
from phnn.conversion.decisions import Patterns, check_patterns, matches
from phnn.conversion.sites import PH_LAYERS, Site, check_model, find_sites, owners, replace_modules
from phnn.conversion.specs import LayerSpec
from phnn.nn import PHLayer
from phnn.nn.delta import AdaptedLayer, make_delta
from phnn.structure import Dimension, Structure, show_dimension

__all__ = ["adapt", "install", "merge", "remove_adapter", "use_adapter"]

Model = TypeVar("Model", bound=nn.Module)


def adapt(
    model: Model,
    n: Dimension | None = None,
    *,
    terms: int | None = None,
    algebra: Algebra | str | None = None,
    learn_algebra: bool | None = None,
    filter_rank: int | None = None,
    share_algebra: bool = False,
    dropout: float = 0.0,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    allow: Sequence[str] = (),
    name: str = "default",
    inplace: bool = False,
) -> Model:
    r"""Freeze a model and give layers a PH delta that learns, :math:`\sum_i A_i \otimes F_i`.

    The delta is zero at the start, so the adapted model computes what the model does. Linear layers
    and convolutions can be adapted. `merge` folds the delta in; `phnn.save_adapter` writes the
    delta alone.

    Args:
        model: Any model; its parameters are frozen.
        n: Dimension of the deltas' algebras: a number, or a pair (n_out, n_in). n = (1, 1) with one
            term and `filter_rank=r` is LoRA of rank r.
        terms: Number of Kronecker terms, n by default; required for pairs.
        algebra: A known algebra, or its name. `"cyclic(8)"` makes the delta block-circulant.
        learn_algebra: Whether the algebras are learned; by default exactly when none is given.
        filter_rank: Each filter is a product of two factors of this rank, as in Compacter.
        share_algebra: One A for all layers, as in Compacter.
        dropout: Dropout of what the deltas receive, in training.
        include: Names to adapt, all by default: a pattern, several, or a function of name and
            module.
        exclude: Names to leave alone, in the same forms.
        allow: Class names of subclasses that compute what their torch class does.
        name: Of the adapter; a model can have several, and uses the last one that was added.
        inplace: Change the model itself instead of a copy.

    Returns:
        The model. `list_adapters(model)[name]` says what learns, and prints as a table.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        >>> adapted = adapt(model, n=(8, 8), terms=2, include="0")
        >>> sum(p.numel() for p in adapted.parameters() if p.requires_grad)
        256
        >>> x = torch.randn(2, 64)
        >>> torch.equal(adapted(x), model(x))
        True
    """
    check_model(model, "adapt")
    structure = Structure.of(n, terms=terms, algebra=algebra, learn_algebra=learn_algebra)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got dropout={dropout}")
    if name in list_adapters(model):
        raise ValueError(
            f"the model is already adapted by {name!r}; give another name=, or call "
            f"phnn.remove_adapter(model, {name!r}) first"
        )
    bare = _bare(model)
    sites = find_sites(bare, allow)
    check_patterns(sites, include=include, exclude=exclude)
    left_alone: dict[str, str] = {}
    specs: dict[str, LayerSpec] = {}
    names = owners(bare)
    for site in sites:
        if site.is_part or (exclude is not None and matches(site, exclude)):
            continue
        if include is not None and not matches(site, include):
            continue
        reason = _obstacle(site, structure, names)
        if not reason:
            assert site.twin is not None
            specs[site.name] = LayerSpec.of_structure(site.twin.__name__, structure)
            continue
        if "quantized" in reason or (include is not None and not callable(include)):
            raise ValueError(f"{site.name} cannot be adapted: {reason}; exclude= leaves it alone")
        left_alone[site.name] = reason
    if not specs:
        reasons = "; ".join(f"{k}: {reason}" for k, reason in list(left_alone.items())[:6])
        none = "the model has no linear layer or convolution of torch"
        if any(isinstance(module, PHLayer) for module in bare.modules()):
            none += "; phnn.to_dense(model) makes them of its PH layers"
        raise ValueError(f"no layer can be adapted: {reasons or none}")
    adapter = Adapter(specs, filter_rank, share_algebra, dropout, 0, 0, left_alone)
    return install(model, name, adapter, inplace=inplace, allow=allow)


def install(
    model: Model, name: str, adapter: Adapter, *, inplace: bool, allow: Sequence[str] = ()
) -> Model:
    """Add an adapter to a model, and use it.

    Args:
        model: The model.
        name: Of the adapter.
        adapter: What to add; its counts are filled in.
        inplace: Change the model itself instead of a copy.
        allow: Class names of subclasses that compute what their torch class does.
    """
    if not name or "." in name:
        raise ValueError(f"the name of an adapter must have letters and no dot, got {name!r}")
    if "" in adapter.layers:
        raise ValueError(f"{type(model).__name__} is itself the layer; put it into a Sequential")
    present = adapted_layers(model)
    sites = {site.name: site for site in find_sites(_bare(model), allow)}
    shared: dict[object, PHLayer] = {}
    deltas: dict[str, PHLayer] = {}
    for layer, spec in adapter.layers.items():
        if layer not in sites:
            raise ValueError(f"the model has no layer {layer!r} that can be adapted")
        site = sites[layer]
        if site.twin is None or site.twin.__name__ != spec.kind:
            raise ValueError(
                f"{layer}: a {spec.kind} cannot be added to {type(site.module).__name__}"
            )
        try:
            delta = make_delta(site.twin, site.dense, spec.structure, adapter.filter_rank)
        except ValueError as error:
            raise ValueError(f"{layer}: {error}") from None
        weight = site.weight
        if adapter.share_algebra and delta.learns_algebra:
            first = shared.setdefault((spec.structure, weight.device, weight.dtype), delta)
            for letter in delta.algebra_names:
                setattr(delta, letter, getattr(first, letter))
        deltas[layer] = delta
    if not inplace:
        model = copy.deepcopy(model)
        present = adapted_layers(model)
    total = sum(p.numel() for p in model.parameters()) - sum(
        p.numel() for layer in present.values() for p in layer.deltas.parameters()
    )
    if not present:
        learned = [key for key, p in model.named_parameters() if p.requires_grad]
        model.phnn_learned = tuple(learned)  # type: ignore[assignment]
    missing = {layer: model.get_submodule(layer) for layer in deltas if layer not in present}
    new = {layer: AdaptedLayer(module) for layer, module in missing.items()}
    changed = [Site(module, sites[layer].names, None) for layer, module in missing.items()]
    replace_modules(model, changed, new, inplace=True)
    for layer, delta in deltas.items():
        adapted = new[layer] if layer in new else present[layer]
        adapted.deltas[name] = delta
        adapted.dropouts[name] = adapter.dropout
    size = sum({id(p): p.numel() for d in deltas.values() for p in d.parameters()}.values())
    filled = replace(adapter, parameters=size, model_parameters=total)
    model.phnn_adapters = {**list_adapters(model), name: filled}  # type: ignore[assignment]
    return use_adapter(model, name)


def use_adapter(model: Model, name: str | None) -> Model:
    """Use one of the adapters of a model, or none; only its parameters learn.

    Args:
        model: An adapted model, which is changed in place.
        name: Of the adapter; None for the model without any.

    Returns:
        The same model.
    """
    if name is not None or not list_adapters(model):
        find_adapter(model, name or "")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in adapted_layers(model).values():
        layer.active = None if name is None or name not in layer.deltas else name
        delta = layer.delta
        if delta is not None:
            for parameter in delta.parameters():
                parameter.requires_grad_(True)
    return model


def remove_adapter(model: Model, name: str) -> Model:
    """Remove an adapter from a model, in place; without any the model is as it was before.

    Args:
        model: An adapted model.
        name: Of the adapter.

    Returns:
        The same model, which uses none if this one was in use.
    """
    find_adapter(model, name)
    layers = adapted_layers(model)
    for layer in layers.values():
        if name in layer.deltas:
            del layer.deltas[name]
            layer.dropouts.pop(name, None)
            layer.active = None if layer.active == name else layer.active
    left = {k: adapter for k, adapter in list_adapters(model).items() if k != name}
    model.phnn_adapters = left  # type: ignore[assignment]
    _unwrap(model, {k: layer.base for k, layer in layers.items() if not len(layer.deltas)})
    return model


def merge(model: Model, *, inplace: bool = False) -> Model:
    """Fold the adapter in use into the weights of a model.

    The result has the layers and the keys that the model had before `adapt`, and learns what it
    learned then.

    Args:
        model: An adapted model.
        inplace: Change the model itself instead of a copy.

    Returns:
        The model.
    """
    active = {layer.active for layer in adapted_layers(model).values()} - {None}
    names = list_adapters(model)
    if not names:
        find_adapter(model, "")
    if not active:
        raise ValueError(
            f"no adapter is in use, so there is nothing to merge; phnn.use_adapter(model, name) "
            f"chooses one of {', '.join(map(repr, names))}"
        )
    others = [name for name in names if name not in active]
    if others:
        raise ValueError(
            f"merging {', '.join(map(repr, sorted(map(str, active))))} changes the weights that "
            f"{', '.join(map(repr, others))} was made for; phnn.remove_adapter takes it out first"
        )
    if not inplace:
        model = copy.deepcopy(model)
    model.phnn_adapters = {}  # type: ignore[assignment]
    _unwrap(model, {k: layer.merge() for k, layer in adapted_layers(model).items()})
    return model


def _unwrap(model: nn.Module, bases: Mapping[str, nn.Module]) -> None:
    """Put layers back where adapted ones are; if none is left, let learn what learned before."""
    wrapped = {id(model.get_submodule(name)): base for name, base in bases.items()}
    for key, module in list(model.named_modules(remove_duplicate=False)):
        if id(module) in wrapped:
            parent, _, child = key.rpartition(".")
            setattr(model.get_submodule(parent), child, wrapped[id(module)])
    if not list_adapters(model):
        learned = set(cast("tuple[str, ...]", model.phnn_learned))
        for key, parameter in model.named_parameters():
            parameter.requires_grad_(key in learned)
        del model.phnn_adapters, model.phnn_learned


def _bare(model: nn.Module) -> nn.Module:
    """Return the model with its layers in place of adapted ones; it shares their tensors."""
    layers = adapted_layers(model)
    if not layers:
        return model
    memo: dict[int, object] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    memo |= {id(layer): layer.base for layer in layers.values()}
    return copy.deepcopy(model, memo)


def _obstacle(site: Site, structure: Structure, names: Mapping[int, list[str]]) -> str:
    """Say why a layer cannot be adapted; nothing when it can."""
    if site.twin is None:
        return site.reason.replace("convert first", "adapt first")
    if site.twin not in PH_LAYERS:
        return f"{type(site.module).__name__} is neither a linear layer nor a convolution"
    if site.dense is not site.module:
        return f"{type(site.module).__name__} holds its weight transposed"
    own = {f"{name}.weight".lstrip(".") for name in site.names}
    tied = [key for key in names[id(site.module.get_parameter("weight"))] if key not in own]
    if tied:
        return f"its weight is tied to {', '.join(tied)}"
    first, second = site.weight.shape[0] // site.groups, site.weight.shape[1]
    out, inputs = (second, first) if site.transposed else (first, second)
    if out % structure.n_out or inputs % structure.n_in:
        inner = " of each group" if site.groups > 1 else ""
        return (
            f"n={show_dimension(structure.n)} does not divide its {out} outputs and {inputs} "
            f"inputs{inner}"
        )
    return ""
