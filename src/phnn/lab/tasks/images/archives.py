"""Webdataset archives: tar files in which `KEY.jpg` and `KEY.cls` belong together."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

LABEL = "cls"  # the suffix of the files with the number of a class
LONGEST_LABEL = 20  # digits


@dataclass(frozen=True)
class Archives:
    """What is known of tar files before they are streamed.

    Attributes:
        sizes: The samples of each file.
        classes: The number of classes: one more than the largest label.
    """

    sizes: tuple[int, ...]
    classes: int

    @classmethod
    def scan(cls, files: Sequence[Path]) -> Archives:
        """Count samples and classes; of large members, the headers alone are read.

        Args:
            files: The tar files.

        Raises:
            ValueError: A file is damaged, or has a label that is not a number.
        """
        sizes, largest = [], -1
        for file in files:
            keys = set()
            try:
                with tarfile.open(file, "r:") as archive:
                    for member in archive:
                        key, _, suffix = PurePosixPath(member.name).name.partition(".")
                        if not member.isfile() or not key:
                            continue
                        keys.add((str(PurePosixPath(member.name).parent), key))
                        if suffix == LABEL:
                            largest = max(largest, _read_label(archive, member))
            except (tarfile.TarError, OSError, ValueError) as error:
                raise ValueError(f"{file} is damaged, or no webdataset archive: {error}") from error
            sizes.append(len(keys))
        return cls(tuple(sizes), largest + 1)

    def name_classes(self, table: Any) -> Any:
        """Return a table whose labels are classes, named by their numbers."""
        import datasets

        if self.classes == 0 or LABEL not in (table.features or {}):
            return table
        names = [str(number) for number in range(self.classes)]
        return table.cast_column(LABEL, datasets.ClassLabel(names=names))


def _read_label(archive: tarfile.TarFile, member: tarfile.TarInfo) -> int:
    content = archive.extractfile(member)
    text = b"" if content is None else content.read(LONGEST_LABEL)
    if not text.strip().isdigit():
        raise ValueError(f"{member.name} holds {text!r}, which is not the number of a class")
    return int(text)
