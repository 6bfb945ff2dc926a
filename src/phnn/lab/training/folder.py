"""The lock of a run folder: one process trains there at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import Timeout

from phnn.lab.files import lock
from phnn.lab.recipe import Recipe
from phnn.lab.runs import (
    FAILURE,
    LAST,
    RESULT,
    Run,
    RunFolderError,
    check_folder,
    read_json,
    write_json,
)

_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # in Lightning's order


def is_first_process() -> bool:
    """Return whether this process is the one of a run that writes files."""
    return int(next((os.environ[name] for name in _RANKS if name in os.environ), 0)) == 0


@contextmanager
def open_folder(
    out: Path, recipe: Recipe, names: Mapping[str, Any], wait: float
) -> Iterator[dict[str, Any] | None]:
    """Prepare a folder for a run, and keep other processes out of it meanwhile.

    Args:
        out: The folder.
        recipe: The recipe of the run.
        names: What a comparison calls the run; empty without one.
        wait: Seconds to wait for another process that holds the folder.

    Yields:
        The result, if the run has ended before.
    """
    if not is_first_process():
        yield read_json(out / RESULT)
        return
    out.mkdir(parents=True, exist_ok=True)
    try:
        held = lock(out / ".lock", wait)
    except Timeout:
        raise RunFolderError(
            f"another process is training in {out}; wait for it, or give another --out"
        ) from None
    with held:
        check_folder(out, recipe)
        result: dict[str, Any] | None = read_json(out / RESULT)
        if result is None:
            _prepare(out, recipe, names)
        try:
            yield result
        except Exception as error:
            write_json(out / FAILURE, {"error": f"{type(error).__name__}: {error}"})
            raise


def _prepare(out: Path, recipe: Recipe, names: Mapping[str, Any]) -> None:
    (out / FAILURE).unlink(missing_ok=True)
    for torn in (out / LAST).parent.glob(".*.tmp"):  # what a killed process was writing
        torn.unlink()
    run = Run.make(out, recipe, **names)
    if not names:
        with suppress(FileNotFoundError, RunFolderError):  # nothing was trained here
            old = Run.open(out)
            run = old.resume(recipe) if old.comparison or (out / LAST).exists() else run
    run.write()
