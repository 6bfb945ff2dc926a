"""What was done to a model, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from phnn._tables import align


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
    """What was won, and what became of each layer; prints as a table.

    Attributes:
        entries: The layers that were looked at.
        parameters_before: Parameters of the whole model.
        parameters_after: Parameters of the whole model now.
        bytes_before: Bytes of these parameters.
        bytes_after: Bytes of these parameters now.
        multiplications_before: For one sample of the calibration data; None without such data.
        multiplications_after: The same now, each layer in its cheapest computation.
        distance: Squared difference of the outputs on held-out calibration data, relative to their
            variation; None without such data.
        done: What was fitted, and to what.
        curve: Budgets that were tried with their scores, when a score was given.
    """

    entries: tuple[Entry, ...]
    parameters_before: int
    parameters_after: int
    bytes_before: int = 0
    bytes_after: int = 0
    multiplications_before: float | None = None
    multiplications_after: float | None = None
    distance: float | None = None
    done: Sequence[str] = ()
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
        return "\n".join([self.summarize(), *align(rows)])

    def summarize(self) -> str:
        """Return one line that says what was won."""
        kept = self.parameters_after / max(self.parameters_before, 1)
        facts = [
            f"{self.parameters_before:,} → {self.parameters_after:,} parameters ({kept:.1%})",
            f"{len(self.changed)} of {len(self.entries)} layers replaced",
        ]
        if self.bytes_before:
            facts.insert(1, f"{_megabytes(self.bytes_before)} → {_megabytes(self.bytes_after)} MB")
        if self.multiplications_before and self.multiplications_after is not None:
            share = self.multiplications_after / self.multiplications_before
            millions = [
                f"{count / 1e6:.3g}"
                for count in (self.multiplications_before, self.multiplications_after)
            ]
            facts.append(f"{' → '.join(millions)} M multiplications a sample ({share:.0%})")
        if self.distance is not None:
            facts.append(f"outputs differ by {self.distance:.1%} of their variance")
        return "; ".join([*facts, *self.done])

    @staticmethod
    def _cells(entry: Entry) -> tuple[str, ...]:
        if not entry.changed:
            return (entry.name, entry.before, "", f"{entry.parameters_before:,}", "", entry.note)
        parameters = f"{entry.parameters_before:,} → {entry.parameters_after:,}"
        error = "" if entry.error is None else f"{entry.error:.3f}"
        return (entry.name, entry.before, entry.after, parameters, error, entry.note)


class Size(NamedTuple):
    """The parameters of a model, tied ones once, and their bytes."""

    parameters: int
    bytes: int


def count_parameters(model: nn.Module) -> Size:
    """Return the size of a model."""
    return Size(
        sum(parameter.numel() for parameter in model.parameters()),
        sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()),
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g}"
