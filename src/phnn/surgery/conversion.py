"""Dense layers to PH layers, from scratch or from their trained weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from phnn.algebra import Algebra
from phnn.decompose import Nearest, divisors, nearest_shared
from phnn.nn import PHLayer
from phnn.surgery.budget import choose_by_budget
from phnn.surgery.report import Entry, Report
from phnn.surgery.slots import Choice, Slot, find_slots, hooks, owners, replace_modules

Patterns = str | Sequence[str] | Callable[[str, nn.Module], bool]
PerLayer = int | Mapping[str, int] | Callable[[str, nn.Module], int | None]


def convert(
    model: nn.Module,
    n: PerLayer | None = None,
    *,
    terms: int | None = None,
    algebra: Algebra | None = None,
    learn_algebra: bool | None = None,
    budget: float | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    indivisible: str = "skip",
    start: str = "nearest",
    share_algebra: bool = False,
    calibration: Any = None,
    inplace: bool = False,
) -> nn.Module:
    """Replaces the linear and convolutional layers of any model by PH layers.

    By default each PH layer starts as the nearest sum of Kronecker products to the layer it
    replaces. A trained weight is not such a sum, so fine-tuning is part of the job; a larger n with
    more terms is the nearer start at the same size.

    Args:
        model: Any model. Layers of exactly torch's types (and transformers' `Conv1D`) are replaced;
            subclasses are left alone, for what they add is unknown.
        n: Dimension of the algebras: a number, a mapping of name patterns to numbers (`{"layer4.*":
            8}`; the first that matches counts, other layers stay), or a function of name and module
            (None: stays).
        terms: Number of Kronecker terms, n by default.
        algebra: A known algebra for all layers; it implies n.
        learn_algebra: Whether the algebras are learned; by default exactly when none is given.
        budget: Instead of n: the share of its parameters that the whole model may keep. Dimension
            and terms of each layer are then chosen for the least total error.
        include: Names to replace, all by default: a pattern, several, or a function of name and
            module.
        exclude: Names to leave alone, in the same forms.
        indivisible: What to do with a layer that n does not divide: "skip" it, "raise" an error, or
            "shrink" n to the largest number that does.
        start: "nearest" to the trained weights, or "random".
        share_algebra: One A for all layers of the same n and terms.
        calibration: With a budget: an input (or a tuple of them) of the model. Errors are then
            measured on the layers' outputs for it instead of on their weights.
        inplace: Change the model itself instead of a copy.

    Returns:
        The model. Its `phnn_report` says what was done to each layer and prints as a table.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        >>> small = convert(model, n=2)
        >>> print(small.phnn_report)  # doctest: +SKIP
        layer  before  after     parameters     error  note
        0      Linear  PHLinear  8,320 → 4,232  0.699
        2      Linear  PHLinear  1,290 → 658    0.684
        2 of 2 layers replaced; whole model 9,610 → 4,890 parameters (50.9%)
    """
    _check_options(n, terms, algebra, budget, start, indivisible, calibration)
    slots = find_slots(model)
    _select(slots, include, exclude)
    _resolve_ties(model, slots)
    if budget is not None:
        choices = choose_by_budget(model, slots, budget, calibration)
    else:
        choices = _choose(slots, n if algebra is None else algebra.n, terms, indivisible)
    _require_something(slots, choices, start)
    before = sum(parameter.numel() for parameter in model.parameters())
    made = _make(slots, choices, algebra, learn_algebra, start, share_algebra)
    entries = tuple(_entry(slot, made.get(slot.name)) for slot in slots)
    replaced = replace_modules(model, slots, {name: m.layer for name, m in made.items()}, inplace)
    after = sum(parameter.numel() for parameter in replaced.parameters())
    replaced.phnn_report = Report(entries, before, after)  # type: ignore[assignment]
    return replaced


@dataclass(frozen=True)
class Made:
    """A PH layer and how well it stands for the dense one."""

    layer: PHLayer
    error: float | None


def _check_options(
    n: PerLayer | None,
    terms: int | None,
    algebra: Algebra | None,
    budget: float | None,
    start: str,
    indivisible: str,
    calibration: object,
) -> None:
    if budget is not None:
        if n is not None or algebra is not None or terms is not None:
            raise ValueError(
                f"budget={budget} chooses n and terms itself; leave n, terms and algebra out"
            )
        if not 0 < budget <= 1:
            raise ValueError(f"budget is a share of the parameters in (0, 1], got {budget}")
    elif n is None and algebra is None:
        raise TypeError("give n=, algebra= or budget=")
    elif algebra is not None and n not in (None, algebra.n):
        raise ValueError(f"{algebra.name} has n={algebra.n}, which contradicts n={n}")
    if calibration is not None and budget is None:
        raise ValueError("calibration measures errors for a budget; give budget= as well")
    for option, value, known in (
        ("start", start, ("nearest", "random")),
        ("indivisible", indivisible, ("skip", "raise", "shrink")),
    ):
        if value not in known:
            raise ValueError(f"{option} is one of {', '.join(known)}; got {value!r}")


def _select(slots: list[Slot], include: Patterns | None, exclude: Patterns | None) -> None:
    """Leaves alone what the patterns leave out; a pattern that matches nothing is an error."""
    for option, patterns, keep in (("include", include, True), ("exclude", exclude, False)):
        if patterns is None:
            continue
        chosen = {id(slot) for slot in slots if _matches(slot, patterns)}
        if not chosen:
            names = ", ".join(slot.name for slot in slots[:8]) or "none"
            raise ValueError(f"{option}={patterns!r} matches no layer; the layers are {names} …")
        for slot in slots:
            if slot.twin is not None and (id(slot) in chosen) != keep:
                slot.twin, slot.note = None, "not included" if keep else "excluded"


def _matches(slot: Slot, patterns: Patterns) -> bool:
    if callable(patterns):
        return any(patterns(name, slot.module) for name in slot.names)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatchcase(name, pattern) for name in slot.names for pattern in patterns)


def _resolve_ties(model: nn.Module, slots: list[Slot]) -> None:
    """Lets layers that share a weight share their PH weight, or leaves them alone by name."""
    names = owners(model)
    by_weight: dict[int, Slot] = {}
    weights = {f"{name}.weight" for slot in slots if slot.twin for name in slot.names}
    for slot in slots:
        if slot.twin is None:
            continue
        weight = slot.module.get_parameter("weight")
        own = {f"{name}.weight" if name else "weight" for name in slot.names}
        others = [name for name in names[id(weight)] if name not in own]
        strangers = [name for name in others if name not in weights]
        bias = slot.module._parameters.get("bias")
        if bias is not None:
            own_bias = {f"{name}.bias" if name else "bias" for name in slot.names}
            strangers += [name for name in names[id(bias)] if name not in own_bias]
        first = by_weight.setdefault(id(weight), slot)
        if strangers:
            slot.twin, slot.note = None, f"tied to {', '.join(strangers)}"
        elif first is not slot and first.twin is not slot.twin:
            slot.twin, slot.note = None, f"tied to {first.name}, a layer of another kind"
        elif first is not slot:
            slot.tied_to, slot.note = first, f"shares its weight with {first.name}"


def _choose(
    slots: list[Slot], n: PerLayer | None, terms: int | None, indivisible: str
) -> dict[str, Choice]:
    choices: dict[str, Choice] = {}
    for slot in slots:
        if slot.twin is None or slot.tied_to is not None:
            continue
        wanted = _wanted(slot, n)
        if wanted is None:
            slot.twin, slot.note = None, "no n was given for it"
            continue
        if wanted < 1:
            raise ValueError(f"n is at least 1, got n={wanted} for {slot.name}")
        fits = [1, *divisors(slot.weight.shape, slot.groups, most=wanted)]
        if wanted != fits[-1]:
            rows, columns = slot.weight.shape[:2]
            inner = f"{rows // slot.groups} and {columns} channels"
            if slot.groups > 1:
                inner += f" of each of {slot.groups} groups"
            reason = f"n={wanted} does not divide the {inner}"
            if indivisible == "raise":
                raise ValueError(f"{slot.name}: {reason}; indivisible= offers skip and shrink")
            if indivisible == "skip" or fits[-1] == 1:
                slot.twin, slot.note = None, reason
                continue
            slot.note = reason
        size = fits[-1]
        chosen = size if terms is None else terms
        if not 1 <= chosen <= size * size:
            raise ValueError(f"{slot.name}: terms is between 1 and n²={size * size}, got {terms}")
        choices[slot.name] = Choice(size, chosen)
    return choices


def _wanted(slot: Slot, n: PerLayer | None) -> int | None:
    if callable(n):
        return n(slot.name, slot.module)
    if isinstance(n, Mapping):
        found = (size for pattern, size in n.items() if fnmatchcase(slot.name, pattern))
        return next(found, None)
    return n


def _require_something(slots: list[Slot], choices: Mapping[str, Choice], start: str) -> None:
    if not choices:
        if not slots:
            raise ValueError("the model has no linear or convolutional layer")
        reasons = "; ".join(f"{slot.name}: {slot.note or 'kept'}" for slot in slots[:6])
        raise ValueError(f"no layer can be converted: {reasons}")
    if start == "nearest":
        on_meta = [slot.name for slot in slots if slot.name in choices and slot.weight.is_meta]
        if on_meta:
            raise ValueError(
                f"start='nearest' needs weights, but {on_meta[0]} is on the meta device; load them "
                "first, or use start='random'"
            )


def _make(
    slots: list[Slot],
    choices: Mapping[str, Choice],
    algebra: Algebra | None,
    learn_algebra: bool | None,
    start: str,
    share_algebra: bool,
) -> dict[str, Made]:
    """Builds every PH layer before anything of the model is touched."""
    made: dict[str, Made] = {}
    for group in _sharing(slots, choices, share_algebra):
        choice = choices[group[0].name]
        size = {"n": choice.n, "terms": choice.terms} if algebra is None else {}
        found: Sequence[Nearest | None] = [None] * len(group)
        if start == "nearest":
            found = nearest_shared(
                [slot.weight for slot in group],
                algebra=algebra,
                groups=[slot.groups for slot in group],
                transposed=[slot.transposed for slot in group],
                **size,
            )
        for slot, fit in zip(group, found, strict=True):
            assert slot.twin is not None
            layer = slot.twin.like(slot.dense, algebra=algebra, learn_algebra=learn_algebra, **size)
            _fill(layer, slot, fit)
            if share_algebra and slot is not group[0] and layer.learns_algebra:
                layer.A = made[group[0].name].layer.A
            made[slot.name] = Made(layer, None if fit is None else fit.error)
    for slot in slots:
        if slot.twin is not None and slot.tied_to is not None and slot.tied_to.name in made:
            twin = made[slot.tied_to.name]
            layer = copy.deepcopy(twin.layer)
            _fill(layer, slot, None)
            layer.A, layer.F = twin.layer.A, twin.layer.F
            made[slot.name] = Made(layer, twin.error)
    return made


def _sharing(
    slots: list[Slot], choices: Mapping[str, Choice], share_algebra: bool
) -> Iterable[list[Slot]]:
    """The layers that get one algebra together: all of a size, or each its own."""
    groups: dict[object, list[Slot]] = {}
    for slot in slots:
        if slot.name in choices:
            groups.setdefault(choices[slot.name] if share_algebra else slot.name, []).append(slot)
    return groups.values()


def _fill(layer: PHLayer, slot: Slot, fit: Nearest | None) -> None:
    trainable = slot.weight.requires_grad
    layer.F.requires_grad_(trainable)
    if layer.learns_algebra:
        layer.A.requires_grad_(trainable)
    with torch.no_grad():
        if fit is not None:
            layer.F.copy_(fit.F)
            if layer.learns_algebra:
                layer.A.copy_(fit.A)
        if layer.bias is not None:
            bias = slot.dense.get_parameter("bias")
            if fit is not None or slot.tied_to is not None:
                layer.bias.copy_(bias)
            layer.bias.requires_grad_(bias.requires_grad)


def _entry(slot: Slot, made: Made | None) -> Entry:
    before = type(slot.module).__name__
    notes = [slot.note] if slot.note else []
    if len(slot.names) > 1:
        notes.append(f"also {', '.join(slot.names[1:])}")
    if made is None:
        note = "; ".join(notes) or "kept: its parameters are worth their place in the budget"
        return Entry(slot.name, before, before, slot.parameters, slot.parameters, None, note)
    lost = list(hooks(slot.module))
    if lost:
        notes.append(f"lost its {', '.join(lost)}")
    layer = made.layer
    after = f"{type(layer).__name__} {layer.algebra.name if layer.algebra else f'n={layer.n}'}"
    if layer.terms != layer.n:
        after += f" terms={layer.terms}"
    size = sum(parameter.numel() for parameter in layer.parameters())
    return Entry(slot.name, before, after, slot.parameters, size, made.error, "; ".join(notes))
