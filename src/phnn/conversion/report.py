"""What was done to a model, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One layer of the model.

    Attributes:
        name: Its name in the model.
        before: What it was.
        after: What it is now, or what it was when it was left alone.
        parameters_before: Number of its parameters.
        parameters_after: Number of its parameters now.
        error: Relative Frobenius error of its weight; None where no weight was approximated.
        note: Why it was left alone, or what else there is to know.
    """

    name: str
    before: str
    after: str
    parameters_before: int
    parameters_after: int
    error: float | None = None
    note: str = ""

    @property
    def changed(self) -> bool:
        """Whether the layer was replaced."""
        return self.before != self.after


@dataclass(frozen=True)
class Report:
    """All layers that were looked at, and the sizes of the whole model; prints as a table."""

    entries: tuple[Entry, ...]
    parameters_before: int
    parameters_after: int
    distance: float | None = None
    done: Sequence[str] = ()
    data: str = ""
    curve: Sequence[Mapping[str, float]] = ()

    @property
    def changed(self) -> tuple[Entry, ...]:
        """The layers that were replaced."""
        return tuple(entry for entry in self.entries if entry.changed)

    @property
    def left_alone(self) -> tuple[Entry, ...]:
        """The layers that could have been meant and were not replaced."""
        return tuple(entry for entry in self.entries if not entry.changed)

    def __str__(self) -> str:
        head = ("layer", "before", "after", "parameters", "error", "note")
        rows = [head, *(self._cells(entry) for entry in self.entries)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        kept = self.parameters_after / max(self.parameters_before, 1)
        lines.append(
            f"{len(self.changed)} of {len(self.entries)} layers replaced; whole model "
            f"{self.parameters_before:,} → {self.parameters_after:,} parameters ({kept:.1%})"
        )
        return "\n".join(lines)

    @staticmethod
    def _cells(entry: Entry) -> tuple[str, ...]:
        if not entry.changed:
            return (entry.name, entry.before, "", f"{entry.parameters_before:,}", "", entry.note)
        parameters = f"{entry.parameters_before:,} → {entry.parameters_after:,}"
        error = "" if entry.error is None else f"{entry.error:.3f}"
        return (entry.name, entry.before, entry.after, parameters, error, entry.note)
