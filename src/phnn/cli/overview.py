"""What a person sees of many runs at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from phnn._names import printable
from phnn._screen import Screen, format_time

if TYPE_CHECKING:
    from phnn.lab.runs import Run
    from phnn.lab.tasks import Score


class Overview:
    """A line for each run that has ended, and live lines for those that have not.

    Args:
        screen: Where to show them.
        score: What runs are judged by.
    """

    def __init__(self, screen: Screen, score: Score) -> None:
        self.screen = screen
        self.score = score
        self._began = time.monotonic()
        self._runs: Sequence[Run] = ()
        self._known = 0  # runs that had ended before

    def report(self, runs: Sequence[Run]) -> None:
        """Take note of all runs, and say which have ended since the last call."""
        if not self._runs:
            self._known = sum(run.result is not None for run in runs)
            if self._known:
                self.screen.say(f"{self._known} of {len(runs)} runs had ended before")
        else:
            before = [run.status for run in self._runs]
            for run, status in zip(runs, before, strict=True):
                if run.status != status:
                    self.screen.say(printable(f"{self._count(runs)}: {self._describe(run)}"))
        self._runs = list(runs)

    def watch(self, running: Mapping[int, str]) -> None:
        """Show how far the running runs are."""
        lines = [
            printable(f"{self._runs[number].name}: {text.splitlines()[0]}")
            for number, text in sorted(running.items())
        ]
        spent = time.monotonic() - self._began
        first = f"{self._count(self._runs)} runs have ended, {format_time(spent)} so far"
        self.screen.show(first, *lines)

    def _count(self, runs: Sequence[Run]) -> str:
        ended = sum(run.status != "waiting" for run in runs)
        return f"{ended} of {len(runs)}"

    def _describe(self, run: Run) -> str:
        if run.result is None:
            return f"{run.name} failed: {run.error}"
        score = self.score.show(run.result[f"test_{self.score.name}"])
        return f"{run.name}: {score}, trained in {format_time(run.result['train_seconds'])}"
