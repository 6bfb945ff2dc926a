"""A task: everything the lab knows about one kind of problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

Reference = str | Callable[..., Any]


def resolve(reference: Reference) -> Callable[..., Any]:
    """Return an object that may be given as "package.module:name", which is imported now.

    Example:
        >>> resolve("math:sqrt")(4)
        2.0
    """
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


@dataclass(frozen=True)
class Score:
    """A number that a task is judged by.

    Attributes:
        name: The result of a run has it as test_NAME.
        label: What people call it.
        unit: The unit of the scaled number.
        scale: The factor that the number is multiplied by before people see it.
        digits: The digits shown after the point.
        higher: Whether a higher number is better.
    """

    name: str
    label: str
    unit: str = ""
    scale: float = 1
    digits: int = 3
    higher: bool = True

    def show(self, value: float) -> str:
        """Return a number as people read it.

        Args:
            value: The number, as the result of a run has it.

        Example:
            >>> Score("accuracy", "accuracy", "%", scale=100, digits=2).show(0.8208)
            'accuracy 82.08 %'
        """
        return f"{self.label} {self.scale * value:.{self.digits}f} {self.unit}".rstrip()


class Answer(NamedTuple):
    """What a network says about one input.

    Attributes:
        lines: What `phnn predict` prints.
        rows: What it writes as CSV, in the order of `Task.columns`.
        name: The name of the picture of this answer.
        detail: What `Task.picture` draws.
    """

    lines: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    name: str = ""
    detail: Any = None


@dataclass(frozen=True)
class Task:
    """What networks are trained for.

    A reference is an object, or a string "package.module:name" that is imported when it is needed.
    With strings, a mistake in a recipe is found before Lightning is imported.

    Attributes:
        name: The name, as recipes have it.
        scores: What networks are judged by, the most important first.
        criterion: The validation score that chooses the best epoch; by default the first of the
            scores.
        data: The class of the data, see `Data`. Its signature gives the options --data.NAME.
        learner: The subclass of `Learner` that trains a network.
        learner_options: A dataclass of the options --learner.NAME; None for a learner without any.
            The learner reads them from `recipe.learner`.
        network_options: A function of the data, once read: the arguments of `create_model` that
            follow from them.
        check_network: A function of a network on the meta device that raises a ValueError when the
            task cannot train it.
        prepare_network: A function of a new network and the data, once read, that computes what the
            network takes from the data and does not learn.
        predict: A generator function of (network, metadata, inputs) and options of its own that
            yields an `Answer` for each input.
        inputs: A generator function of (metadata, files) that yields batches of inputs, made from
            files as in `predict`.
        find_files: A function of files and folders that returns the files which `inputs` reads.
        columns: The columns of the CSV file that `phnn predict` writes.
        picture: A function that draws the detail of an answer as a figure.
        sections: A function that yields the sections of a report that only this task has.
        figures: A function that yields the figures that only this task has.
        shown: The options of the learner that every table names.
        timed: For how many iterations a table has the training time, as the paper's tables do.
        note: What readers of a table have to know to compare it with the paper.
    """

    name: str
    scores: tuple[Score, ...]
    data: Reference
    learner: Reference
    network_options: Reference
    learner_options: Reference | None = None
    check_network: Reference | None = None
    prepare_network: Reference | None = None
    predict: Reference | None = None
    inputs: Reference | None = None
    find_files: Reference | None = None
    columns: tuple[str, ...] = ()
    picture: Reference | None = None
    sections: Reference | None = None
    figures: Reference | None = None
    shown: tuple[str, ...] = ()
    timed: int = 100
    note: str = ""
    criterion: Score | None = None

    @property
    def primary(self) -> Score:
        """The score that networks are ranked by."""
        return self.scores[0]
