"""Ctrl-C and SIGTERM, which end a run at a moment when it can continue later."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from phnn._signals import after_imports

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(SystemExit):
    """A signal ended the work. The exit code is that of a shell: 130 or 143.

    Args:
        signum: The signal.
    """

    def __init__(self, signum: int) -> None:
        self.exit_code = 128 + signum
        super().__init__(self.exit_code)
        self.name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name


class Stoppable:
    """A context in which Ctrl-C and SIGTERM raise `Stopped`, outside of imports.

    While `deferred` is true, the first signal only raises Lightning's flag: the trainer finishes
    its step and a checkpoint is written. A second signal ends the work at once. Outside the main
    thread, which alone can handle signals, the context does nothing.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.signum: int | None = None
        self._relaying = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stoppable:
        if threading.current_thread() is threading.main_thread():
            handle = after_imports(self._handle)
            self._before = {signum: signal.signal(signum, handle) for signum in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._relaying:
            return
        again, self.signum = self.signum is not None, self.signum or signum
        if again or not self.deferred:
            raise Stopped(self.signum)
        if signum == signal.SIGINT:  # Lightning finishes a step for SIGTERM alone
            self._relaying = True
            signal.raise_signal(signal.SIGTERM)
            self._relaying = False
