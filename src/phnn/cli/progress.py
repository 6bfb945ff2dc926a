"""How far a command is, on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

QUIET = 2.0  # seconds before anything is said
PAUSE = 10.0  # seconds between two plain lines
REFRESH = 0.1  # seconds between two changes of a bar
WIDTH = 24  # characters of a bar


class ProgressBar:
    """Shows what is done, how far, and of how much; what is quick is not shown.

    Args:
        stream: Where to write; stderr by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.is_terminal = self.stream.isatty()
        self._began = time.monotonic()
        self._seen: set[str] = set()
        self._shown_at = -PAUSE
        self._open = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show a step, if it is time to."""
        now = time.monotonic()
        if now - self._began < QUIET:
            return
        if what in self._seen and now - self._shown_at < (REFRESH if self.is_terminal else PAUSE):
            return
        self._seen.add(what)
        self._shown_at = now
        text = f"{what}: {done} of {total}"
        if self.is_terminal:
            full = min(WIDTH, round(WIDTH * done / max(total, 1)))
            bar = "█" * full + "·" * (WIDTH - full)
            self.stream.write(f"\r\x1b[K{bar} {text}")
            self._open = True
        else:
            self.stream.write(f"{text}\n")
        self.stream.flush()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open:  # the line is free for what comes next
            self.stream.write("\r\x1b[K")
            self.stream.flush()
