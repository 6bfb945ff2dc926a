"""Files that somebody else may have written: read within bounds, locked without harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from filelock import AcquireReturnProxy, BaseFileLock, FileLock

LONGEST = 2**26  # bytes of a text file: a result with thousands of runs has a tenth of it
LONGEST_YAML = 2**20  # recipes have a few thousand bytes
MOST_NODES = 100_000  # values of a YAML file, with every alias counted as what it stands for


class FileError(ValueError):
    """A file that cannot be what it should be."""


def read_text(path: Path, longest: int = LONGEST) -> str:
    """Return the contents of a text file.

    Args:
        path: The file.
        longest: The bytes it may have.

    Raises:
        FileError: It is no regular file (a fifo would never end), too long, or not UTF-8.
    """
    if path.exists() and not path.is_file():
        raise FileError(f"{path} is not a regular file")
    size = path.stat().st_size
    if size > longest:
        raise FileError(f"{path} has {size:,} bytes, at most {longest:,} are read")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not a text file: {error}") from error


def read_json(path: Path) -> Any:
    """Return the contents of a JSON file.

    Raises:
        FileError: It cannot be read, or is not JSON.
    """
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise FileError(f"{path} is not JSON: {error}") from error


def parse_yaml(text: str, name: str) -> Any:
    """Return what a YAML text says.

    A few lines of aliases can stand for billions of values: they are counted before any is made.

    Args:
        text: The text.
        name: What to call it in an error.

    Raises:
        FileError: It is not YAML, or stands for too much.
    """
    if len(text) > LONGEST_YAML:
        raise FileError(f"{name} has {len(text):,} characters, at most {LONGEST_YAML:,} are read")
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        count = 0 if root is None else _count(root, {})
        if count > MOST_NODES:
            raise FileError(f"{name} stands for {count:,} values, at most {MOST_NODES:,} are read")
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{name} is not YAML: {error}") from error


def _count(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Return the number of values below a node, with each alias counted every time."""
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise FileError("an alias stands for itself")
        return found
    known[id(node)] = None
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    count = 1 + sum(_count(child, known) for child in children)
    known[id(node)] = count
    return count


def lock(path: Path, wait: float = -1.0) -> AcquireReturnProxy[BaseFileLock]:
    """Hold a lock file; use it with `with`.

    Args:
        path: The lock file. A link there is refused: opening it would change what it points to.
        wait: Seconds to wait for another process; without end if negative.

    Raises:
        FileError: The path is a link, or no regular file.
        filelock.Timeout: Another process holds it.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise FileError(f"{path} is not a regular file; delete it")
    held: BaseFileLock = FileLock(path)
    return held.acquire(timeout=wait)
