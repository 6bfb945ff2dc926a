"""The number of threads that small linear algebra is given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]

_lock = threading.Lock()
_inside = 0  # how many are in such a section
_threads = 1  # what the first of them found


@contextmanager
def one_thread() -> Iterator[None]:
    """Keeps linear algebra on one thread: its matrices are too small to share.

    Threads meet after every step, and where other work keeps the cores busy they wait for each
    other: 256 × 256 eigenvalues then took 5.7 s on two threads and 8 ms on one.

    Other threads keep the number that they have, but torch gives the one of here to those that use
    it first meanwhile.
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
