"""Dense layers to PH layers, from scratch or from their trained weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from phnn.algebra import Algebra
from phnn.conversion.budget import choose_by_budget
from phnn.conversion.report import Entry, Report
from phnn.conversion.sites import Choice, Slot, find_slots, hooks, owners, replace_modules
from phnn.decompose import Nearest, divisors, nearest_shared
from phnn.nn import PHLayer

Patterns = str | Sequence[str] | Callable[[str, nn.Module], bool]
PerLayer = int | Mapping[str, int] | Callable[[str, nn.Module], int | None]


@torch.inference_mode(False)
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
        layer  before  after         parameters     error  note
        0      Linear  PHLinear n=2  8,320 → 4,232  0.691
        2      Linear  PHLinear n=2  1,290 → 658    0.678
        2 of 2 layers replaced; whole model 9,610 → 4,890 parameters (50.9%)
    """
    _check_options(n, terms, algebra, budget, start, indivisible, calibration)
    slots = find_slots(model)
    _check_patterns(slots, include=include, exclude=exclude, n=n)
    _select(slots, include, exclude)
    _resolve_ties(model, slots)
    _require_layers(slots)
    if budget is not None or start == "nearest":
        _require_numbers(slots)
    if budget is not None:
        choices = choose_by_budget(model, slots, budget, calibration)
    else:
        choices = _choose(slots, n if algebra is None else algebra.n, terms, indivisible)
        _require_layers(slots)
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
    if algebra is not None and not isinstance(algebra, Algebra):
        raise TypeError(
            f"algebra is a phnn.algebra.Algebra, got {algebra!r}; phnn.algebra.get finds one by "
            "name"
        )
    if budget is not None:
        if n is not None or algebra is not None or terms is not None:
            raise ValueError(
                f"budget={budget} chooses n and terms itself; leave n, terms and algebra out"
            )
        if not 0 < budget < 1:
            raise ValueError(f"budget is a share of the parameters in (0, 1), got {budget}")
    elif n is None and algebra is None:
        raise TypeError("give n=, algebra= or budget=")
    elif algebra is not None:
        if n not in (None, algebra.n):
            raise ValueError(f"{algebra.name} has n={algebra.n}, which contradicts n={n}")
        if terms is not None:
            raise ValueError(f"{algebra.name} has {algebra.n} terms; leave terms={terms} out")
        if indivisible == "shrink":
            raise ValueError(f"{algebra.name} has n={algebra.n}; only a learned algebra can shrink")
    if calibration is not None and budget is None:
        raise ValueError("calibration measures errors for a budget; give budget= as well")
    for option, value, known in (
        ("start", start, ("nearest", "random")),
        ("indivisible", indivisible, ("skip", "raise", "shrink")),
    ):
        if value not in known:
            raise ValueError(f"{option} is one of {', '.join(known)}; got {value!r}")


def _select(slots: list[Slot], include: Patterns | None, exclude: Patterns | None) -> None:
    """Leaves alone what the patterns leave out."""
    for patterns, keep, note in ((include, True, "not included"), (exclude, False, "excluded")):
        for slot in slots:
            if patterns is None or slot.twin is None or _matches(slot, patterns) == keep:
                continue
            slot.twin, slot.note = None, note


def _check_patterns(slots: list[Slot], **options: Patterns | PerLayer | None) -> None:
    """Refuses a pattern that matches no layer: it is a slip, and silence would hide it."""
    for option, patterns in options.items():
        patterns = [patterns] if isinstance(patterns, str) else patterns
        for pattern in patterns if isinstance(patterns, Iterable) else ():
            if not any(_matches(slot, pattern) for slot in slots):
                names = [slot.name for slot in slots[:8]] + ["…"] * (len(slots) > 8)
                raise ValueError(
                    f"{option}: {pattern!r} matches none of the layers {', '.join(names)}"
                )


def _matches(slot: Slot, patterns: Patterns) -> bool:
    if callable(patterns):
        return any(patterns(name, slot.module) for name in slot.names)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatchcase(name, pattern) for name in slot.names for pattern in patterns)


def _resolve_ties(model: nn.Module, slots: list[Slot]) -> None:
    """Lets layers that share a weight share their PH weight, or leaves all of them alone."""
    names = owners(model)
    sharing: dict[int, list[Slot]] = {}
    for slot in slots:
        if slot.twin is not None:
            sharing.setdefault(id(slot.module.get_parameter("weight")), []).append(slot)
    for group in sharing.values():
        strangers = _strangers(group, names)
        alike = len({(type(slot.module), slot.groups) for slot in group}) == 1
        for slot in group:
            if strangers:
                slot.twin, slot.note = None, f"tied to {', '.join(strangers)}"
            elif not alike:
                others = ", ".join(other.name for other in group if other is not slot)
                slot.twin, slot.note = None, f"tied to {others}, a layer of another kind"
            elif slot is not group[0]:
                slot.tied_to = group[0]
                slot.note = f"shares its weight with {group[0].name}"


