"""The number of threads for small linear algebra."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]

_lock = threading.Lock()
_inside = 0  # how many sections are active
_threads = 1  # the number of threads before the first of them


@contextmanager
def one_thread() -> Iterator[None]:
    """Run linear algebra on one thread: its matrices are too small to share.

    Threads synchronise after every step, and on busy cores they wait for each other: 256 × 256
    eigenvalues then took 5.7 s on two threads and 8 ms on one.

    Python threads that already use torch keep their number of threads. Those that use torch for the
    first time while a section is active start with one.
    """
    global _inside, _threads
    with _lock:
        if not _inside:
            _threads = torch.get_num_threads()
        _inside += 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            torch.set_num_threads(_threads)
