"""Where a result comes from: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import phnn

if TYPE_CHECKING:
    import lightning


def describe_environment(trainer: lightning.Trainer) -> dict[str, Any]:
    """Return when, where and with what a run was made."""
    import lightning  # takes seconds

    machine = describe_machine()
    return {
        "ended": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": trainer.strategy.root_device.type,
        "devices": trainer.world_size,
        "precision": trainer.precision,
        "threads": torch.get_num_threads(),
        **machine,
        "versions": {**machine["versions"], "lightning": lightning.__version__},
    }


def describe_machine() -> dict[str, Any]:
    """Return the machine, the commit and the versions."""
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "commit": find_commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "phnn": phnn.__version__,
        },
    }


def find_commit() -> str:
    """Return the commit of phnn, with "-dirty" when files differ; its version outside of git."""
    root = Path(phnn.__file__).resolve().parents[2]
    if not (root / ".git").exists():  # installed; a folder above may be somebody else's repository
        return phnn.__version__
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    command += ["--exclude", "*"]  # tags
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return phnn.__version__
    return found.stdout.strip()
