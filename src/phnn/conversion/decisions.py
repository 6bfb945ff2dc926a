"""What becomes of each layer of a model, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from torch import nn

from phnn.conversion.sites import Site, owners
from phnn.decompose import divisors
from phnn.structure import Dimension, Structure, show_dimension

__all__ = ["Decision", "Patterns", "PerLayer", "decide", "require_layers", "select"]

Patterns = str | Sequence[str] | Callable[[str, nn.Module], bool]
TABLE = (
    "the rows of a table are no components; budget= finds other structures, and include= or a "
    "mapping n= that names it converts it all the same"
)
PerLayer = Dimension | Mapping[str, Dimension] | Callable[[str, nn.Module], Dimension | None]


@dataclass(frozen=True, eq=False)
class Decision:
    """What becomes of one layer.

    Attributes:
        site: The layer.
        structure: Of its PH layer; None while it is open, and for a layer that stays.
        stays: Whether it stays as it is.
        reason: Why it stays, or what else there is to know.
        tied_to: The layer whose weight it shares, and whose structure it gets.
    """

    site: Site
    structure: Structure | None = None
    stays: bool = False
    reason: str = ""
    tied_to: Site | None = None

    @property
    def name(self) -> str:
        """The first name of the layer."""
        return self.site.name

    @property
    def is_open(self) -> bool:
        """Whether a structure can be chosen for it."""
        return not self.stays and self.tied_to is None

    def stay(self, reason: str) -> Decision:
        """Return the decision to leave the layer as it is."""
        return replace(self, structure=None, stays=True, reason=reason, tied_to=None)


def select(
    model: nn.Module,
    sites: Sequence[Site],
    include: Patterns | None,
    exclude: Patterns | None,
) -> list[Decision]:
    """Decide which layers can be converted: not those that patterns or ties keep."""
    decisions = []
    for site in sites:
        decision = Decision(site)
        if site.twin is None:
            decision = decision.stay(site.reason)
        elif include is not None and not matches(site, include):
            decision = decision.stay("not included")
        elif exclude is not None and matches(site, exclude):
            decision = decision.stay("excluded")
        decisions.append(decision)
    return _keep_tied(model, _tie(model, decisions))


def decide(
    decisions: Sequence[Decision],
    n: PerLayer | None,
    terms: int | None,
    given: Structure | None,
    indivisible: str,
    is_named: bool = False,
) -> list[Decision]:
    """Choose the structure that the user asks for.

    Args:
        decisions: So far.
        n: Dimension for all layers, or for each.
        terms: Number of Kronecker terms.
        given: The structure of a known algebra, instead of n.
        indivisible: What to do with a layer that n does not divide.
        is_named: Whether the user has named the layers; tables stay otherwise.
    """
    decided = [
        _decide(decision, n, terms, given, indivisible, is_named) if decision.is_open else decision
        for decision in decisions
    ]
    stays = {decision.name: decision for decision in decided if decision.stays}
    return [
        d.stay(f"tied to {d.tied_to.name}, which stays: {stays[d.tied_to.name].reason}")
        if d.tied_to is not None and d.tied_to.name in stays
        else d
        for d in decided
    ]


def _decide(
    decision: Decision,
    n: PerLayer | None,
    terms: int | None,
    given: Structure | None,
    indivisible: str,
    is_named: bool,
) -> Decision:
    site = decision.site
    wanted = given.n if given is not None else _wanted(site, n)
    if wanted is None:
        return decision.stay("no n was given for it")
    if site.is_table and not is_named and not callable(n) and not isinstance(n, Mapping):
        return decision.stay(TABLE)
    pair = isinstance(wanted, tuple)
    if pair and terms is None:
        raise ValueError(f"{site.name}: the pair n={wanted} needs terms=")
    if not pair and (not isinstance(wanted, int) or wanted < 1):
        raise ValueError(f"{site.name}: n must be an integer of at least 1, got n={wanted}")
    out, inputs = _channels(site)
    n_out, n_in = wanted if isinstance(wanted, tuple) else (wanted, wanted)
    reason = ""
    if out % n_out or inputs % n_in:
        reason = _indivisible(site, wanted, out, inputs)
        if indivisible == "raise":
            raise ValueError(
                f"{site.name}: {reason}; use indivisible='skip' or indivisible='shrink'"
            )
        fits = [1] if pair else [1, *divisors(site.weight.shape, site.groups, most=n_out)]
        if indivisible == "skip" or fits[-1] == 1:
            return decision.stay(reason)
        wanted = fits[-1]
    try:
        structure = Structure.of(wanted, terms=terms) if given is None else given
    except ValueError as error:
        raise ValueError(f"{site.name}: {error}") from None
    grows = structure.count(tuple(site.weight.shape)) > site.weight.numel()
    # who gives the terms asks for this size, and n = 1 has its A, as the paper counts it
    if grows and terms is None and given is None and structure.n != 1:
        return decision.stay(f"{structure} would make it larger")
    return replace(decision, structure=structure, reason=reason or decision.reason)


def _channels(site: Site) -> tuple[int, int]:
    """Return the output and input channels of one group."""
    first, second = site.weight.shape[0] // site.groups, site.weight.shape[1]
    return (second, first) if site.transposed else (first, second)


def _indivisible(site: Site, n: Dimension, out: int, inputs: int) -> str:
    rows, columns = (inputs, out) if site.transposed else (out, inputs)
    inner = f"{rows} and {columns} channels"
    if site.groups > 1:
        inner += f" of each of {site.groups} {'gates' if site.is_part else 'groups'}"
    return f"n={show_dimension(n)} does not divide the {inner}"


def _wanted(site: Site, n: PerLayer | None) -> Dimension | None:
    if callable(n):
        return n(site.name, site.module)
    if isinstance(n, Mapping):
        return next((size for pattern, size in n.items() if matches(site, pattern)), None)
    return n


def check_patterns(sites: Sequence[Site], **options: Patterns | PerLayer | None) -> None:
    """Refuse a pattern that matches no layer: it is a slip, and silence would hide it."""
    for option, patterns in options.items():
        patterns = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(patterns, Iterable) or (option == "n" and isinstance(patterns, tuple)):
            continue
        for pattern in patterns:
            if not any(matches(site, pattern) for site in sites):  # type: ignore[arg-type]
                names = [site.name for site in sites[:8]] + ["…"] * (len(sites) > 8)
                raise ValueError(
                    f"{option}: {pattern!r} matches none of the layers {', '.join(names)}"
                )


def matches(site: Site, patterns: Patterns) -> bool:
    """Return whether one of the names of a site matches."""
    if callable(patterns):
        return any(patterns(name, site.module) for name in site.names)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatchcase(name, pattern) for name in site.names for pattern in patterns)


def require_layers(decisions: Sequence[Decision]) -> None:
    """Refuse a model in which nothing can be converted."""
    if not decisions:
        raise ValueError("the model has no layer with a PH twin, such as a linear one")
    if not any(decision.is_open for decision in decisions):
        reasons = "; ".join(f"{d.name}: {d.reason}" for d in decisions[:6])
        raise ValueError(f"no layer can be converted: {reasons}")


def require_numbers(decisions: Sequence[Decision]) -> None:
    """Refuse weights that cannot be approximated, before anything is built."""
    for decision in decisions:
        if not decision.is_open:
            continue
        weight = decision.site.weight
        if weight.is_meta:
            raise ValueError(
                f"{decision.name} is on the meta device, and start='nearest' or a budget needs its "
                "numbers; load them first, or give n= and start='random'"
            )
        if not all(bound.isfinite() for bound in weight.aminmax()):
            raise ValueError(f"the weight of {decision.name} holds values that are NaN or infinite")


def _tie(model: nn.Module, decisions: Sequence[Decision]) -> list[Decision]:
    """Let layers that share a weight share their PH weight, or leave all of them alone."""
    names = owners(model)
    sharing: dict[int, list[Decision]] = {}
    for decision in decisions:
        if decision.is_open and not decision.site.is_part:
            weight = decision.site.module.get_parameter("weight")
            sharing.setdefault(id(weight), []).append(decision)
    tied: dict[str, Decision] = {}
    for group in sharing.values():
        strangers = _strangers([decision.site for decision in group], names)
        alike = len({_tie_key(d.site) for d in group}) == 1
        for decision in group:
            if strangers:
                tied[decision.name] = decision.stay(f"tied to {', '.join(strangers)}")
            elif not alike:
                others = ", ".join(other.name for other in group if other is not decision)
                kind = _say_kind(decision, group)
                tied[decision.name] = decision.stay(f"tied to {others}, {kind}")
            elif decision is not group[0]:
                first = group[0].site
                reason = f"shares its weight with {first.name}"
                tied[decision.name] = replace(decision, tied_to=first, reason=reason)
    return [tied.get(decision.name, decision) for decision in decisions]


def _say_kind(decision: Decision, group: Sequence[Decision]) -> str:
    padding = getattr(decision.site.module, "padding_idx", None)
    if padding is not None:
        return f"which does not mask the padding row {padding}"
    if any(getattr(other.site.module, "padding_idx", None) is not None for other in group):
        return "which masks its padding row"
    return "a layer of another kind"


def _tie_key(site: Site) -> tuple[object, ...]:
    """Return what is equal for layers that can share one PH weight.

    A table has the weight of a linear layer, unless it masks its padding row.
    """
    is_matrix = isinstance(site.module, nn.Linear | nn.Embedding)
    padding = getattr(site.module, "padding_idx", None)
    return (nn.Linear if is_matrix else type(site.module), site.groups, padding)


def _keep_tied(model: nn.Module, decisions: Sequence[Decision]) -> list[Decision]:
    """Leave layers with several matrices alone if one of these is tied to anything."""
    names = owners(model)
    reasons: dict[str, str] = {}
    for whole in {d.site.whole for d in decisions if d.site.whole is not None}:
        own = {f"{name}.{key}".lstrip(".") for name in whole.names for key in whole.own_names}
        held = [names[id(p)] for p in whole.module.parameters(recurse=False)]
        strangers = [name for tied in held for name in tied if name not in own]
        if strangers:
            reasons[whole.name] = f"tied to {', '.join(strangers)}"
        elif any(len(tied) > len(whole.names) for tied in held):
            reasons[whole.name] = "its matrices are tied to each other"
    return [
        d.stay(reasons[d.site.whole.name])
        if d.site.is_part and d.site.whole is not None and d.site.whole.name in reasons
        else d
        for d in decisions
    ]


def _strangers(sites: Sequence[Site], names: Mapping[int, list[str]]) -> list[str]:
    """Return the parameters tied to the layers of a group that would not be replaced with them."""
    weight = sites[0].module.get_parameter("weight")
    own = {f"{name}.weight".lstrip(".") for site in sites for name in site.names}
    strangers = [name for name in names[id(weight)] if name not in own]
    for site in sites:
        bias = site.module._parameters.get("bias")
        own = {f"{name}.bias".lstrip(".") for name in site.names}
        strangers += [name for name in names.get(id(bias), ()) if name not in own]
    return strangers
