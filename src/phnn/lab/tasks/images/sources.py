"""Where encoded images come from: the Hugging Face hub, its files on disk, folders of classes."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from phnn._names import suggest
from phnn.lab.seeds import derive_seed, permutation_of

logger = logging.getLogger(__name__)

SPLIT_NAMES = {
    "train": "train", "training": "train",
    "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
SHUFFLE_BUFFER = 10_000  # rows held while a stream is shuffled: about 1 GB of ImageNet's JPEG bytes
TABLE_SUFFIXES = {".parquet", ".arrow", ".tar"}


@dataclass(frozen=True)
class Known:
    """A data set of the paper.

    Attributes:
        hub: its name on the Hugging Face hub.
        config: which of its variants.
        mean: subtracted from values in [0, 1].
        std: divided by.
        parts: what its parts are used as, where that is not their names.
    """

    hub: str
    config: str | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    parts: Mapping[str, str] = field(default_factory=dict)


KNOWN: dict[str, Known] = {
    "cifar10": Known(
        "uoft-cs/cifar10", None, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    ),
    "cifar100": Known(
        "uoft-cs/cifar100", None, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    ),
    "svhn": Known("ufldl-stanford/svhn", "cropped_digits", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "imagenet": Known(
        "ILSVRC/imagenet-1k", None, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225),
        parts={"train": "train", "validation": "test"},  # its own test part has no labels
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Encoded:
    """One image as it is stored.

    Attributes:
        name: what to call it in a message.
        content: its bytes, or the file that holds them.
        label: the index of its class; -1 where the source does not tell.
    """

    name: str
    content: bytes | Path
    label: int


class Rows(Protocol):
    """The images of one part."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Encoded]: ...

    def shuffled(self, seed: int, epoch: int) -> Iterable[Encoded]:
        """Returns the images in the order that (seed, epoch) names."""
        ...


@dataclass(frozen=True)
class Opened:
    """An open source: its classes and its parts by canonical name."""

    classes: tuple[str, ...]
    parts: Mapping[str, Rows]


class Source(Protocol):
    """A source that can be told from others before it is read."""

    @property
    def fingerprint(self) -> str:
        """Changes when the data change."""
        ...

    def open(self, *, streaming: bool = False) -> Opened:
        """Reads everything but the images."""
        ...


def open_source(name: str, root: str | Path | None) -> Source:
    """Finds the source that a data set name and an optional local folder stand for."""
    known = KNOWN.get(name)
    parts = known.parts if known else {}
    if root is None:
        hub, config = (known.hub, known.config) if known else (name, None)
        return HubSource(hub, config, parts)
    folder = Path(root).expanduser()
    if not folder.is_dir():
        hint = suggest(folder.name, (p.name for p in folder.parent.glob("*") if p.is_dir()))
        raise FileNotFoundError(f"root={str(root)!r} is not a folder; {hint}see load_images")
    if any(p.suffix in TABLE_SUFFIXES for p in folder.rglob("*")):
        return TableFolder(folder, parts)
    return ClassFolders(folder, parts)


def _fingerprint_folder(folder: Path, parts: Mapping[str, str]) -> str:
    digest = hashlib.sha256(f"{folder.resolve()}\0{sorted(parts.items())}\0".encode())
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        stat = path.stat()
        entry = f"{path.relative_to(folder).as_posix()}\0{stat.st_size}\0{stat.st_mtime_ns}\0"
        digest.update(entry.encode())
    return digest.hexdigest()


# --- Hugging Face datasets ---------------------------------------------------------------------


@dataclass(frozen=True)
class TableRows:
    """The rows of a Hugging Face dataset, in memory or streamed."""

    table: Any
    part: str
    image: str
    label: str
    size: int

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Encoded]:
        return self._encode(self.table)

    def shuffled(self, seed: int, epoch: int) -> Iterable[Encoded]:
        """Returns the rows shuffled; those of a stream within a moving buffer, as are its files."""
        seed = derive_seed(seed, epoch) % 2**32  # what numpy's legacy seeds take
        if hasattr(self.table, "__len__"):  # on disk as `save_to_disk` wrote it: any order is cheap
            return self._encode(self.table.shuffle(seed=seed, keep_in_memory=True))
        return self._encode(self.table.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER))

    def _encode(self, table: Iterable[Mapping[str, Any]]) -> Iterator[Encoded]:
        for place, row in enumerate(table):
            cell = row[self.image]
            name = f"{self.part} row {place}" + (f" ({cell['path']})" if cell["path"] else "")
            content = cell["bytes"] if cell["bytes"] is not None else Path(cell["path"])
            yield Encoded(name, content, row[self.label])


