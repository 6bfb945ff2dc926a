"""Runs in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

from filelock import Timeout

from phnn.lab.files import lock
from phnn.lab.recipe import build_recipe
from phnn.lab.runs import FAILURE, Run, RunFolderError, check_folder

LOG = "train.log"  # in the folder of a run
END_SECONDS = 40.0  # for a run to end, which may first write a checkpoint
POLL_SECONDS = 0.2


@contextmanager
def hold(out: Path) -> Iterator[None]:
    """Keep other comparisons out of a folder.

    Args:
        out: The folder of the results.
    """
    out.mkdir(parents=True, exist_ok=True)
    try:
        held = lock(out / ".lock", 0)
    except Timeout:
        raise RunFolderError(
            f"another comparison is running in {out}; wait for it, or give another --out"
        ) from None
    with held:
        yield


def run_all(
    runs: Iterable[Run], jobs: int, report: Callable[[list[Run]], None], command: str = ""
) -> list[Run]:
    """Carry out runs, each in its own process. Runs that have ended are not repeated.

    The processes end with this one, however it ends: they watch a pipe from it.

    Args:
        runs: The runs.
        jobs: How many run at once. One shows its progress; several write it to `train.log` in
            their folders.
        report: A function of all runs with their outcomes so far. It is called at the beginning
            and whenever a run has ended.
        command: The command for the results.

    Returns:
        The runs with their outcomes.
    """
    known = [_read_outcome(run) for run in runs]
    known = [run if run.result is not None else replace(run, error=None) for run in known]
    waiting = deque(number for number, run in enumerate(known) if run.result is None)
    running: dict[int, subprocess.Popen[bytes]] = {}
    report(known)
    pipe, own_end = os.pipe()  # its own end is closed when this process ends
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number = waiting.popleft()
                running[number] = start(known[number], command, pipe, visible=jobs == 1)
            ended = [number for number, process in running.items() if process.poll() is not None]
            for number in ended:
                code = running.pop(number).returncode
                known[number] = _settle(known[number], code, has_log=jobs > 1)
                report(known)
            if not ended:
                sleep(POLL_SECONDS)
    finally:  # after an interrupt, no run is left behind
        end_all(running.values())
        os.close(pipe)
        os.close(own_end)
    return known


def end_all(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End processes with SIGTERM, each after its checkpoint; those that do not end are killed."""
    processes = list(processes)
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start(
    run: Run,
    command: str,
    pipe: int,
    *,
    visible: bool,
    module: str = "phnn.lab.training",
    environment: Mapping[str, str] | None = None,
    **details: Any,
) -> subprocess.Popen[bytes]:
    """Start a run in a process of its own.

    Args:
        run: The run.
        command: The command for the result.
        pipe: What the process reads: it ends when the other end is closed.
        visible: Whether it writes to this terminal, and not to `train.log`.
        module: The module that trains, which takes the folder and a description as JSON.
        environment: Variables of its environment besides those of this process.
        details: What the description has besides the recipe, the names and the command.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / FAILURE).unlink(missing_ok=True)  # of an earlier attempt
    names = {name: getattr(run, name) for name in ("comparison", "family", "variant")}
    what = json.dumps({"recipe": run.recipe, "names": names, "command": command, **details})
    argv = [sys.executable, "-m", module, str(run.folder), what]
    own = None if environment is None else {**os.environ, **environment}
    # a session of its own: Ctrl-C is for this process, which then ends the runs
    with nullcontext() if visible else (run.folder / LOG).open("ab") as log:
        return subprocess.Popen(
            argv, stdin=pipe, stdout=log, stderr=log, start_new_session=True, env=own
        )


def _read_outcome(run: Run) -> Run:
    """Return a run with its outcome; the result of another recipe is an error."""
    found = run.refresh()
    try:
        check_folder(run.folder, build_recipe(run.recipe or {}), asked=True)
    except RunFolderError as error:
        return replace(found, result=None, error=str(error))
    return found


def _settle(run: Run, code: int, *, has_log: bool) -> Run:
    """Return a run whose process has ended, with its outcome."""
    ended = _read_outcome(run)
    if ended.result is not None or ended.error is not None:
        return ended
    hint = f"; see {run.folder / LOG}" if has_log else ""
    return replace(ended, error=f"its process ended with exit code {code}{hint}")
