"""Images in the data sets of Hugging Face, from the hub or from files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from phnn.lab.seeds import derive_seed
from phnn.lab.tasks.images.archives import Archives
from phnn.lab.tasks.images.sources import (
    SPLIT_NAMES,
    TABLE_SUFFIXES,
    Encoded,
    Opened,
    Rows,
    find_use,
    fingerprint_folder,
)
from phnn.lab.tasks.images.stored import refuse_several

SHUFFLE_BUFFER = 10_000  # rows held while a stream is shuffled: about 1 GB of ImageNet's JPEG bytes


@dataclass(frozen=True)
class TableRows:
    """The rows of a Hugging Face data set, in memory or streamed."""

    table: Any
    split: str
    image: str
    label: str
    size: int
    sizes: tuple[int, ...] = ()  # of each file of a stream, where they are known

    def divide(self, processes: int) -> list[TableRows]:
        """Return the rows of each process: every so many files are its own."""
        if len(self.sizes) < processes:
            return []
        return [
            replace(
                self,
                table=self.table.shard(processes, process, contiguous=False),
                size=sum(self.sizes[process::processes]),
                sizes=self.sizes[process::processes],
            )
            for process in range(processes)
        ]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Encoded]:
        return self._encode(self.table)

    def shuffled(self, seed: int, epoch: int) -> Iterable[Encoded]:
        """Return the rows shuffled; those of a stream within a moving buffer, as are its files."""
        seed = derive_seed(seed, epoch) % 2**32  # what numpy's legacy seeds take
        if hasattr(self.table, "__len__"):  # on disk as `save_to_disk` wrote it: any order is cheap
            return self._encode(self.table.shuffle(seed=seed, keep_in_memory=True))
        return self._encode(self.table.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER))

    def _encode(self, table: Iterable[Mapping[str, Any]]) -> Iterator[Encoded]:
        for number, row in enumerate(table):
            cell = row[self.image]
            name = f"{self.split} row {number}" + (f" ({cell['path']})" if cell["path"] else "")
            content = cell["bytes"] if cell["bytes"] is not None else Path(cell["path"])
            yield Encoded(name, content, row[self.label])


@dataclass(frozen=True)
class HubSource:
    """A data set of the Hugging Face hub."""

    hub: str
    config: str | None
    splits: Mapping[str, str]

    @cached_property
    def _tables(self) -> Mapping[str, Any]:
        return self._load(streaming=False)

    @property
    def fingerprint(self) -> str:
        """A hash of the fingerprints that `datasets` gives each split."""
        marks = [f"{split}={table._fingerprint}" for split, table in sorted(self._tables.items())]
        return hashlib.sha256("\0".join([self.hub, *marks]).encode()).hexdigest()

    def open(self, *, streaming: bool = False) -> Opened:
        """Download the data set (through the cache of `datasets`), or begin to stream it."""
        tables = self._load(streaming=True) if streaming else self._tables
        return _open_tables(self.hub, tables, self.splits)

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
    """A folder with parquet, arrow or tar files, or with a data set written by `save_to_disk`."""

    folder: Path
    splits: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and times of the files."""
        return fingerprint_folder(self.folder, self.splits)

    def open(self, *, streaming: bool = False) -> Opened:
        """Open the tables; `streaming` avoids the copy that `datasets` makes of them."""
        return _open_tables(str(self.folder), self._load(streaming), self.splits)

    def _load(self, streaming: bool) -> Mapping[str, Any]:
        import datasets

        self._check_files()
        try:
            if any((self.folder / mark).exists() for mark in ("dataset_dict.json", "state.json")):
                saved = datasets.load_from_disk(str(self.folder))
                return saved if isinstance(saved, Mapping) else {"train": saved}
            return datasets.load_dataset(str(self.folder), streaming=streaming)  # type: ignore[no-any-return]
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            datasets.exceptions.DatasetsError,
        ) as error:
            raise ValueError(f"the data set in {self.folder} cannot be read: {error}") from error

    def _check_files(self) -> None:
        """Raise a ValueError that names the first damaged file, which `datasets` does not."""
        from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]

        for file in sorted(p for p in self.folder.rglob("*") if p.suffix in TABLE_SUFFIXES):
            if not file.is_file():
                raise ValueError(f"{file} is not a regular file")
            if file.suffix == ".parquet":
                try:
                    parquet.read_metadata(file)
                except (OSError, ArrowException) as error:
                    raise ValueError(f"{file} is damaged, or not parquet: {error}") from error


