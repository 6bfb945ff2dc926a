"""The state of a run, for the comparison that started it."""

from __future__ import annotations

import time
from pathlib import Path

from phnn._screen import Screen
from phnn.lab.runs import PROGRESS

STATUS_SECONDS = 0.5  # between two states in the file


class StatusFile(Screen):
    """Live lines go to a file in the folder of a run, which a comparison shows.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(quiet=0.0)
        self._path = folder / PROGRESS
        self._written_at = 0.0

    def show(self, *lines: str, now: bool = False) -> None:
        """Write the live lines."""
        clock = time.monotonic()
        if now or clock - self._written_at >= STATUS_SECONDS:
            self._written_at = clock
            self._path.write_text("\n".join(lines), encoding="utf-8")

    def phase(self, text: str) -> None:
        """Write what begins now."""
        self.show(text, now=True)
