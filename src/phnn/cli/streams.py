"""Where a command writes: a reader who has gone, as of `| head`, does not end its work."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from phnn._screen import BEAT, format_time


class Notice:
    """A word on a terminal that goes away when anything else is written.

    After a second it counts, so that nobody takes a slow import for a command that hangs.

    Args:
        stream: The terminal; nothing is shown elsewhere.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._gone = threading.Event()
        self._gone.set()

    def show(self, text: str) -> None:
        """Show a text until something else is written."""
        if self._stream.isatty():
            self._gone = threading.Event()
            self._write(text)
            threading.Thread(target=self._count, args=[text, self._gone], daemon=True).start()

    def clear(self) -> None:
        """Remove the text."""
        with self._lock:
            if not self._gone.is_set():
                self._gone.set()
                self._write("\r\x1b[K")

    def _count(self, text: str, gone: threading.Event) -> None:
        began = time.monotonic()
        while not gone.wait(BEAT):
            with self._lock:
                if not gone.is_set():
                    self._write(f"\r{text} {format_time(time.monotonic() - began)}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class PatientStream:
    """A stream that writes nowhere once nobody reads it.

    Args:
        stream: The stream.
        notice: What to remove before the first text.

    Attributes:
        gone: Whether the reader has gone.
    """

    def __init__(self, stream: TextIO, notice: Notice) -> None:
        self._stream = stream
        self.notice = notice
        self.gone = False

    def write(self, text: str) -> int:
        """Write a text, if somebody reads it."""
        self.notice.clear()
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
    notice = Notice(sys.stderr)
    out, err = PatientStream(sys.stdout, notice), PatientStream(sys.stderr, notice)
    sys.stdout, sys.stderr = out, err
    try:
        yield out
        out.flush()
    finally:
        notice.clear()
        sys.stdout, sys.stderr = before


def announce(text: str) -> None:
    """Show a text on a terminal until anything is written: torch alone takes seconds to import."""
    if isinstance(sys.stderr, PatientStream):
        sys.stderr.notice.show(text)


def is_unread() -> bool:
    """Return whether nobody reads stdout any more."""
    return bool(getattr(sys.stdout, "gone", False))