@dataclass(frozen=True)
class HubSource:
    """A dataset of the Hugging Face hub."""

    hub: str
    config: str | None
    parts: Mapping[str, str]

    @cached_property
    def _tables(self) -> Mapping[str, Any]:
        return self._load(streaming=False)

    @property
    def fingerprint(self) -> str:
        """Combines the fingerprints that `datasets` gives each part."""
        marks = [f"{split}={table._fingerprint}" for split, table in sorted(self._tables.items())]
        return hashlib.sha256("\0".join([self.hub, *marks]).encode()).hexdigest()

    def open(self, *, streaming: bool = False) -> Opened:
        """Downloads the dataset (through the cache of `datasets`), or begins to stream it."""
        tables = self._load(streaming=True) if streaming else self._tables
        return _open_tables(self.hub, tables, self.parts)

    def _load(self, *, streaming: bool) -> Mapping[str, Any]:
        import datasets

        try:
            return datasets.load_dataset(self.hub, self.config, streaming=streaming)  # type: ignore[no-any-return]
        except (OSError, ValueError) as error:
            raise ValueError(
                f"the hub data set {self.hub!r} cannot be loaded: {error}. Without a network, pass "
                "root=, a folder with its parquet files"
            ) from error


@dataclass(frozen=True)
class TableFolder:
    """A folder with parquet, arrow or tar files, or with a dataset written by `save_to_disk`."""

    folder: Path
    parts: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """Hashes names, sizes and times of the files."""
        return _fingerprint_folder(self.folder, self.parts)

    def open(self, *, streaming: bool = False) -> Opened:
        """Opens the tables; `streaming` avoids the copy that `datasets` makes of them."""
        return _open_tables(str(self.folder), self._load(streaming), self.parts)

    def _load(self, streaming: bool) -> Mapping[str, Any]:
        import datasets

        if any((self.folder / mark).exists() for mark in ("dataset_dict.json", "state.json")):
            saved = datasets.load_from_disk(str(self.folder))
            return saved if isinstance(saved, Mapping) else {"train": saved}
        return datasets.load_dataset(str(self.folder), streaming=streaming)  # type: ignore[no-any-return]


def _open_tables(name: str, tables: Mapping[str, Any], renamed: Mapping[str, str]) -> Opened:
    import datasets

    parts: dict[str, Rows] = {}
    classes: tuple[str, ...] = ()
    for split, table in tables.items():
        part = _part_of(split, renamed)
        if part is None:
            continue
        image, label = find_columns(name, table.features)
        classes = classes or tuple(table.features[label].names)
        # select_columns: a mask or a caption beside the image need not be read
        plain = table.select_columns([image, label])
        plain = plain.cast_column(image, datasets.Image(decode=False))
        parts[part] = TableRows(plain, split, image, label, _count_rows(name, split, table))
    if not parts:
        raise ValueError(
            f"{name} has the parts {', '.join(tables)}; none is called "
            f"{' or '.join(renamed or SPLIT_NAMES)}"
        )
    return Opened(classes, parts)


def _part_of(split: str, renamed: Mapping[str, str]) -> str | None:
    """Returns what a split of a source is used as; None when it is not used."""
    part = SPLIT_NAMES.get(split.lower())
    return renamed.get(part or "") if renamed else part


def _count_rows(name: str, split: str, table: Any) -> int:
    """Returns the number of rows; of a stream, from what is known about its files."""
    import datasets
    from pyarrow import parquet  # type: ignore[import-untyped]

    if isinstance(table, datasets.Dataset):
        return len(table)
    known = table.info.splits or {}
    if split in known:
        return int(known[split].num_examples)
    files = datasets.load_dataset_builder(name).config.data_files[split]
    if not all(Path(file).suffix == ".parquet" for file in files):
        raise ValueError(
            f"the stream of {name}, part {split}, does not tell how many images it has, which a "
            "schedule needs; convert it to parquet, or add dataset_info to its README.md"
        )
    return sum(parquet.read_metadata(file).num_rows for file in files)


