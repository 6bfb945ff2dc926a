"""Where encoded images come from."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from phnn._names import suggest
from phnn.lab.tasks.images.known import KNOWN

SPLIT_NAMES = {
    "train": "train", "training": "train",
    "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
TABLE_SUFFIXES = {".parquet", ".arrow", ".tar"}


@dataclass(frozen=True)
class Encoded:
    """One image as it is stored.

    Attributes:
        name: What to call it in a message.
        content: Its bytes, the file that holds them, or its pixels, uint8 (height, width, 3).
        label: The index of its class; -1 where the source does not tell.
    """

    name: str
    content: bytes | Path | npt.NDArray[np.uint8]
    label: int


class Rows(Protocol):
    """The images of one split."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Encoded]: ...

    def shuffled(self, seed: int, epoch: int) -> Iterable[Encoded]:
        """Return the images in the order that (seed, epoch) names."""
        ...


@runtime_checkable
class Shards(Protocol):
    """Rows in several files, of which each process can read its own."""

    def divide(self, processes: int) -> Sequence[Rows]:
        """Return the rows of each process; nothing when there are fewer files than processes."""
        ...


@dataclass(frozen=True)
class Opened:
    """An open source: its classes, and its splits by the names "train", "validation", "test"."""

    classes: tuple[str, ...]
    splits: Mapping[str, Rows]


class Source(Protocol):
    """A source of images."""

    @property
    def fingerprint(self) -> str:
        """A string that changes when the data change."""
        ...

    def open(self, *, streaming: bool = False) -> Opened:
        """Read everything but the images."""
        ...


def open_source(name: str, root: str | Path | None) -> Source:
    """Return the source that the name of a data set and an optional local folder stand for."""
    from phnn.lab.tasks.images.folders import ClassFolders
    from phnn.lab.tasks.images.stored import find_cifar, find_svhn
    from phnn.lab.tasks.images.tables import HubSource, TableFolder, find_configurations
    from phnn.lab.tasks.images.tars import TRAIN, ImageNetArchives, TarShards

    known = KNOWN.get(name)
    splits = known.splits if known else {}
    if root is None:
        hub, config = (known.hub, known.config) if known else (name, None)
        return HubSource(hub, config, splits)
    folder = Path(root).expanduser()
    if not folder.is_dir():
        hint = suggest(folder.name, (p.name for p in folder.parent.glob("*") if p.is_dir()))
        raise FileNotFoundError(f"root={str(root)!r} is not a folder; {hint}see load_images")
    own = find_cifar(folder) or find_svhn(folder)
    if own is not None:
        return own
    if (folder / TRAIN).is_file():
        return ImageNetArchives(folder)
    suffixes = {p.suffix for p in folder.rglob("*") if p.suffix in TABLE_SUFFIXES}
    if suffixes == {".tar"}:
        return TarShards(folder, splits)
    if suffixes:
        find_configurations(folder)
        return TableFolder(folder, splits)
    return ClassFolders(folder, splits)


def find_use(split: str, renamed: Mapping[str, str]) -> str | None:
    """Return what a split of a source is used as; None when it is not used.

    Args:
        split: The name that the source gives it.
        renamed: What the splits are used as, where that is not their names.
    """
    name = SPLIT_NAMES.get(split.lower())
    return renamed.get(name or "") if renamed else name


def fingerprint_folder(folder: Path, splits: Mapping[str, str]) -> str:
    """Return a hash of the names, sizes and times of the files in a folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return fingerprint_files(folder, files, splits)


def fingerprint_files(
    folder: Path, files: Iterable[Path], splits: Mapping[str, str] | None = None
) -> str:
    """Return a hash of the names, sizes and times of files in a folder, and of their use."""
    digest = hashlib.sha256(f"{folder.resolve()}\0{sorted((splits or {}).items())}\0".encode())
    for path in files:
        stat = path.stat()
        entry = f"{path.relative_to(folder).as_posix()}\0{stat.st_size}\0{stat.st_mtime_ns}\0"
        digest.update(entry.encode())
    return digest.hexdigest()
