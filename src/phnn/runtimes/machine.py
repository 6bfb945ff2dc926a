"""The machine that runs modules."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def describe_processor() -> str:
    """Return the name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_machine(device: torch.device | str = "cpu") -> str:
    """Return the processor, its cores and the threads of torch, and the GPU of a CUDA device."""
    found = (
        f"{describe_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads of "
        "torch"
    )
    if torch.device(device).type == "cuda":
        found += f", {torch.cuda.get_device_name(device)}"
    return found
