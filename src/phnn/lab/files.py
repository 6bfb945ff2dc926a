"""Files that somebody else may have written: read within bounds, locked without harm."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

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
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not JSON: {error}") from error


def read_table(path: Path, columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return the complete rows of a CSV file; the last may be torn.

    Args:
        path: The file.
        columns: The columns that it must have.

    Raises:
        FileError: It cannot be read, is not CSV, or lacks a column.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_text(path)))
        missing = [name for name in columns if name not in (reader.fieldnames or columns)]
        rows = [row for row in reader if None not in row and None not in row.values()]
    except csv.Error as error:
        raise FileError(f"{path} is not a table: {error}") from error
    if missing:
        raise FileError(f"{path} has no column {missing[0]}")
    return rows


def read_number(path: Path, row: Mapping[str, str], name: str) -> float:
    """Return the number in a column of a row; an empty cell is nan.

    Raises:
        FileError: It is not a number.
    """
    try:
        return float(row[name] or "nan")
    except (KeyError, ValueError) as error:
        raise FileError(f"{path}: {name} is {row.get(name)!r}, not a number") from error


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
            raise ValueError("an alias stands for itself")
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


def refuse_functions(tree: Mapping[Any, Any], path: Path) -> None:
    """Raise an error for a file that names a function, which phnn would import and call.

    Args:
        tree: What the file holds: a recipe, a comparison or a space.
        path: The file.

    Raises:
        FileError: It names one: as a network, as a teacher, or as a variant of a comparison.
    """
    for name in _list_functions(tree):
        raise FileError(
            f"{path} names the function {name}, which would run the code of somebody else; give "
            "--trust if you know the file"
        )


def _list_functions(tree: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in tree.items():
        last = str(key).rpartition(".")[2]  # a space may say model.name
        named = [value] if last == "name" else []
        if last == "distill" and not Path(str(value)).exists():  # a teacher may be a file
            named = [value]
        if last == "families" and isinstance(value, Mapping):
            named = [name for each in value.values() if isinstance(each, Mapping) for name in each]
        yield from (str(name) for name in named if ":" in str(name))
        if isinstance(value, Mapping):
            yield from _list_functions(value)


def open_log(path: Path) -> BinaryIO:
    """Open a file to write at its end.

    Args:
        path: The file. A link there is refused: writing would change what it points to.

    Raises:
        FileError: The path is a link, or no regular file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_BINARY"):  # where the system has them
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, or a fifo that nobody reads
            raise _not_regular(path) from None
        raise
    file = os.fdopen(descriptor, "ab")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise _not_regular(path)
    return file


def check_regular(path: Path) -> None:
    """Raise a FileError for a link, or what else is there and no regular file."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise _not_regular(path)


def _not_regular(path: Path) -> FileError:
    return FileError(f"{path} is not a regular file; delete it")


def lock(path: Path, wait: float = -1.0) -> AcquireReturnProxy[BaseFileLock]:
    """Hold a lock file, whose folder is made; use it with `with`.

    Args:
        path: The lock file. A link there is refused: opening it would change what it points to.
        wait: Seconds to wait for another process; without end if negative.

    Raises:
        FileError: The path is a link, or no regular file, or its folder cannot be made.
        filelock.Timeout: Another process holds it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise FileError(f"{path.parent} is a file, or in a file; name a folder") from error
    check_regular(path)
    held: BaseFileLock = FileLock(path)
    return held.acquire(timeout=wait)
