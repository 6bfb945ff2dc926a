"""The folder of a run, held by one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

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
    """Return whether this process speaks for the others of a run."""
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
        lock = FileLock(out / ".lock").acquire(timeout=wait)
    except Timeout:
        raise RunFolderError(
            f"another process is training in {out}; wait for it, or give another --out"
        ) from None
    with lock:
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
    try:
        run = Run.open(out)
    except (FileNotFoundError, RunFolderError):  # a new folder, or one in which nothing was trained
        run = Run.make(out, recipe)
    run = run.resume(recipe) if (out / LAST).exists() else replace(run, recipe=recipe.to_dict())
    replace(run, **names).write()
