"""The folder of a run: whose it is, and whether somebody is at work in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from lightning.fabric.utilities.rank_zero import rank_zero_only

from phnn.io import replacing
from phnn.lab.recipe import Recipe, build_recipe, differences

RESULT = "result.json"
FAILURE = "failure.json"
CONFIG = "config.yaml"
MODEL = "model.safetensors"
LAST = "checkpoints/last.ckpt"
BEST = "checkpoints/best.ckpt"


class RunFolderError(ValueError):
    """A folder that cannot take the run."""


@contextmanager
def open_folder(out: Path, recipe: Recipe) -> Iterator[dict[str, Any] | None]:
    """Makes a folder ready for a run, and keeps other processes out of it meanwhile.

    Args:
        out: The folder.
        recipe: Of the run.

    Yields:
        The result, if the run has ended there before.
    """
    if not is_first_process():
        yield read_result(out)
        return
    out.mkdir(parents=True, exist_ok=True)
    with _alone_in(out):
        check_folder(out, recipe)
        result = read_result(out)
        if result is None:
            _prepare(out, recipe)
        try:
            yield result
        except Exception as error:
            write_json(out / FAILURE, {"error": f"{type(error).__name__}: {error}"})
            raise


def is_first_process() -> bool:
    """Returns whether this process speaks for the others of a run."""
    return not getattr(rank_zero_only, "rank", 0)


def read_result(folder: Path) -> dict[str, Any] | None:
    """Returns the result of the run in a folder, or None when it has not ended."""
    path = folder / RESULT
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read_failure(folder: Path) -> str | None:
    """Returns what stopped the run in a folder, or None when nothing did, or nobody could tell."""
    path = folder / FAILURE
    return json.loads(path.read_text(encoding="utf-8"))["error"] if path.exists() else None


def name_start(start: str) -> str:
    """Returns what to call the network that a run starts from.

    Its file or folder; of a file that is called as all are which phnn train writes, the folder.
    """
    path = Path(start).resolve()
    named = path.parent if path.name == MODEL else path
    return named.name.removesuffix(".safetensors")


def write_json(path: Path, content: Any) -> None:
    """Writes JSON so that the file is either complete or not there."""
    with replacing(path) as temporary:
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        temporary.write_text(text, encoding="utf-8")


def check_folder(out: Path, recipe: Recipe, config: str = CONFIG, *, went_on: bool = False) -> None:
    """Raises an error when a folder holds a run that is not of this recipe.

    Args:
        out: The folder, which need not be there.
        recipe: By which a run there would go on, or whose result would be taken from there.
        config: The file there that has the recipe of the run.
        went_on: Whether an ended run may differ in what may change when a run goes on.
    """
    path = out / config
    ended = (out / RESULT).exists()
    if not path.exists() or not (ended or (out / LAST).exists()):
        return
    try:
        old = build_recipe(yaml.safe_load(path.read_text(encoding="utf-8"))).to_dict()
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} is not a recipe ({error}); give another --out, or delete the folder"
        ) from error
    changed = differences(old, recipe.to_dict(), ended=ended and not went_on)
    if changed:
        moved = any(change.startswith("data.root:") for change in changed)
        raise RunFolderError(
            f"{out} holds a run of another recipe ({'; '.join(changed)}); give another --out, or "
            f"delete the folder{f'; if the data have moved, change {path}' if moved else ''}"
        )


def _prepare(out: Path, recipe: Recipe) -> None:
    (out / FAILURE).unlink(missing_ok=True)
    for torn in (out / LAST).parent.glob(".*.tmp"):  # what a killed process was writing
        torn.unlink()
    with replacing(out / CONFIG) as temporary:
        text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True)
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Holds a lock that ends with the process, however it ends."""
    with (out / ".lock").open("w") as file:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunFolderError(
                f"another process is training in {out}; wait for it, or give another --out"
            ) from None
        yield
