"""The lock of a run folder: one process trains there at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import Timeout

from phnn.lab.files import lock
from phnn.lab.ranks import is_first_process
from phnn.lab.recipe import Recipe
from phnn.lab.runs import (
    CONFIG,
    FAILURE,
    LAST,
    METRICS,
    RESULT,
    Run,
    RunFolderError,
    check_folder,
    is_longer,
    read_json,
    write_json,
)


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
    new = [path for path in (out, *out.parents) if not path.exists()]
    try:
        held = lock(out / ".lock", wait)
    except Timeout:
        raise RunFolderError(
            f"another process is training in {out}; wait for it, or give another --out"
        ) from None
    with held:
        check_folder(out, recipe)
        result: dict[str, Any] | None = read_json(out / RESULT)
        if result is not None and (out / CONFIG).exists() and is_longer(Run.open(out), recipe):
            # what describes the shorter run goes first: a folder never holds half of each
            (out / RESULT).unlink()
            result = None
        if result is None:
            _prepare(out, recipe, names)
        try:
            yield result
        except BaseException as error:
            if new and not names and not (out / METRICS).exists():  # nothing was trained
                shutil.rmtree(out, ignore_errors=True)
                for parent in new[1:]:
                    with suppress(OSError):
                        parent.rmdir()
            elif isinstance(error, Exception):
                with suppress(OSError):  # a full disk must not hide the error itself
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