def find_configurations(folder: Path) -> None:
    """Raise a ValueError when folders below this one hold the same splits of several data sets.

    The hub keeps SVHN so: cropped_digits and full_numbers, each with train and test files.
    """
    splits: dict[str, set[str]] = {}
    for file in folder.rglob("*"):
        parts = file.relative_to(folder).parts
        if file.suffix in TABLE_SUFFIXES and len(parts) > 1 and parts[0].lower() not in SPLIT_NAMES:
            splits.setdefault(parts[0], set()).add(file.stem.partition("-")[0])
    if len(splits) > 1 and set.intersection(*splits.values()):
        refuse_several(folder, [folder / name for name in sorted(splits)])


def _open_tables(name: str, tables: Mapping[str, Any], renamed: Mapping[str, str]) -> Opened:
    import datasets

    used: dict[str, Rows] = {}
    classes: tuple[str, ...] = ()
    for split, table in tables.items():
        use = find_use(split, renamed)
        if use is None:
            continue
        scanned = _scan_archives(name, split, table)
        if scanned is not None:
            table = scanned.name_classes(table)
        image, label = find_columns(name, table.features)
        classes = classes or tuple(table.features[label].names)
        # select_columns: a mask or a caption beside the image need not be read
        plain = table.select_columns([image, label])
        plain = plain.cast_column(image, datasets.Image(decode=False))
        sizes = scanned.sizes if scanned else _count_files(name, split, table)
        size = sum(sizes) if sizes else _count_rows(name, split, table)
        used[use] = TableRows(plain, split, image, label, size, sizes)
    if not used:
        raise ValueError(
            f"{name} has the splits {', '.join(tables)}; none is called "
            f"{' or '.join(renamed or SPLIT_NAMES)}"
        )
    return Opened(classes, used)


def _count_rows(name: str, split: str, table: Any) -> int:
    """Return the number of rows; of a stream, from what is known about it."""
    import datasets

    if isinstance(table, datasets.Dataset):
        return len(table)
    known = table.info.splits or {}
    if split in known:
        return int(known[split].num_examples)
    raise ValueError(
        f"the stream of {name}, split {split}, does not tell how many images it has, which a "
        "schedule needs; convert it to parquet, or add dataset_info to its README.md"
    )


def _list_files(name: str, split: str, table: Any, suffix: str) -> list[Path]:
    """Return the files of a stream from a folder, if all of them end so."""
    import datasets

    if isinstance(table, datasets.Dataset) or not Path(name).is_dir():
        return []
    files = datasets.load_dataset_builder(name).config.data_files[split]
    paths = [Path(file) for file in files]
    return paths if all(path.suffix == suffix for path in paths) else []


def _count_files(name: str, split: str, table: Any) -> tuple[int, ...]:
    """Return the rows of each parquet file of a stream; nothing where they are not known."""
    from pyarrow import parquet

    files = _list_files(name, split, table, ".parquet")
    return tuple(parquet.read_metadata(file).num_rows for file in files)


def _scan_archives(name: str, split: str, table: Any) -> Archives | None:
    """Return what the tar files of a stream hold; None for a stream of anything else."""
    files = _list_files(name, split, table, ".tar")
    return Archives.scan(files) if files else None


def find_columns(name: str, features: Mapping[str, Any] | None) -> tuple[str, str]:
    """Find the image column and the label column by their types.

    Of several label columns, take the one with the most classes: the 100 of CIFAR-100 rather than
    its 20 coarse ones.

    Args:
        name: The data set, for the message.
        features: Its columns with their types.
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
