"""A model as it runs on an example, before anything of it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import nn

from phnn.acceleration.calls import Call, find_reads, record_calls
from phnn.conversion.feeding import Feeds, find_feeds
from phnn.conversion.folding import find_norms, fuse_batch_norms, serves_attention
from phnn.conversion.sites import PH_LAYERS, Site, find_folds, find_ph_sites, replace_modules
from phnn.forms import Source
from phnn.forms.norms import Norm
from phnn.functional._formats import CHANNELS_LAST
from phnn.nn import PHEmbedding, PHLayer
from phnn.nn._matrices import PHMatrices
from phnn.runtimes.nested import copy_tensors, leaves, split_arguments


@dataclass(frozen=True)
class ObservedLayer:
    """A PH layer of a model, and what it receives.

    Attributes:
        site: The layer and its names.
        placeholder: What stands for it in a copy of the model.
        source: What its forms are built from.
        calls: The inputs that it receives, and how often.
        hindrance: Why it can only be folded; empty when it need not.
        declined: Why it has no CP decomposition, or none of use; empty while it may.
        serves_attention: Whether torch's attention reads its weight.
    """

    site: Site
    placeholder: nn.Module
    source: Source
    calls: Counter[Call]
    hindrance: str = ""
    declined: str = ""
    serves_attention: bool = False

    @property
    def name(self) -> str:
        """Its first name in the model."""
        return self.site.name

    @property
    def layer(self) -> PHLayer:
        """The layer itself."""
        return self.source.layer

    @property
    def has_format(self) -> bool:
        """Whether it can have the channels of its inputs last in memory."""
        return self.layer.F.dim() in CHANNELS_LAST and any(call.has_format for call in self.calls)


@dataclass(frozen=True)
class Observation:
    """A model, an example, and what was seen of both.

    Attributes:
        model: The model.
        args: The arguments of the example, by order.
        kwargs: Those by name.
        expected: What the model returns for them.
        layers: Its PH layers.
        base: A copy of the model with a placeholder for each PH layer, in which the batch norms
            after other layers are fused.
        fused: Number of these norms.
        notes: What else there is to know.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expected: Any
    layers: tuple[ObservedLayer, ...]
    base: nn.Module
    fused: int
    notes: tuple[str, ...] = field(default=())

    @property
    def sites(self) -> list[Site]:
        """The layers and their names."""
        return [layer.site for layer in self.layers]


def observe(model: nn.Module, example: Any, fuse: bool) -> Observation:
    """Run a model on an example, and find its PH layers and what stands around them.

    Args:
        model: A model in evaluation mode; it is not changed.
        example: What it runs on.
        fuse: Whether batch norms may become part of the layers before them.
    """
    found = [site for site in find_ph_sites(model) if not isinstance(site.module, PHEmbedding)]
    folded = find_folded(model)
    sites = [site for site in found if not site.reason]
    notes = [f"{site.name} is left alone: {site.reason}" for site in found if site.reason]
    if not sites:
        others = "fuses batch norms alone"
        if folded:
            others = "folds recurrent layers and embeddings"
        raise ValueError(
            f"{type(model).__name__} has no PH layers to accelerate; phnn.convert makes them, and "
            f"phnn.to_dense(model, fuse=True) {others}" + "".join(f"; {note}" for note in notes)
        )
    if folded:
        notes.append(f"{', '.join(folded)} folded, as nothing else pays")
    args, kwargs = split_arguments(example)
    expected, calls = record_calls(model, sites, args, kwargs)
    if not leaves(expected):
        raise ValueError(
            f"the model returns {type(expected).__name__}, which holds no tensors to compare"
        )
    read = find_reads(model, sites, args, kwargs)
    placeholders = {site.name: _placeholder(_layer_of(site)) for site in sites}
    base = replace_modules(model, sites, placeholders, inplace=False)
    feeds, note = _find_feeds(model, args, kwargs) if fuse else (Feeds(), "")
    norms = _find_norms(base, sites, feeds)
    fused = fuse_batch_norms(base, feeds, besides=placeholders.values())
    layers = tuple(
        ObservedLayer(
            site=site,
            placeholder=placeholders[site.name],
            source=Source(_layer_of(site), norm=norms.get(site.name)),
            calls=calls[site.name],
            hindrance=_find_hindrance(model, site, calls[site.name], read.get(site.name)),
            serves_attention=serves_attention(model, site),
        )
        for site in sites
    )
    notes = [note, *notes] if note else notes
    return Observation(model, args, kwargs, expected, layers, base, len(fused), tuple(notes))


def find_folded(model: nn.Module) -> dict[str, PHMatrices | PHEmbedding]:
    """Return the recurrent layers and embeddings by name; they have no form but the folded one.

    torch's kernels take whole matrices, and a lookup has no products to save.
    """
    return {
        site.name: site.module
        for site in find_folds(model)
        if isinstance(site.module, PHMatrices | PHEmbedding) and not site.reason
    }


def _layer_of(site: Site) -> PHLayer:
    assert isinstance(site.module, PHLayer)
    return site.module


def _placeholder(layer: PHLayer) -> nn.Module:
    """Return the plain layer that a layer folds to, without numbers.

    What a subclass folds to by itself is unknown.
    """
    if type(layer).to_dense is not PHLayer.to_dense:
        return nn.Identity()
    arguments = {name: getattr(layer, name) for name in layer.dense_args}
    has_bias = layer.bias is not None
    plain = layer.dense_type(**arguments, bias=has_bias, device="meta", dtype=layer.F.dtype)
    return plain.train(layer.training)


def _find_feeds(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Feeds, str]:
    """Return which layers feed a batch norm alone, and what to know of it."""
    try:
        return find_feeds(
            model, lambda model: model(*copy_tensors(args), **copy_tensors(kwargs))
        ), ""
    except Exception as error:  # of somebody's model, which runs without being watched
        reason = (str(error).splitlines() or [""])[0]
        return Feeds(), f"no batch norms fused, as what feeds them is unknown ({reason})"


def _find_norms(model: nn.Module, sites: Sequence[Site], feeds: Feeds) -> dict[str, Norm]:
    """Return the norm that fuses with each layer, by the first name of the layer."""
    norms = find_norms(model, feeds)
    return {
        site.name: cast("Norm", model.get_submodule(norms[name]))
        for site in sites
        for name in site.names
        if name in norms
    }


def _find_hindrance(model: nn.Module, site: Site, calls: Counter[Call], read: str | None) -> str:
    """Return why a layer can only be folded; empty when it need not."""
    layer = _layer_of(site)
    if serves_attention(model, site):
        return "read by torch's attention"
    if read is not None:
        return f"the model reads its {read}"
    if type(layer) not in PH_LAYERS:
        return f"{type(layer).__name__} is a subclass; what it adds is unknown"
    if not calls:
        return "does not run on the example"
    for call in calls:
        if not call.is_alone:
            return "called with more than its input"
        if call.dtype != layer.F.dtype:
            return f"its input is {call.dtype}, its weight {layer.F.dtype}"
        if layer.F.dim() > 2 and len(call.shape) != layer.F.dim():
            return f"its input {call.shape} has no batch"
        if 0 in call.shape:
            return f"its input {call.shape} is empty"
    if not layer.algebra_tensor.isfinite().all() or not layer.algebra_tensor.any():
        return "its algebra is zero or not finite"
    return ""
