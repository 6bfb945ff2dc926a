"""What was done to a model, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

from phnn._tables import align

NAMED = 3  # names that a line gives before it counts the rest


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
        by_weight: Why it was fitted to its weight where others were fitted to data; empty for them.
    """

    name: str
    before: str
    after: str
    parameters_before: int
    parameters_after: int
    error: float | None = None
    note: str = ""
    by_weight: str = ""

    @property
    def changed(self) -> bool:
        """Whether the layer was replaced."""
        return self.before != self.after


@dataclass(frozen=True)
class Point:
    """One size of a model, with what it costs and what it keeps.

    Attributes:
        budget: The share of the parameters that was asked for; 1 for the original.
        parameters: Of the whole model.
        multiplications: For one sample, each layer in its cheapest computation; None where nothing
            was counted.
        untouched: The parameters outside the replaced layers by name, as far as they are parameters
            of the model and not of its layers, or of layers that stayed; tied ones once.
        distance: Squared difference of the outputs on held-out data, relative to their variation;
            None without such data.
        score: What `evaluate` returned; None without it.
        chosen: Whether a search returned this one.
    """

    budget: float
    parameters: int
    multiplications: float | None = None
    distance: float | None = None
    score: float | None = None
    chosen: bool = False


@dataclass(frozen=True)
class Report:
    """What was won, and what became of each layer; prints as a table.

    Attributes:
        entries: The layers that were looked at.
        parameters_before: Parameters of the whole model.
        parameters_after: Parameters of the whole model now.
        bytes_before: Bytes of the state, parameters and buffers, as `phnn.save` writes it.
        bytes_after: Bytes of the state now.
        multiplications_before: For one sample of the calibration data; None without such data.
        multiplications_after: The same now, each layer in its cheapest computation.
        untouched: The parameters outside the replaced layers by name, as far as they are parameters
            of the model and not of its layers, or of layers that stayed; tied ones once.
        distance: Squared difference of the outputs on held-out calibration data, relative to their
            variation; None without such data.
        done: What was fitted, and to what.
        curve: The sizes that a search by score tried, the original first.
    """

    entries: tuple[Entry, ...]
    parameters_before: int
    parameters_after: int
    bytes_before: int = 0
    bytes_after: int = 0
    multiplications_before: float | None = None
    multiplications_after: float | None = None
    untouched: Mapping[str, int] = field(default_factory=dict)
    distance: float | None = None
    done: Sequence[str] = ()
    curve: Sequence[Point] = ()

    @classmethod
    def of(cls, model: nn.Module) -> Report:
        """Return `model.phnn_report`, with its type.

        Args:
            model: What `convert` or `to_dense` returned.
        """
        report = getattr(model, "phnn_report", None)
        if not isinstance(report, cls):
            raise TypeError(
                f"the {type(model).__name__} has no report of convert or to_dense; its "
                f"phnn_report is {type(report).__name__}"
            )
        return report

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
        return "\n".join([self.summarize(), *self.describe(), *align(rows)])

    def summarize(self) -> str:
        """Return one line that says what was won."""
        kept = self.parameters_after / max(self.parameters_before, 1)
        facts = [f"{self.parameters_before:,} → {self.parameters_after:,} parameters ({kept:.1%})"]
        if self.bytes_before:
            sizes = (self.bytes_before, self.bytes_after)
            facts.append(f"file {' → '.join(map(_megabytes, sizes))} MB")
        if self.multiplications_before and self.multiplications_after is not None:
            share = self.multiplications_after / self.multiplications_before
            millions = [
                f"{count / 1e6:.3g}"
                for count in (self.multiplications_before, self.multiplications_after)
            ]
            facts.append(f"{' → '.join(millions)} M multiplications for a sample ({share:.0%})")
        if self.distance is not None:
            facts.append(f"expected error {self.distance:.2%} of the outputs' variance")
        return "; ".join(facts)

    def describe(self) -> list[str]:
        """Return lines that say what was done, and what was not."""
        lines = [f"{len(self.changed)} of {len(self.entries)} layers replaced"]
        lines[0] = "; ".join([*lines, *self.done])
        size = sum(self.untouched.values())
        if size and self.parameters_before:
            largest = sorted(self.untouched.items(), key=lambda item: -item[1])[:NAMED]
            names = ", ".join(f"{name} {count:,}" for name, count in largest)
            more = ", …" if len(self.untouched) > NAMED else ""
            share = size / self.parameters_before
            lines.append(f"{share:.1%} of the parameters untouched: {names}{more}")
        by_weight: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.by_weight:
                by_weight.setdefault(entry.by_weight, []).append(entry.name)
        for reason, names_of in by_weight.items():
            more = f" and {len(names_of) - NAMED} more" if len(names_of) > NAMED else ""
            named = ", ".join(names_of[:NAMED])
            lines.append(f"fitted to weights instead of data, {reason}: {named}{more}")
        return lines

    @staticmethod
    def _cells(entry: Entry) -> tuple[str, ...]:
        if not entry.changed:
            return (entry.name, entry.before, "", f"{entry.parameters_before:,}", "", entry.note)
        parameters = f"{entry.parameters_before:,} → {entry.parameters_after:,}"
        error = "" if entry.error is None else f"{entry.error:.3f}"
        return (entry.name, entry.before, entry.after, parameters, error, entry.note)


class Size(NamedTuple):
    """The parameters of a model, and the bytes of its state; tied tensors count once."""

    parameters: int
    bytes: int


def measure_size(model: nn.Module) -> Size:
    """Return the size of a model."""
    state = {
        id(tensor): tensor
        for tensor in model.state_dict(keep_vars=True).values()
        if isinstance(tensor, Tensor)
    }
    return Size(
        sum(parameter.numel() for parameter in model.parameters()),
        sum(tensor.numel() * tensor.element_size() for tensor in state.values()),
    )


def find_untouched(model: nn.Module, replaced: Iterable[nn.Module]) -> dict[str, int]:
    """Return the parameters outside some layers by name, tied ones once."""
    touched = {id(p) for layer in replaced for p in layer.parameters(recurse=False)}
    return {
        name: parameter.numel()
        for name, parameter in model.named_parameters()
        if id(parameter) not in touched
    }


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g}"
