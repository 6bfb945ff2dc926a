"""Runs in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

from filelock import Timeout

from phnn.lab.files import lock, open_log
from phnn.lab.recipe import build_recipe
from phnn.lab.runs import FAILURE, PROGRESS, Run, RunFolderError, check_folder

LOG = "train.log"  # in the folder of a run
END_SECONDS = 40.0  # for a run to end, which may first write a checkpoint
POLL_SECONDS = 0.2
VISIBLE = "CUDA_VISIBLE_DEVICES"

Watch = Callable[[dict[int, str]], None]  # how far each running run is, by its number


@contextmanager
def hold(out: Path, shard: str | None = None) -> Iterator[None]:
    """Keep other comparisons out of a folder.

    Args:
        out: The folder of the results.
        shard: The share of the runs, such as "3/20". Processes with other shares may use the
            folder at the same time.
    """
    name = ".lock" if shard is None else f".lock-{shard.replace('/', '-of-')}"
    try:
        held = lock(out / name, 0)
    except Timeout:
        what = "comparison" if shard is None else f"process with the share {shard}"
        raise RunFolderError(
            f"another {what} is running in {out}; wait for it, or give another --out"
        ) from None
    with held:
        yield


def find_devices() -> tuple[str, ...]:
    """Return the CUDA devices that this process may use, as children are told of them."""
    import torch

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    return tuple(named[:count] if named else map(str, range(count)))


def run_all(
    runs: Iterable[Run],
    jobs: int,
    report: Callable[[list[Run]], None],
    command: str = "",
    watch: Watch | None = None,
    *,
    chosen: Iterable[Run] | None = None,
    devices: Sequence[str] = (),
) -> list[Run]:
    """Carry out runs, each in its own process. Runs that have ended are not repeated.

    The processes end with this one, however it ends: they watch a pipe from it.

    Args:
        runs: The runs.
        jobs: How many run at once. One shows its progress itself; the epochs of several are in
            `train.log` in their folders.
        report: A function of all runs with their outcomes so far. It is called at the beginning
            and whenever a run has ended.
        command: The command for the results.
        watch: Called several times a second with how far each of several runs is.
        chosen: The runs to carry out; the others are looked at alone, as somebody else may carry
            them out meanwhile. All of them by default.
        devices: The CUDA devices, as `find_devices` returns them. Each job sees one of them alone;
            without any, jobs see what this process sees.

    Returns:
        The runs with their outcomes.
    """
    runs = list(runs)
    folders = {run.folder for run in (runs if chosen is None else chosen)}
    known = [_read_outcome(run) for run in runs]
    known = [
        replace(run, error=None) if run.result is None and run.folder in folders else run
        for run in known
    ]
    waiting = deque(
        number for number, run in enumerate(known) if run.result is None and run.folder in folders
    )
    running: dict[int, subprocess.Popen[bytes]] = {}
    ranks: dict[int, int] = {}  # of the jobs, each with its device
    report(known)
    pipe, own_end = os.pipe()  # its own end is closed when this process ends
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number = waiting.popleft()
                ranks[number] = min(set(range(jobs)) - {ranks[each] for each in running})
                device = devices[ranks[number] % len(devices)] if devices else None
                own = None if device is None else {VISIBLE: device}
                running[number] = start(
                    known[number], command, pipe, visible=jobs == 1, environment=own
                )
            ended = [number for number, process in running.items() if process.poll() is not None]
            for number in ended:
                code = running.pop(number).returncode
                known[number] = _settle(known[number], code, has_log=jobs > 1)
                known = [run if run.folder in folders else _read_outcome(run) for run in known]
                report(known)
            if watch is not None and jobs > 1:
                watch({number: _read_progress(known[number]) for number in running})
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
    if run.folder.is_symlink():
        raise RunFolderError(f"{run.folder} is a link, not the folder of a run; delete it")
    run.folder.mkdir(parents=True, exist_ok=True)
    for name in (FAILURE, PROGRESS):  # of an earlier attempt
        (run.folder / name).unlink(missing_ok=True)
    names = {name: getattr(run, name) for name in ("comparison", "family", "variant")}
    about = {"recipe": run.recipe, "names": names, "command": command, "visible": visible}
    argv = [sys.executable, "-m", module, str(run.folder), json.dumps({**about, **details})]
    own = None if environment is None else {**os.environ, **environment}
    # a session of its own: Ctrl-C is for this process, which then ends the runs
    with nullcontext() if visible else open_log(run.folder / LOG) as log:
        return subprocess.Popen(
            argv, stdin=pipe, stdout=log, stderr=log, start_new_session=True, env=own
        )


def _read_progress(run: Run) -> str:
    """Return how far a run is, as it says itself."""
    try:
        return (run.folder / PROGRESS).read_text(encoding="utf-8") or "starting"
    except OSError:  # it imports torch and Lightning
        return "starting"


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
    (run.folder / PROGRESS).unlink(missing_ok=True)
    ended = _read_outcome(run)
    if ended.result is not None or ended.error is not None:
        return ended
    hint = f"; see {run.folder / LOG}" if has_log else ""
    return replace(ended, error=f"its process ended with exit code {code}{hint}")
