"""How each layer of an accelerated model is computed, as values that a file can hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from phnn.acceleration.observation import ObservedLayer
from phnn.forms import Folded, Form, forms_of, read_form
from phnn.functional._formats import CHANNELS_LAST
from phnn.runtimes import Runtime
from phnn.runtimes.machine import describe_machine


@dataclass(frozen=True)
class Origin:
    """Where forms were timed.

    Attributes:
        runtime: Name of the runtime.
        version: Its version.
        machine: Processor, cores and threads.
    """

    runtime: str
    version: str
    machine: str

    @classmethod
    def here(cls, runtime: Runtime, device: torch.device | str) -> Origin:
        """Return what describes this machine."""
        return cls(runtime.name, runtime.version, describe_machine(device))

    def difference(self, other: Origin) -> str:
        """Return how another origin with the same runtime differs; empty when it does not."""
        if self == other:
            return ""
        return (
            f"the plan was made with {self.runtime} {self.version} on {self.machine}, "
            f"here are {other.version} and {other.machine}"
        )


def write_plan(origin: Origin, forms: Mapping[str, Form]) -> dict[str, Any]:
    """Return a plan, ready for JSON."""
    layers = {name: form.to_dict() for name, form in forms.items()}
    return {**asdict(origin), "layers": layers}


def read_plan(
    plan: Mapping[str, Any] | str | Path, names: Iterable[str], origin: Origin
) -> tuple[dict[str, Form], str]:
    """Return the forms that a plan has for the layers of a model, and what to know of it.

    Args:
        plan: What `write_plan` made, or the JSON file that holds it; or forms by the names of
            layers, for any runtime.
        names: The layers that the model has.
        origin: Where the model will run.
    """
    names, where = list(names), "the plan"
    if isinstance(plan, str | Path):
        where = f"the plan {str(plan)!r}"
        if not Path(plan).is_file():
            raise FileNotFoundError(f"{where} is not a file")
        try:
            plan = json.loads(Path(plan).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is not JSON: {error}") from error
    if not isinstance(plan, Mapping):
        raise TypeError(f"{where} must map layers to forms, got {type(plan).__name__}")
    note = ""
    if isinstance(plan.get("runtime"), str):
        plan, note = _read_origin(plan, origin, where)
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
    return forms, note


def _read_origin(
    plan: Mapping[str, Any], origin: Origin, where: str
) -> tuple[Mapping[str, Any], str]:
    """Return the layers of a plan, and how it differs from what there is here."""
    made = Origin(*(str(plan.get(field.name)) for field in fields(Origin)))
    if made.runtime != origin.runtime:
        raise ValueError(
            f"{where} was made for the runtime {made.runtime!r}, and may be slow in "
            f"{origin.runtime!r}; use runtime={made.runtime!r}, or make a plan without plan="
        )
    layers = plan.get("layers")
    if not isinstance(layers, Mapping):
        raise TypeError(f"{where} must have a mapping of layers, got {type(layers).__name__}")
    return layers, made.difference(origin)


def check_plan(layers: Iterable[ObservedLayer], forms: Mapping[str, Form]) -> None:
    """Refuse a plan that the layers cannot follow.

    Args:
        layers: The layers of the model, with the CP decompositions that the plan asks for.
        forms: The forms of the plan.
    """
    for layer in layers:
        name, form = layer.name, forms[layer.name]
        if form.channels_last and layer.layer.F.dim() not in CHANNELS_LAST:
            raise ValueError(f"the plan uses channels last for {name!r}, which does not support it")
        if isinstance(form, Folded):
            continue
        reason = layer.hindrance
        factors = layer.source.factors
        if form.rank is not None and factors is None:
            reason = reason or layer.declined
        if reason:
            raise ValueError(f"the plan uses {form.label!r} for {name!r}, which fails: {reason}")
        if form.rank is not None and factors is not None and factors.rank != form.rank:
            raise ValueError(
                f"the plan uses rank {form.rank} for {name!r}, "
                f"whose algebra has rank {factors.rank}"
            )
        if not form.exists(layer.source):
            possible = ", ".join(
                other.label for other in forms_of(layer.source, form.channels_last)
            )
            raise ValueError(
                f"the plan uses {form.label!r} for {name!r}; "
                f"here {type(layer.layer).__name__} has {possible}"
            )
