"""Processes that tests start, watch and end."""

import subprocess
import sys
import time

import psutil

PATIENCE = 600.0  # seconds; a busy machine needs a minute of them to import Lightning


def start(*argv, module="phnn"):
    """Start the command line in a process of its own."""
    python = [sys.executable, "-W", "ignore", *(["-m", module] if module else [])]
    return subprocess.Popen(
        [*python, *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition, process=None):
    """Wait until a condition holds; fail when the process ends before."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended with {process.returncode}: {process.communicate()[1]}")
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.01)


def list_children(process):
    """Return the processes below a process."""
    return psutil.Process(process.pid).children(recursive=True)


def wait_until_gone(processes, seconds):
    """Wait until processes have ended; fail with those that have not."""
    _, alive = psutil.wait_procs(processes, seconds)
    alive = [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
    assert not alive
