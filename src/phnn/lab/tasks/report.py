"""The part of a report that belongs to a task.

A task may have two functions, `sections` and `figures`. Both take the runs of a report, a
loader for their networks and data, and a function that prints a message before each slow step.
`sections` yields the sections of the HTML page that only this task has, `figures` its pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch import nn

from phnn.lab.runs import Run


class DataMissingError(ValueError):
    """The data of a run cannot be read."""


class RunLoader(Protocol):
    """Load the networks and data of runs."""

    def load(self, run: Run) -> tuple[nn.Module, Any]:
        """Return the network of a run in evaluation mode, and its data.

        Runs may share one object for their data. It is standardized for this network until the
        next call.

        Args:
            run: A run with a saved network.

        Raises:
            DataMissingError: The data cannot be read. The message says why, and what to do.
        """

    def digest(self, run: Run) -> str:
        """Return a hash of the network and the options of its data.

        Args:
            run: A run with a saved network.
        """


Say = Callable[[str], None]  # called with a message before each slow step


def find_trained(runs: Sequence[Run]) -> list[Run]:
    """Return one finished run of each variant, the first with a saved network.

    Networks of the user are left out: no file tells how to build them.
    """
    first: dict[tuple[str, str], Run | None] = {(run.family, run.variant): None for run in runs}
    for run in runs:
        usable = run.result is not None and run.has_model and not run.is_own
        if first[run.family, run.variant] is None and usable:
            first[run.family, run.variant] = run
    return [run for run in first.values() if run is not None]


def group_families(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each family, in the order in which the families appear."""
    families: dict[str, list[Run]] = {}
    for run in runs:
        families.setdefault(run.family, []).append(run)
    return families
