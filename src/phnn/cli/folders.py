"""The folder of a run, by a name that tells what differs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from phnn.lab.recipe import PRIVATE, Recipe, differences
from phnn.lab.runs import CONFIG, RESULT, Run, RunFolderError, describe_layers, name_start

LONGEST = 120  # characters of a name, before its hash
# options that have words of their own in a name, or none
_NAMED = {"model.n", "model.algebra", "seed", "start", "distill", "data.name", "data.root"}
_LENGTH = "trainer.max_epochs"


def choose_folder(parent: Path, name: str, packaged: Recipe, recipe: Recipe) -> Path:
    """Return the folder of a run. Runs that compute something else get another one.

    The number of epochs is not in its name: a run with more epochs goes on in the same folder. Only
    a run that is shorter than the one there has its own.

    Args:
        parent: The folder of the folders.
        name: The name of the recipe.
        packaged: The recipe as it is.
        recipe: The recipe with the options that were given.
    """
    folder = parent / _name(name, packaged, recipe)
    trained = _count_epochs(folder)
    epochs = recipe.trainer.max_epochs
    if trained is not None and epochs < trained:
        return folder.with_name(f"{folder.name}-epochs={epochs}")
    return folder


def _name(name: str, packaged: Recipe, recipe: Recipe) -> str:
    parts = [name, name_variant(recipe), *_name_data(packaged, recipe)]
    changes = _name_changes(packaged, recipe, skip={*_NAMED, _LENGTH})
    return _join([*parts, *changes, f"seed{recipe.seed}"])


def name_comparison(name: str, packaged: Recipe, recipe: Recipe) -> str:
    """Return the name of the folder of a comparison.

    Args:
        name: The name of the comparison.
        packaged: The recipe of its first run as it is.
        recipe: The same with the options that were given.
    """
    given, known = recipe.data.get("name"), packaged.data.get("name")
    data = [str(given)] if given != known else []
    return _join([name, *data, *_name_changes(packaged, recipe, skip=_NAMED)])


def _name_changes(packaged: Recipe, recipe: Recipe, skip: Container[str]) -> Iterator[str]:
    """Yield the options that differ and change the result."""
    given = recipe.to_dict()
    for change in differences(packaged.to_dict(), given, ended=True):
        option = change.partition(":")[0]
        if option not in skip:
            section, _, key = option.partition(".")
            value = given[section][key] if key else given[section]
            yield f"{key or section}={_show(value)}"


def _join(parts: Iterable[str]) -> str:
    """Return a name that every file system takes."""
    whole = re.sub(r"[^\w=.+-]+", "-", "-".join(parts))
    if len(whole) <= LONGEST:
        return whole
    return f"{whole[:LONGEST]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def check_root(recipe: Recipe) -> None:
    """Raise an error when the folder of the data is missing, before anything is written."""
    root = recipe.data.get("root")
    if isinstance(root, str | Path) and not Path(root).expanduser().exists():
        raise FileNotFoundError(f"there is no folder {root} with the data; see --data.root")


def name_variant(recipe: Recipe) -> str:
    """Return what the network is: its algebra, n, or the file that it starts from."""
    has_layers = recipe.model.get("n") is not None or recipe.model.get("algebra") is not None
    words = [describe_layers(recipe.model)] if has_layers or recipe.start is None else []
    if recipe.start is not None:  # a converted network is not real, whatever the recipe says
        words.append(f"from-{name_start(recipe.start)}")
    return "-".join(words if recipe.distill is None else [*words, "distilled"])


def _name_data(packaged: Recipe, recipe: Recipe) -> list[str]:
    """Return the data set and the folder of its files, where they are not those of the recipe."""
    found = []
    for key in ("name", *PRIVATE[:1]):
        value = recipe.data.get(key)
        if value is not None and value != packaged.data.get(key):
            found.append(Path(str(value)).expanduser().resolve().name)
    return list(dict.fromkeys(found))


def _show(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count_epochs(folder: Path) -> int | None:
    """Return the epochs of the run in a folder; None if there is none."""
    if not (folder / CONFIG).is_file() or not (folder / RESULT).is_file():
        return None
    try:
        recipe = Run.open(folder).recipe or {}
    except RunFolderError:  # said when the folder is used
        return None
    epochs: int | None = recipe.get("trainer", {}).get("max_epochs")
    return epochs