def _strangers(group: list[Slot], names: Mapping[int, list[str]]) -> list[str]:
    """Parameters tied to the layers of a group that would not be replaced with them."""
    weight = group[0].module.get_parameter("weight")
    own = {f"{name}.weight".lstrip(".") for slot in group for name in slot.names}
    strangers = [name for name in names[id(weight)] if name not in own]
    for slot in group:
        bias = slot.module._parameters["bias"]
        own = {f"{name}.bias".lstrip(".") for name in slot.names}
        strangers += [name for name in names.get(id(bias), ()) if name not in own]
    return strangers


def _choose(
    slots: list[Slot], n: PerLayer | None, terms: int | None, indivisible: str
) -> dict[str, Choice]:
    choices: dict[str, Choice] = {}
    for slot in slots:
        if not slot.is_open:
            continue
        wanted = _wanted(slot, n)
        if wanted is None:
            slot.twin, slot.note = None, "no n was given for it"
            continue
        if not isinstance(wanted, int) or wanted < 1:
            raise ValueError(f"{slot.name}: n is an integer, at least 1; got n={wanted}")
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
        found = (size for pattern, size in n.items() if _matches(slot, pattern))
        return next(found, None)
    return n


def _require_layers(slots: list[Slot]) -> None:
    if not slots:
        raise ValueError("the model has no linear or convolutional layer")
    if not any(slot.is_open for slot in slots):
        reasons = "; ".join(f"{slot.name}: {slot.note}" for slot in slots[:6])
        raise ValueError(f"no layer can be converted: {reasons}")


def _require_numbers(slots: list[Slot]) -> None:
    """Refuses weights that cannot be approximated, before anything is built."""
    for slot in slots:
        if not slot.is_open:
            continue
        if slot.weight.is_meta:
            raise ValueError(
                f"{slot.name} is on the meta device, and start='nearest' or a budget needs its "
                "numbers; load them first, or give n= and start='random'"
            )
        if not all(bound.isfinite() for bound in slot.weight.aminmax()):
            raise ValueError(f"the weight of {slot.name} holds values that are NaN or infinite")


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
        first = group[0]
        size = _size(choices[first.name], algebra)
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
            _fill_bias(layer, slot, start)
            if share_algebra and slot is not first and layer.learns_algebra:
                layer.A = made[first.name].layer.A
            made[slot.name] = Made(layer, None if fit is None else fit.error)
    for slot in slots:
        if slot.twin is not None and slot.tied_to is not None and slot.tied_to.name in made:
            tied = made[slot.tied_to.name]
            size = _size(choices[slot.tied_to.name], algebra)
            layer = slot.twin.like(slot.dense, algebra=algebra, learn_algebra=learn_algebra, **size)
            layer.A, layer.F = tied.layer.A, tied.layer.F
            _fill_bias(layer, slot, start)
            made[slot.name] = Made(layer, tied.error)
    return made


def _size(choice: Choice, algebra: Algebra | None) -> dict[str, int]:
    """The arguments of a layer that say how large it is; a known algebra says it itself."""
    return {"n": choice.n, "terms": choice.terms} if algebra is None else {}


def _sharing(
    slots: list[Slot], choices: Mapping[str, Choice], share_algebra: bool
) -> Iterable[list[Slot]]:
    """The layers that get one algebra together: all of a size, or each its own."""
    groups: dict[object, list[Slot]] = {}
    for slot in slots:
        if slot.name in choices:
            # one tensor has one place and one type, and is trained or is not
            weight = slot.weight
            kind = (choices[slot.name], weight.device, weight.dtype, weight.requires_grad)
            groups.setdefault(kind if share_algebra else slot.name, []).append(slot)
    return groups.values()


def _fill(layer: PHLayer, slot: Slot, fit: Nearest | None) -> None:
    trainable = slot.weight.requires_grad
    layer.F.requires_grad_(trainable)
    if layer.learns_algebra:
        layer.A.requires_grad_(trainable)
    if fit is not None:
        with torch.no_grad():
            layer.F.copy_(fit.F)
            if layer.learns_algebra:
                layer.A.copy_(fit.A)


def _fill_bias(layer: PHLayer, slot: Slot, start: str) -> None:
    if layer.bias is None:
        return
    bias = slot.dense.get_parameter("bias")
    layer.bias.requires_grad_(bias.requires_grad)
    if start == "nearest":
        with torch.no_grad():
            layer.bias.copy_(bias)


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
