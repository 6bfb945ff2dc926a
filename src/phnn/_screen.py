"""How far work is, on stderr: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TextIO

from phnn._names import printable

QUIET = 1.5  # seconds before a live line is shown: what is quick is not shown
PAUSE = 10.0  # seconds between two plain lines
REFRESH = 0.1  # seconds between two changes on a terminal
BEAT = 1.0  # seconds between two changes of the time on a terminal
WIDTH = 20  # characters of a bar

Progress = Callable[[str, int, int], None]  # what is done, how far, and of how much


class Screen:
    """Lines that stay, and below them live lines that change.

    On a terminal the live lines are written over, and a time goes on in them while a step takes
    long. Elsewhere, as in a log, one of them is written from time to time.

    Args:
        stream: Where to write; stderr by default.
        quiet: Seconds before the first live line; 1.5 by default.
    """

    def __init__(self, stream: TextIO | None = None, quiet: float | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.is_terminal = self.stream.isatty()
        self._quiet_until = time.monotonic() + (QUIET if quiet is None else quiet)
        self._shown_at = -PAUSE
        self._shown: Sequence[str] = ()
        self._height = 0  # live lines on the terminal now
        self._lock = threading.RLock()
        self._live: Callable[[], str] | None = None  # the live line, if it has a time in it
        self._pulse: threading.Event | None = None  # ends what draws it again

    def say(self, *lines: str) -> None:
        """Write lines that stay; what they name may come from a file."""
        with self._lock:
            self._write(self._erase() + "".join(f"{printable(line)}\n" for line in lines))

    def show(self, *lines: str, now: bool = False) -> None:
        """Replace the live lines.

        Args:
            lines: The new ones.
            now: Whether to show them even if others were shown a moment ago.
        """
        with self._lock:
            self._live = None
            self._draw(lines, now)

    def phase(self, text: str) -> None:
        """Say what begins now, to somebody who watches; a log has no use for it."""
        if self.is_terminal:
            began = time.monotonic()
            self._keep(lambda: f"{text} … {_tell(began)}".rstrip(), now=True)

    def close(self) -> None:
        """Remove the live lines."""
        with self._lock:
            self._live = None
            if self._pulse is not None:
                self._pulse.set()
                self._pulse = None
            self._write(self._erase())

    def _keep(self, live: Callable[[], str], *, now: bool) -> None:
        """Show a line, and on a terminal draw it again while it is the live line."""
        with self._lock:
            self._live = live
            self._draw([live()], now)
            if self.is_terminal and self._pulse is None:
                self._pulse = threading.Event()
                threading.Thread(target=self._beat, args=[self._pulse], daemon=True).start()

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(BEAT):
            with self._lock:
                if self._live is not None:
                    self._draw([self._live()], now=False)

    def _draw(self, lines: Sequence[str], now: bool) -> None:
        clock = time.monotonic()
        pause = REFRESH if self.is_terminal else PAUSE
        if clock < self._quiet_until or (clock - self._shown_at < pause and not now):
            return
        if not self.is_terminal and lines == self._shown:
            return
        self._shown_at, self._shown = clock, lines
        if self.is_terminal:
            columns, rows = shutil.get_terminal_size()
            kept = [line[: columns - 1] for line in lines[: rows - 1]]
            text = self._erase() + "\n".join(kept)
            self._height = len(kept)
            self._write(text)
        else:
            self._write("".join(f"{line}\n" for line in lines))

    def _erase(self) -> str:
        """Return what removes the live lines."""
        if not self._height:
            return ""
        up = f"\x1b[{self._height - 1}A" if self._height > 1 else ""
        self._height = 0
        return f"\r{up}\x1b[J"

    def _write(self, text: str) -> None:
        if text:
            self.stream.write(text)
            self.stream.flush()

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ProgressBar(Screen):
    """Shows what is done, how far, of how much, and the time that is left."""

    def __init__(self, stream: TextIO | None = None, quiet: float | None = None) -> None:
        super().__init__(stream, quiet)
        self._seen: set[str] = set()
        self._began: dict[str, tuple[float, int, int]] = {}  # time and count at first, last count

    def __enter__(self) -> ProgressBar:
        return self

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show a step."""
        clock = time.monotonic()
        began, first, last = self._began.get(what, (clock, done, done))
        if done < last:  # the same again, as for another budget
            began, first = clock, done
        self._began[what] = (began, first, done)

        def describe() -> str:
            text, spent = f"{what}: {done} of {total}", time.monotonic() - began
            if first < done < total and spent > QUIET:
                text += f", {format_time(spent / (done - first) * (total - done))} left"
            elif self.is_terminal and spent > QUIET:
                text += f", {_tell(began)} so far"
            return f"{draw_bar(done, total)} {text}" if self.is_terminal else text

        self._keep(describe, now=what not in self._seen)
        if clock >= self._quiet_until:
            self._seen.add(what)


def _tell(began: float) -> str:
    """Return the time since a moment, once it is worth a word."""
    spent = time.monotonic() - began
    return format_time(spent) if spent > QUIET else ""


def draw_bar(done: float, total: float, width: int = WIDTH) -> str:
    """Return a bar.

    Example:
        >>> draw_bar(1, 4, 8)
        '██······'
    """
    full = min(width, max(0, round(width * done / max(total, 1))))
    return "█" * full + "·" * (width - full)


def format_time(seconds: float) -> str:
    """Return a time as people read it.

    Example:
        >>> format_time(4.2), format_time(75), format_time(3 * 3600 + 60)
        ('4 s', '1:15', '3:01:00')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, last = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{last:02}" if hours else f"{minutes}:{last:02}"
