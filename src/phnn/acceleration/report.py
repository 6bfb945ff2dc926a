"""What acceleration made of a model, layer by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from phnn._tables import align
from phnn.acceleration.plans import Origin, write_plan
from phnn.forms import Folded, Form

HEAD = ("layer", "kind", "form", "M multiplications", "folded ms", "other ms", "error", "note")


@dataclass(frozen=True)
class LayerSpeed:
    """One PH layer of the model.

    Attributes:
        name: Its name in the model.
        kind: What it was, as `PHConv2d n=4`.
        form: How it is computed now.
        folded_multiplications: What the plain layer needs for the example; a real layer as much.
        multiplications: What the chosen form needs.
        seconds: Time of each form that was tried, by its label, with the batch norm where that
            cannot be fused.
        error: Largest difference from the output of the layer, relative to its largest value.
        note: Why some forms were not tried, or what else there is to know.
    """

    name: str
    kind: str
    form: Form
    folded_multiplications: int
    multiplications: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: float = 0.0
    note: str = ""

    @property
    def is_folded(self) -> bool:
        """Whether it is one plain layer now."""
        return isinstance(self.form, Folded)


@dataclass(frozen=True)
class Acceleration:
    """All PH layers, and the times of the whole model; prints as a table.

    It is pickled as plain data, so that the accelerated model needs nothing of this library where
    it is loaded: there the report is a dict.

    Attributes:
        entries: The layers.
        seconds: Of the whole model on the example: as it was given, folded, and accelerated. Empty
            when a plan was given, for then nothing is measured.
        difference: Largest difference of the outputs, relative to the largest output.
        fused: Number of batch norms that were multiplied into the layers before them.
        origin: The runtime and the machine where the forms were timed.
        note: Why no batch norm was fused, or what else there is to know.
    """

    entries: tuple[LayerSpeed, ...]
    seconds: Mapping[str, float]
    difference: float
    fused: int
    origin: Origin
    note: str = ""

    @classmethod
    def of(cls, model: nn.Module) -> Acceleration:
        """Return `model.phnn_report`, with its type.

        Args:
            model: What `accelerate` returned.
        """
        report = getattr(model, "phnn_report", None)
        if not isinstance(report, cls):
            raise TypeError(
                f"the {type(model).__name__} has no report of accelerate; its phnn_report is "
                f"{type(report).__name__}"
            )
        return report

    @property
    def runtime(self) -> str:
        """Where the forms were timed."""
        return self.origin.runtime

    @property
    def plan(self) -> dict[str, Any]:
        """The forms, ready for JSON; `accelerate(…, plan=…)` repeats them unmeasured."""
        return write_plan(self.origin, {entry.name: entry.form for entry in self.entries})

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, ready for JSON."""
        return {
            "entries": [
                {**asdict(entry), "seconds": dict(entry.seconds), "form": entry.form.to_dict()}
                for entry in self.entries
            ],
            "seconds": dict(self.seconds),
            "difference": self.difference,
            "fused": self.fused,
            "origin": asdict(self.origin),
            "note": self.note,
            "text": str(self),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.to_dict(),)

    def __copy__(self) -> Acceleration:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Acceleration:
        return self  # nothing in it changes

    def __str__(self) -> str:
        rows = [HEAD, *map(_cells, self.entries)]
        return "\n".join([*align(rows), "; ".join(self._totals())])

    def _totals(self) -> list[str]:
        forms = Counter(entry.form.name for entry in self.entries)
        before = sum(entry.folded_multiplications for entry in self.entries)
        after = sum(entry.multiplications for entry in self.entries)
        totals = [
            "total: " + ", ".join(f"{count} {name}" for name, count in forms.items()),
            f"{_millions(before)} → {_millions(after)} multiplications "
            f"({after / max(before, 1):.1%})",
            f"{self.fused} batch norms fused",
        ]
        if self.seconds:
            times = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in self.seconds.items())
            totals.append(f"whole model in {self.runtime}: {times}")
        totals.append(f"outputs differ by at most {self.difference:.1e} of the largest")
        return [*totals, self.note] if self.note else totals


def _cells(entry: LayerSpeed) -> tuple[str, ...]:
    multiplications = [entry.folded_multiplications, entry.multiplications]
    others = {label: time for label, time in entry.seconds.items() if label != Folded.name}
    rival = min(others, key=lambda label: others[label], default="")
    return (
        entry.name,
        entry.kind,
        _describe(entry.form),
        " → ".join(
            f"{count / 1e6:.3g}"
            for count in (multiplications[:1] if entry.is_folded else multiplications)
        ),
        f"{1e3 * entry.seconds[Folded.name]:.3g}" if entry.seconds else "",
        f"{1e3 * others[rival]:.3g}" if rival else "",
        "" if entry.is_folded else f"{entry.error:.0e}",
        entry.note,
    )


def _describe(form: Form) -> str:
    rank = "" if form.rank is None else f", rank {form.rank}"
    return f"{form.label}{rank}{', last' * form.channels_last}"


def _millions(count: int) -> str:
    return f"{count / 1e6:.3g} M"
