"""The PH layers of a model as values that a file can hold."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from phnn import algebra as algebras
from phnn.algebra import Algebra
from phnn.conversion.attentions import OpenAttention
from phnn.conversion.opening import DENSE
from phnn.conversion.pretrained import guard
from phnn.conversion.sites import (
    FOLDING,
    LAYERS,
    SEVERAL,
    Site,
    find_folds,
    find_ph_sites,
    find_sites,
    replace_modules,
)
from phnn.nn import PHLayer, PHMultiheadAttention
from phnn.nn._matrices import PHMatrices
from phnn.structure import Structure, show_dimension


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
        matrices: Of a layer whose matrices differ, the description of each by torch's name; then
            the fields above are those of the first. None for all other layers.
    """

    kind: str
    n: int | tuple[int, int]
    terms: int
    algebra: str | dict[str, Any] | None
    learn_algebra: bool
    rank: int | None = None
    matrices: dict[str, LayerSpec] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.n, list):  # as JSON has it
            object.__setattr__(self, "n", tuple(self.n))
        if self.matrices is not None:
            found = {
                name: spec if isinstance(spec, LayerSpec) else LayerSpec(**spec)
                for name, spec in self.matrices.items()
            }
            object.__setattr__(self, "matrices", found)

    @classmethod
    def of(cls, layer: nn.Module) -> LayerSpec:
        """Describe a layer."""
        kind = type(layer).__name__
        if isinstance(layer, PHLayer):
            return cls.of_structure(kind, layer.structure)
        if isinstance(layer, PHMatrices):
            each = {name: cls.of_structure(kind, m.structure) for name, m in layer.matrices.items()}
            first = next(iter(each.values()))
            return first if layer.structure is not None else replace(first, matrices=each)
        # attention: its projections are described by themselves
        return cls.of_structure(kind, DENSE)

    @classmethod
    def of_structure(cls, kind: str, structure: Structure) -> LayerSpec:
        """Describe a layer by its class and its structure."""
        return cls(
            kind=kind,
            n=structure.n,
            terms=structure.terms,
            algebra=None if structure.algebra is None else _name_algebra(structure.algebra),
            learn_algebra=structure.learns,
            rank=structure.rank,
        )

    @property
    def structure(self) -> Structure:
        """The structure that the fields describe; a ValueError where there is none."""
        algebra = None if self.algebra is None else _find_algebra(self.algebra)
        learned = algebra is None
        return Structure.of(
            self.n if learned else None,
            terms=self.terms if learned else None,
            algebra=algebra,
            learn_algebra=self.learn_algebra,
            rank=self.rank,
        )

    def make_matrices(self, twin: type[PHMatrices], dense: nn.Module) -> PHMatrices:
        """Make a layer with several matrices, as a fresh PH twin that is as trainable."""
        specs = self.matrices
        if specs is None:
            names = (name for name, _ in dense.named_parameters() if name.startswith("weight"))
            specs = dict.fromkeys(names, self)
        structures = {name: spec.structure for name, spec in specs.items()}
        layer = twin.like(dense, structures=structures)
        learns = {name: parameter.requires_grad for name, parameter in dense.named_parameters()}
        for name, parameter in layer.named_parameters():
            source = name if name in learns else "weight" + name[1:]
            parameter.requires_grad_(learns[source])
        return layer

    def make(self, twin: type[PHLayer], dense: nn.Module) -> PHLayer:
        """Make the layer, as a fresh PH twin of a torch layer that is as trainable."""
        layer = twin.like(dense, **self.structure.arguments)
        trainable = dense.get_parameter("weight").requires_grad
        for parameter in layer.parameters():
            parameter.requires_grad_(trainable)
        if layer.bias is not None:
            layer.bias.requires_grad_(dense.get_parameter("bias").requires_grad)
        return layer

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON; `LayerSpec(**fields)` reads them."""
        fields = asdict(self)
        if self.matrices is None:
            del fields["matrices"]
        return fields

    def __str__(self) -> str:
        if self.matrices is not None:
            each = (f"{name} {spec}" for name, spec in self.matrices.items())
            return f"{self.kind}: {', '.join(text.replace(f'{self.kind} ', '') for text in each)}"
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
        if type(module) in (*LAYERS, *SEVERAL, PHMultiheadAttention)
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
    attentions = [
        name
        for name, spec in layers.items()
        if spec is not None and spec.kind == PHMultiheadAttention.__name__
    ]
    before = {name: _get(model, name) for name in attentions}
    try:
        opened = _open_attentions(model, before)
        sites = _sites_by_name(opened, layers)
        made = _make_all(sites, {k: spec for k, spec in layers.items() if k not in before})
    except ValueError:
        for name, module in before.items():
            _set(model, name, module)
        raise
    if "" in made:
        return made[""]
    replaced = replace_modules(opened, list(sites.values()), made, inplace=True)
    guard(replaced)
    return replaced


def _make_all(
    sites: Mapping[str, Site], layers: Mapping[str, LayerSpec | None]
) -> dict[str, nn.Module]:
    made: dict[str, nn.Module] = {}
    for name, spec in layers.items():
        if name not in sites:
            raise ValueError(f"the model has no layer {name!r} with a PH twin")
        site = sites[name]
        if site.name not in made:
            made[site.name] = _make(site, spec)
    return made


def _sites_by_name(model: nn.Module, wanted: Container[str]) -> dict[str, Site]:
    """Return the sites of torch and PH layers by each of their names.

    Args:
        model: The model.
        wanted: Names of layers that may be subclasses. Who converted them has allowed that, and the
            names of the tensors tell what else they hold.
    """
    found: dict[str, Site] = {}
    modules = model.named_modules(remove_duplicate=False)
    allow = {type(module).__name__ for name, module in modules if name in wanted}
    for site in find_sites(model, allow):
        whole = site.whole if site.is_part else None
        if whole is None:
            found.update(dict.fromkeys(site.names, site))
        else:
            site = Site(whole.module, whole.names, None, "", whole)
            found.update(dict.fromkeys(whole.names, site))
    for site in (*find_folds(model), *find_ph_sites(model)):
        twin = next((kind for kind in LAYERS if type(site.module) is kind), None)
        found.update(dict.fromkeys(site.names, replace(site, twin=twin)))
    return found


def _open_attentions(model: nn.Module, attentions: Mapping[str, nn.Module]) -> nn.Module:
    """Put attention of phnn, with plain projections, where torch's is."""
    new: dict[int, nn.Module] = {}
    for name, module in attentions.items():
        if isinstance(module, nn.MultiheadAttention):
            opened = new.setdefault(id(module), OpenAttention(module).close({}))
            if not name:
                return opened
            _set(model, name, opened)
        elif not isinstance(module, PHMultiheadAttention):
            kind = type(module).__name__
            raise ValueError(f"{name}: PHMultiheadAttention cannot replace {kind}")
    return model


def _get(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise ValueError(f"the model has no layer {name!r} with a PH twin") from None


def _set(model: nn.Module, name: str, module: nn.Module) -> None:
    if name:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module)


def _make(site: Site, spec: LayerSpec | None) -> nn.Module:
    module = site.module
    is_ph = isinstance(module, FOLDING)
    if spec is None:
        return module.to_dense() if is_ph else module  # type: ignore[operator]
    kind: type[PHMatrices] | None = next((k for k in SEVERAL if k.__name__ == spec.kind), None)
    has_twin = type(module) is kind
    if site.whole is not None and kind is not None:
        has_twin = site.whole.opened.twin is kind
    if kind is not None and has_twin:
        try:
            return spec.make_matrices(kind, module.to_dense() if is_ph else module)  # type: ignore[operator]
        except ValueError as error:
            raise ValueError(f"{site.name}: {error}") from error
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
