"""Images in folders of classes."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phnn.lab.seeds import permutation_of
from phnn.lab.tasks.images.decode import find_suffixes
from phnn.lab.tasks.images.sources import (
    SPLIT_NAMES,
    Encoded,
    Opened,
    find_use,
    fingerprint_folder,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileRows:
    """Image files with their labels."""

    files: Sequence[tuple[Path, int]]

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Encoded]:
        return (Encoded(str(path), path, label) for path, label in self.files)

    def shuffled(self, seed: int, epoch: int) -> Iterable[Encoded]:
        """Return the files in a random order."""
        order = permutation_of(len(self), seed, epoch).tolist()
        return FileRows([self.files[position] for position in order])


@dataclass(frozen=True)
class ClassFolders:
    """A folder with one folder per class, directly or under train/, validation/ and test/."""

    folder: Path
    splits: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and times of the files."""
        return fingerprint_folder(self.folder, self.splits)

    def open(self, *, streaming: bool = False) -> Opened:
        """List the files; there is nothing to stream."""
        del streaming
        inside = _subfolders(self.folder)
        splits = [path for path in inside if path.name.lower() in SPLIT_NAMES]
        # a folder train/ that holds images itself is a class (locomotives), not a split
        if splits and (splits == inside or any(map(_subfolders, splits))):
            folders = self._assign(splits)
            unused = ", ".join(path.name for path in inside if path not in splits)
            if unused:
                logger.warning("%s: %s is not a split of the data", self.folder, unused)
        else:
            _check_classes(self.folder, inside)
            folders = {"train": self.folder}
        classes = _common_classes(folders)
        rows = {split: FileRows(_list_files(path, classes)) for split, path in folders.items()}
        return Opened(classes, rows)

    def _assign(self, splits: Sequence[Path]) -> dict[str, Path]:
        folders: dict[str, Path] = {}
        for path in splits:
            use = find_use(path.name, self.splits)
            if use in folders:
                raise ValueError(f"{folders[use]} and {path} are both the {use} split; keep one")
            if use is not None:
                folders[use] = path
        if not folders:
            held = ", ".join(path.name for path in splits)
            raise ValueError(
                f"{self.folder} holds {held} alone; expected {' and '.join(self.splits)}"
            )
        return folders


def _check_classes(folder: Path, classes: Sequence[Path]) -> None:
    """Raise an error for folders that look like splits with unknown names."""
    inner = [[path.name for path in _subfolders(each)] for each in classes]
    if len(classes) > 1 and len(inner[0]) > 1 and all(names == inner[0] for names in inner):
        raise ValueError(
            f"{folder} has the folders {', '.join(path.name for path in classes)}, each with "
            f"{', '.join(inner[0][:3])}…: if they are splits of the data, call them "
            f"{', '.join(SPLIT_NAMES)}; if they are classes, put the images directly into them"
        )


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _common_classes(folders: Mapping[str, Path]) -> tuple[str, ...]:
    """Return the class folders, which every split must have."""
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
    suffixes = find_suffixes()
    files: list[tuple[Path, int]] = []
    for label, name in enumerate(classes):
        members = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in suffixes)
        if not members:
            raise ValueError(f"the class folder {folder / name} holds no image files")
        files += [(path, label) for path in members]
    return files
