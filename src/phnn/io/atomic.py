"""Files that appear complete or not at all."""

import errno
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file that replaces `path` when the block ends without an error.

    Whoever reads `path` sees the old contents or the new, also after a crash or on a full disk.
    What a killed process was writing to the same path is removed.

    Args:
        path: The file to write; its folder must exist.
    """
    temporary = _claim(path)
    try:
        with _naming(path):
            temporary.touch()
            with _holding(temporary):
                yield temporary
                _sync(temporary, os.O_RDWR)  # Windows syncs no file that is open only for reading
                os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _sync(path.parent, os.O_RDONLY)


@contextmanager
def staging(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`, which is removed when the block ends.

    Args:
        path: The file that will be written; its folder must exist.
    """
    folder = _claim(path)
    try:
        with _naming(path):
            folder.mkdir()
            with _holding(folder):
                yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_output(path: Path) -> None:
    """Raise an OSError when a file cannot be written, before the work that it is for.

    Args:
        path: The file; its folder need not exist yet.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file; name another")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {folder} is a file, not a folder")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(
            error.errno, f"{path} cannot be written: {error.strerror} in {folder}"
        ) from error


def _claim(path: Path) -> Path:
    """Return a new temporary name beside `path`, and remove what killed processes left there."""
    torn = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}\.tmp")
    for found in path.parent.iterdir():
        if torn.fullmatch(found.name) and not _is_held(found):
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found, ignore_errors=True)
            else:
                with suppress(OSError):  # another process was faster, or Windows still uses it
                    found.unlink()
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in the error of a full disk, which names nothing or a temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def _holding(path: Path) -> Iterator[None]:
    """Hold a lock on a file or folder; it ends with the process, however that ends."""
    if sys.platform == "win32":  # which does not delete a file that is open
        yield
        return
    import fcntl

    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _is_held(path: Path) -> bool:
    """Return whether a living process may hold a temporary file or folder."""
    if sys.platform == "win32":
        return path.is_dir()
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or a file system without locks
        return True
    finally:
        os.close(descriptor)
    return False


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
