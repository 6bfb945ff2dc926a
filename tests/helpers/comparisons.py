"""Comparisons whose runs take place in the process of the test."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from phnn.lab.training import __main__ as child
from phnn.lab.training import processes


def replace_popen(monkeypatch, popen):
    """Replace how a comparison, and nothing else, starts processes."""
    fake = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    monkeypatch.setattr(processes, "subprocess", fake)


def run_in_process(monkeypatch, before=lambda folder: None):
    """Let runs take place here: starting Python for each takes seconds.

    Returns:
        The names of the folders of the runs, as they are started.
    """
    started = []

    class Process:
        def __init__(self, command, **options):
            *python, folder, description = command
            assert python == [sys.executable, "-m", "phnn.lab.training"]
            started.append(Path(folder).name)
            before(folder)
            try:
                self.returncode = child.main(folder, description)
            except (RuntimeError, ValueError):  # a process would print it
                self.returncode = 1

        def poll(self):
            return self.returncode

    replace_popen(monkeypatch, Process)
    return started
