"""Where a command writes: a reader who has gone, as of `| head`, does not end its work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class PatientStream:
    """A stream that writes nowhere once nobody reads it.

    Args:
        stream: The stream.

    Attributes:
        gone: Whether the reader has gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.gone = False

    def write(self, text: str) -> int:
        """Write a text, if somebody reads it."""
        if not self.gone:
            try:
                return self._stream.write(text)
            except BrokenPipeError:
                self._leave()
        return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        if not self.gone:
            try:
                self._stream.flush()
            except BrokenPipeError:
                self._leave()

    def _leave(self) -> None:
        """Let the rest go to the null device, also what the interpreter flushes at its end."""
        self.gone = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def patient_streams() -> Iterator[PatientStream]:
    """Make stdout and stderr patient; yields stdout."""
    before = sys.stdout, sys.stderr
    out, err = PatientStream(sys.stdout), PatientStream(sys.stderr)
    sys.stdout, sys.stderr = out, err  # type: ignore[assignment]
    try:
        yield out
        out.flush()
    finally:
        sys.stdout, sys.stderr = before


def is_unread() -> bool:
    """Return whether nobody reads stdout any more."""
    return bool(getattr(sys.stdout, "gone", False))
