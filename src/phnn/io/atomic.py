"""Files that take their place when they are complete."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary file that takes the place of `path` when the block ends without an error.

    Whoever reads `path` sees the old contents or the new, also after a crash or on a full disk.

    Args:
        path: the file to write; its folder must exist.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # safetensors replaces the file by one that only its owner can read
        _sync(temporary, os.O_RDWR)  # Windows syncs no file that is open for reading alone
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _sync(path.parent, os.O_RDONLY)


def write_text(path: Path, text: str) -> None:
    """Writes a text file, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
