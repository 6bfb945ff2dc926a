"""How each layer of an accelerated model is computed, as values that a file can hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from phnn.acceleration.observation import ObservedLayer
from phnn.forms import Folded, Form, forms_of, read_form
from phnn.functional._formats import CHANNELS_LAST


def read_plan(plan: Mapping[str, Any] | str | Path, names: Iterable[str]) -> dict[str, Form]:
    """Return the forms that a plan has for the layers of a model.

    Args:
        plan: Entries by the names of layers, or the JSON file that holds them.
        names: The layers that the model has.
    """
    names, where = list(names), "the plan"
    if isinstance(plan, str | Path):
        where = f"the plan {str(plan)!r}"
        try:
            plan = json.loads(Path(plan).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{where} is not JSON: {error}") from error
    if not isinstance(plan, Mapping):
        raise TypeError(f"{where} is a mapping from layers to forms, got {type(plan).__name__}")
    for missing, what in (
        ([name for name in plan if name not in names], "names layers the model does not have"),
        ([name for name in names if name not in plan], "does not name all layers of the model"),
    ):
        if missing:
            raise ValueError(f"{where} {what}: {', '.join(map(repr, missing[:5]))}")
    forms = {}
    for name in names:
        try:
            forms[name] = read_form(plan[name])
        except ValueError as error:
            raise ValueError(f"the plan of {name!r}: {error}") from None
    return forms


def check_plan(layers: Iterable[ObservedLayer], forms: Mapping[str, Form]) -> None:
    """Refuse a plan that the layers cannot follow.

    Args:
        layers: The layers of the model, with the CP decompositions that the plan asks for.
        forms: The forms of the plan.
    """
    for layer in layers:
        name, form = layer.name, forms[layer.name]
        if form.channels_last and layer.layer.F.dim() not in CHANNELS_LAST:
            raise ValueError(f"the plan has channels last for {name!r}, which has no such format")
        if isinstance(form, Folded):
            continue
        reason = layer.hindrance
        factors = layer.source.factors
        if form.rank is not None and factors is None:
            reason = reason or layer.declined
        if reason:
            raise ValueError(f"the plan has {form.label!r} for {name!r}, which fails: {reason}")
        if form.rank is not None and factors is not None and factors.rank != form.rank:
            raise ValueError(
                f"the plan has rank {form.rank} for {name!r}, "
                f"which computes with rank {factors.rank}"
            )
        if not form.exists(layer.source):
            possible = ", ".join(
                other.label for other in forms_of(layer.source, form.channels_last)
            )
            raise ValueError(
                f"the plan has {form.label!r} for {name!r}; "
                f"{type(layer.layer).__name__} has {possible} here"
            )
