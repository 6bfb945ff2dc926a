"""Memory of a call, and where the numbers come from; the timing is `phnn.runtimes.timing`."""

from __future__ import annotations

import ctypes
import datetime
import os
import platform
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import phnn
from phnn.lab.training.provenance import find_commit


def peak_memory(call: Callable[[], object]) -> int | None:
    """Bytes by which a call raises the resident memory at its highest; None where not on Linux."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not (reset.exists() and os.access(reset, os.W_OK)):
        return None
    call()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator kept from before would hide the rise
    reset.write_text("5")

    def kilobytes(key: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(key))
        return int(line.split()[1])

    before = kilobytes("VmRSS")
    call()
    return (kilobytes("VmHWM") - before) * 1024


def provenance() -> str:
    """Command, machine, versions and commit, to stand above a table."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":")[1].strip() if names else cpu
    command = shlex.join(["python", *sys.argv])
    return (
        f"`{command}` · {datetime.date.today()} · {cpu}, {torch.get_num_threads()} threads · "
        f"Python {platform.python_version()}, torch {torch.__version__}, phnn {phnn.__version__}, "
        f"commit {find_commit()}"
    )
