"""Signals that arrive while Python imports a module."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SECONDS = 0.05  # between two looks at whether the import has ended


def after_imports(handler: Callable[[int, FrameType | None], Any]) -> Callable[..., None]:
    """Return a handler of signals that waits until no import is under way.

    An exception out of a handler in the middle of an import may vanish, as in `except:`, or leave
    a module half made, and then something else fails.

    Args:
        handler: The handler, as of `signal.signal`.
    """
    waiting: set[int] = set()
    due: set[int] = set()

    def look_again(signum: int) -> None:
        due.add(signum)
        _thread.interrupt_main(signal.Signals(signum))

    def handle(signum: int, frame: FrameType | None) -> None:
        if signum in waiting and signum not in due:  # told again, and the import goes on
            return
        due.discard(signum)
        if is_importing(frame):
            waiting.add(signum)
            timer = threading.Timer(SECONDS, look_again, [signum])
            timer.daemon = True
            timer.start()
        else:
            waiting.discard(signum)
            handler(signum, frame)

    return handle


def is_importing(frame: FrameType | None) -> bool:
    """Return whether a frame is part of an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
