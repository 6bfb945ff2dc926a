"""The PH layers of a model as values that a file can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from phnn import algebra as algebras
from phnn.algebra import Algebra
from phnn.conversion.pretrained import guard
from phnn.conversion.sites import PH_LAYERS, Site, find_ph_sites, find_sites, replace_modules
from phnn.nn import PHLayer
from phnn.structure import show_dimension


@dataclass(frozen=True)
class LayerSpec:
    """What tells a PH layer from the torch layer that it stands in for; prints as `PHLinear n=4`.

    Attributes:
        kind: Name of its class.
        n: Dimension of its algebra, or the pair (n_out, n_in).
        terms: Number of Kronecker terms.
        algebra: Its known algebra: a name that `phnn.algebra.get` finds, or the arguments of
            `Algebra`; None for one that is only learned.
        learn_algebra: Whether A is learned.
        rank: Number of products that its algebra is limited to; None without a limit.
    """

    kind: str
    n: int | tuple[int, int]
    terms: int
    algebra: str | dict[str, Any] | None
    learn_algebra: bool
    rank: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.n, list):  # as JSON has it
            object.__setattr__(self, "n", tuple(self.n))

    @classmethod
    def of(cls, layer: PHLayer) -> LayerSpec:
        """Describe a layer."""
        return cls(
            kind=type(layer).__name__,
            n=layer.n,
            terms=layer.terms,
            algebra=None if layer.algebra is None else _name_algebra(layer.algebra),
            learn_algebra=layer.learns_algebra,
            rank=layer.rank,
        )

    def make(self, twin: type[PHLayer], dense: nn.Module) -> PHLayer:
        """Make the layer, as a fresh PH twin of a torch layer that is as trainable."""
        algebra = None if self.algebra is None else _find_algebra(self.algebra)
        learned = algebra is None
        layer = twin.like(
            dense,
            n=self.n if learned else None,
            terms=self.terms if learned else None,
            algebra=algebra,
            learn_algebra=self.learn_algebra,
            rank=self.rank,
        )
        trainable = dense.get_parameter("weight").requires_grad
        for parameter in layer.parameters():
            parameter.requires_grad_(trainable)
        if layer.bias is not None:
            layer.bias.requires_grad_(dense.get_parameter("bias").requires_grad)
        return layer

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON; `LayerSpec(**fields)` reads them."""
        return asdict(self)

    def __str__(self) -> str:
        if self.algebra is None:
            algebra = f"n={show_dimension(self.n)}"
        else:
            algebra = self.algebra if isinstance(self.algebra, str) else self.algebra["name"]
        terms = "" if self.terms == self.n else f" terms={self.terms}"
        rank = "" if self.rank is None else f" rank={self.rank}"
        learned = " learned" if self.algebra is not None and self.learn_algebra else ""
        return f"{self.kind} {algebra}{terms}{rank}{learned}"


def describe_layers(model: nn.Module) -> dict[str, LayerSpec]:
    """Describe every PH layer of a model, by each of its names.

    Subclasses are left out: what they add is unknown, so only the model's own constructor can make
    them.
    """
    return {
        name: LayerSpec.of(module)
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, PHLayer) and type(module) in PH_LAYERS
    }


def find_changes(before: nn.Module, after: nn.Module) -> dict[str, LayerSpec | None]:
    """Find what `install_layers` has to put into one model to give it the layers of another.

    Args:
        before: The model to change.
        after: The model with the wanted layers.

    Returns:
        The PH layers by name; None where `after` has no PH layer, but `before` has one.
    """
    old, new = describe_layers(before), describe_layers(after)
    return {name: new.get(name) for name in {**old, **new} if old.get(name) != new.get(name)}


def install_layers(model: nn.Module, layers: Mapping[str, LayerSpec | None]) -> nn.Module:
    """Put fresh layers into a model, in place; works on the meta device.

    Args:
        model: Any model; nothing of it changes when one of the layers cannot be made.
        layers: PH layers by name, to replace a torch layer or another PH layer; None to fold a PH
            layer into a torch layer.

    Returns:
        The model; the new layer when the model is itself the layer.
    """
    sites = _sites_by_name(model)
    made: dict[str, nn.Module] = {}
    for name, spec in layers.items():
        if name not in sites:
            raise ValueError(f"the model has no linear or convolutional layer {name!r}")
        site = sites[name]
        if site.name not in made:
            made[site.name] = _make(site, spec)
    if "" in made:
        return made[""]
    replaced = replace_modules(model, list(sites.values()), made, inplace=True)
    guard(replaced)
    return replaced


def _sites_by_name(model: nn.Module) -> dict[str, Site]:
    """Return the sites of torch and PH layers by each of their names."""
    ph_sites = (
        Site(site.module, site.names, next(k for k in PH_LAYERS if type(site.module) is k))
        for site in find_ph_sites(model)
        if type(site.module) in PH_LAYERS
    )
    # who converted a subclass has allowed it; what else it holds, the names of the tensors tell
    allow = {type(module).__name__ for module in model.modules()}
    return {name: site for site in (*find_sites(model, allow), *ph_sites) for name in site.names}


def _make(site: Site, spec: LayerSpec | None) -> nn.Module:
    module = site.module
    if spec is None:
        return module.to_dense() if isinstance(module, PHLayer) else module
    if site.twin is None or site.twin.__name__ != spec.kind:
        reason = site.reason if site.twin is None else f"its PH twin is {site.twin.__name__}"
        raise ValueError(
            f"{site.name}: {spec.kind} cannot replace {type(module).__name__}; {reason}"
        )
    try:
        dense = module.to_dense() if isinstance(module, PHLayer) else site.dense
        return spec.make(site.twin, dense)
    except ValueError as error:
        raise ValueError(f"{site.name}: {error}") from error


def _name_algebra(algebra: Algebra) -> str | dict[str, Any]:
    """Return the name of an algebra where it says everything, otherwise all of its fields."""
    try:
        known = algebras.get(algebra.name) == algebra
    except ValueError:
        known = False
    return algebra.name if known else asdict(algebra)


def _find_algebra(description: str | dict[str, Any]) -> Algebra:
    return algebras.get(description) if isinstance(description, str) else Algebra(**description)
