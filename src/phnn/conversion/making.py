"""New layers for a model: from their weights, from a fit, and put together from their parts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from phnn.conversion.decisions import Decision
from phnn.conversion.fitting import Fit
from phnn.conversion.opening import Whole
from phnn.conversion.sites import Site
from phnn.decompose import Nearest, nearest_shared
from phnn.decompose.blocks import Blocks
from phnn.nn import PHLayer
from phnn.structure import Structure

__all__ = ["Made", "close_layers", "make_layers"]


@dataclass(frozen=True)
class Made:
    """A new layer, and how well it stands for the dense one."""

    layer: nn.Module
    error: float | None


def make_layers(
    decisions: Sequence[Decision],
    fits: Mapping[str, Fit] | None,
    start: str,
    share_algebra: bool,
) -> dict[str, Made]:
    """Build every new layer before anything of the model is touched."""
    made: dict[str, Made] = {}
    if fits is not None:
        made = {d.name: _from_fit(d, fits[d.name]) for d in decisions if d.name in fits}
    else:
        for group in _sharing(decisions, share_algebra):
            made.update(_from_weights(group, start, share_algebra))
    for decision in decisions:
        first = decision.tied_to
        if first is not None and first.name in made:
            made[decision.name] = _tie_to(decision, made[first.name], start)
    return made


def _from_fit(decision: Decision, fit: Fit) -> Made:
    site = decision.site
    if fit.structure is None or fit.A is None:
        layer = copy.deepcopy(site.module)
        site.write(layer, fit.F, fit.bias)
        return Made(layer, fit.error**0.5)
    ph = _fresh(site, fit.structure)
    blocks = Blocks(
        tuple(site.weight.shape),
        fit.structure.n_out,
        fit.structure.n_in,
        site.groups,
        site.transposed,
    )
    # the terms of A are orthonormal: give A the norm of a fresh layer, and F the rest
    size = 1.0 if fit.structure.algebra else (fit.structure.n_out * fit.structure.n_in) ** 0.5
    size /= fit.structure.terms**0.5 if not fit.structure.algebra else 1.0
    with torch.no_grad():
        ph.F.copy_(blocks.fold(fit.F / size))
        if ph.learns_algebra:
            ph.A.copy_(fit.A * size)
        if ph.bias is not None and fit.bias is not None:
            ph.bias.copy_(fit.bias)
    return Made(ph, fit.error**0.5)


def _from_weights(group: Sequence[Decision], start: str, share_algebra: bool) -> dict[str, Made]:
    """Build layers that share one algebra, or a single one."""
    structure = group[0].structure
    assert structure is not None
    sites = [decision.site for decision in group]
    found: Sequence[Nearest | None] = [None] * len(group)
    if start == "nearest":
        size = {} if structure.algebra else {"n": structure.n, "terms": structure.terms}
        found = nearest_shared(
            [site.weight for site in sites],
            algebra=structure.algebra,
            groups=[site.groups for site in sites],
            transposed=[site.transposed for site in sites],
            **size,  # type: ignore[arg-type]
        )
    made: dict[str, Made] = {}
    for site, fit in zip(sites, found, strict=True):
        layer = _fresh(site, structure)
        if fit is not None:
            with torch.no_grad():
                layer.F.copy_(fit.F)
                if layer.learns_algebra:
                    layer.A.copy_(fit.A)
        _fill_bias(layer, site, start)
        if share_algebra and made and layer.learns_algebra:
            layer.A = next(iter(made.values())).layer.get_parameter("A")
        made[site.name] = Made(layer, None if fit is None else fit.error)
    return made


def _tie_to(decision: Decision, first: Made, start: str) -> Made:
    if not isinstance(first.layer, PHLayer):
        layer = copy.deepcopy(decision.site.module)
        layer.weight = first.layer.get_parameter("weight")
        return Made(layer, first.error)
    ph = _fresh(decision.site, first.layer.structure)
    ph.A, ph.F = first.layer.A, first.layer.F
    _fill_bias(ph, decision.site, start)
    return Made(ph, first.error)


def _fresh(site: Site, structure: Structure) -> PHLayer:
    """Make a PH layer that is as trainable as the layer it replaces."""
    assert site.twin is not None
    layer = site.twin.like(site.dense, **structure.arguments)
    trainable = site.weight.requires_grad
    layer.F.requires_grad_(trainable)
    if layer.learns_algebra:
        for name in layer.algebra_names:
            layer.get_parameter(name).requires_grad_(trainable)
    if layer.bias is not None and site.bias is not None:
        layer.bias.requires_grad_(site.bias.requires_grad)
    return layer


def _fill_bias(layer: PHLayer, site: Site, start: str) -> None:
    if layer.bias is not None and site.bias is not None and start == "nearest":
        with torch.no_grad():
            layer.bias.copy_(site.bias)


def close_layers(
    sites: Sequence[Site], layers: Mapping[str, nn.Module], start: str = "nearest"
) -> tuple[list[Site], dict[str, nn.Module]]:
    """Put new parts together, as layers with several matrices.

    Args:
        sites: Of the model.
        layers: New layers, by the names of their sites.
        start: Whether the layers keep the numbers of their parts.

    Returns:
        What is replaced, and by what.
    """
    replaced: list[Site] = []
    found: dict[Whole, dict[str, nn.Module]] = {}
    for site in sites:
        if site.name not in layers:
            continue
        if site.whole is not None:
            part = site.name.rpartition(".")[2]
            found.setdefault(site.whole, {})[part] = layers[site.name]
        else:
            replaced.append(site)
    new = {site.name: layers[site.name] for site in replaced}
    for whole, parts in found.items():
        if any(part in whole.opened.parts for part in parts):
            replaced.append(Site(whole.module, whole.names, None))
            new[whole.name] = _close(whole, parts, start)
        else:  # only layers inside of it, such as the output projection
            inside = [s for s in sites if s.whole is whole and s.name in layers]
            replaced += inside
            new |= {site.name: layers[site.name] for site in inside}
    return replaced, new


def _close(whole: Whole, parts: Mapping[str, nn.Module], start: str) -> nn.Module:
    layer = whole.opened.close(parts, fill=start == "nearest")
    if any(isinstance(parts.get(part), PHLayer) for part in whole.opened.parts):
        return layer
    dense: nn.Module = layer.to_dense()  # type: ignore[operator]  # all were fitted, and stay dense
    for name, part in parts.items():
        if name not in whole.opened.parts:
            setattr(dense, name, part)
    return dense


def _sharing(decisions: Sequence[Decision], share_algebra: bool) -> Iterable[list[Decision]]:
    """Return the layers that get one algebra together: all of a size, or each its own."""
    groups: dict[object, list[Decision]] = {}
    for decision in decisions:
        if decision.structure is not None and decision.tied_to is None:
            # one tensor has one device and one type, and is trained or is not
            weight = decision.site.weight
            kind = (decision.structure, weight.device, weight.dtype, weight.requires_grad)
            groups.setdefault(kind if share_algebra else decision.name, []).append(decision)
    return groups.values()
