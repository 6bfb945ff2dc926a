"""A case in a process of its own, with bounds on its time and memory."""

import json
import os
import resource
import signal
import sys
import time
import traceback

from attack.outcomes import Outcome

CPU_SECONDS = 5.0  # of a hostile file
WALL_SECONDS = 90.0  # for one that waits: on a pipe, say; the machine may be busy
PAUSE = 1.0  # seconds between two looks at a case that count at most: the attack may be paused
MEMORY = 2**30  # bytes, beyond what the process had before


class RefusedError(Exception):
    """phnn refused the case with a reason, as it should."""


def run_case(kind, number, case, cpu=CPU_SECONDS, wall=WALL_SECONDS, memory=MEMORY):
    """Run a function in a fork of this process, and return what came of it.

    Args:
        kind: The kind of attack.
        number: The number of the case.
        case: A function; it returns what it did, raises RefusedError, or anything else if phnn is
            wrong.
        cpu: Seconds of the processor that it may take.
        wall: Seconds on the clock after which it counts as hung.
        memory: Bytes that it may take beyond those of this process.
    """
    before = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _run(case, writing, cpu)
    os.close(writing)
    status, usage, hung = _wait(pid, wall)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    seconds = usage.ru_utime + usage.ru_stime
    if hung or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return Outcome(kind, number, "hung", f"{text}: {seconds:.1f} s of the processor", seconds)
    if not text.endswith("}"):
        return Outcome(kind, number, "wrong", f"{text}: ended with status {status}", seconds)
    said = json.loads(text[text.index("{") :])
    extra = 1024 * usage.ru_maxrss - before
    if extra > memory and said["verdict"] != "wrong":
        said = {"verdict": "wrong", "detail": f"{extra / 1e9:.2f} GB; {said['detail']}"}
    return Outcome(kind, number, said["verdict"], said["detail"][:2000], seconds)


def _run(case, writing, cpu):
    """Run the case and end the process."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit = int(used + cpu) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 2))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        said = {"verdict": "fine", "detail": str(case())}
    except RefusedError as error:
        said = {"verdict": "refused", "detail": str(error)}
    except BaseException:
        said = {"verdict": "wrong", "detail": traceback.format_exc()[-1900:]}
    os.write(writing, json.dumps(said).encode())
    os._exit(0)


def _wait(pid, wall):
    waited, now = 0.0, time.monotonic()
    while waited < wall:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return status, usage, False
        time.sleep(0.005)
        waited, now = waited + min(time.monotonic() - now, PAUSE), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return status, usage, True