def find_columns(name: str, features: Mapping[str, Any] | None) -> tuple[str, str]:
    """Finds the image column and the label column by their types.

    Of several label columns the one with the most classes is taken: CIFAR-100's 100 rather than its
    20 coarse ones.

    Args:
        name: the data set, for the message.
        features: its columns with their types.
    """
    import datasets

    columns = features or {}
    images = [column for column, kind in columns.items() if isinstance(kind, datasets.Image)]
    labels = [column for column, kind in columns.items() if isinstance(kind, datasets.ClassLabel)]
    if len(images) != 1 or not labels:
        found = ", ".join(f"{column}: {type(kind).__name__}" for column, kind in columns.items())
        raise ValueError(
            f"{name} must have one Image column and a ClassLabel column; it has {found or 'none'}. "
            "datasets.Dataset.cast_column gives a column its type"
        )
    return images[0], max(labels, key=lambda column: columns[column].num_classes)


# --- folders of classes ------------------------------------------------------------------------


@dataclass(frozen=True)
class FileRows:
    """Image files with their labels."""

    files: Sequence[tuple[Path, int]]

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Encoded]:
        return (Encoded(str(path), path, label) for path, label in self.files)

    def shuffled(self, seed: int, epoch: int) -> Iterable[Encoded]:
        """Returns the files in a random order."""
        order = permutation_of(len(self), seed, epoch).tolist()
        return FileRows([self.files[place] for place in order])


@dataclass(frozen=True)
class ClassFolders:
    """A folder with one folder per class, directly or under train/, validation/ and test/."""

    folder: Path
    parts: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """Hashes names, sizes and times of the files."""
        return _fingerprint_folder(self.folder, self.parts)

    def open(self, *, streaming: bool = False) -> Opened:
        """Lists the files; there is nothing to stream."""
        del streaming
        inside = _subfolders(self.folder)
        splits = [path for path in inside if path.name.lower() in SPLIT_NAMES]
        # among folders of images, one of these names is a class: that of trains
        if splits and (splits == inside or any(map(_subfolders, splits))):
            folders = self._assign(splits)
            unused = ", ".join(path.name for path in inside if path not in splits)
            if unused:
                logger.warning("%s: %s is no part of the data", self.folder, unused)
        else:
            _check_classes(self.folder, inside)
            folders = {"train": self.folder}
        classes = _common_classes(folders)
        rows = {part: FileRows(_list_files(path, classes)) for part, path in folders.items()}
        return Opened(classes, rows)

    def _assign(self, splits: Sequence[Path]) -> dict[str, Path]:
        folders: dict[str, Path] = {}
        for path in splits:
            part = _part_of(path.name, self.parts)
            if part in folders:
                raise ValueError(f"{folders[part]} and {path} are both the {part} part; keep one")
            if part is not None:
                folders[part] = path
        if not folders:
            held = ", ".join(path.name for path in splits)
            raise ValueError(
                f"{self.folder} holds {held} alone; expected {' and '.join(self.parts)}"
            )
        return folders


def _check_classes(folder: Path, classes: Sequence[Path]) -> None:
    """Raises an error for folders that look like parts with names that are not known."""
    inner = [[path.name for path in _subfolders(each)] for each in classes]
    if len(classes) > 1 and len(inner[0]) > 1 and all(names == inner[0] for names in inner):
        raise ValueError(
            f"{folder} has the folders {', '.join(path.name for path in classes)}, each with "
            f"{', '.join(inner[0][:3])}…: if they are parts of the data, call them "
            f"{', '.join(SPLIT_NAMES)}; if they are classes, put the images directly into them"
        )


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _common_classes(folders: Mapping[str, Path]) -> tuple[str, ...]:
    """Returns the class folders that every part must have."""
    found = {path: tuple(p.name for p in _subfolders(path)) for path in folders.values()}
    first, classes = next(iter(found.items()))
    for path, names in found.items():
        if not names:
            raise ValueError(
                f"{path} has no class folders; expected one folder of images per class, directly "
                "or under train/, validation/ and test/"
            )
        for one, other, missing in (
            (path, first, set(classes) - set(names)),
            (first, path, set(names) - set(classes)),
        ):
            if missing:
                raise ValueError(
                    f"{one} lacks the class folder {', '.join(sorted(missing))}, which {other} has"
                )
    return classes


def _list_files(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    suffixes = Image.registered_extensions()
    files: list[tuple[Path, int]] = []
    for label, name in enumerate(classes):
        members = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in suffixes)
        if not members:
            raise ValueError(f"the class folder {folder / name} holds no image files")
        files += [(path, label) for path in members]
    return files
