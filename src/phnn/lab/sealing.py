"""Checkpoints with a checksum, which tells whole ones from damaged ones.

A checkpoint of torch is a zip archive. The SHA-256 of its bytes is the comment at its end, so it
travels with the file, and torch.load reads the file as before.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import zipfile
from pathlib import Path

from phnn.lab.runs import RunFolderError

logger = logging.getLogger(__name__)

_PREFIX = b"phnn sha256 "
_LENGTH = len(_PREFIX) + 64
_END = b"PK\x05\x06"  # begins the last 22 bytes of an archive without a comment
_CHUNK = 2**20


class DamagedCheckpointError(RunFolderError):
    """A checkpoint that is not as it was written."""


def seal(path: Path) -> None:
    """Append the checksum to a checkpoint that torch.save has just written.

    Args:
        path: The file.
    """
    with path.open("r+b") as file:
        file.seek(-22, os.SEEK_END)
        if not file.read(4) == _END:
            raise ValueError(f"{path} is no archive of torch.save")
        file.seek(-2, os.SEEK_END)
        file.write(_LENGTH.to_bytes(2, "little"))
        file.flush()
        size = file.seek(0, os.SEEK_END)
        digest = _digest(path, size)
        file.write(_PREFIX + digest.encode())


def check(path: Path) -> None:
    """Raise an error for a damaged checkpoint.

    Checkpoints without our checksum, of older versions, are checked by those of the archive.

    Args:
        path: The file.

    Raises:
        DamagedCheckpointError: The file is not as it was written.
    """
    if not path.is_file():
        raise DamagedCheckpointError(f"{path} is not a regular file")
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _LENGTH))
        comment = file.read()
    if comment.startswith(_PREFIX):
        if _digest(path, size - _LENGTH).encode() != comment[len(_PREFIX) :]:
            raise DamagedCheckpointError(f"{path} is damaged: its SHA-256 does not match")
        return
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
            if not wrong and archive.comment:
                wrong = "its comment"
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise DamagedCheckpointError(
            f"{path} is damaged, or not a checkpoint of phnn: {error}"
        ) from error
    if wrong:
        raise DamagedCheckpointError(f"{path} is damaged: {wrong} does not match its checksum")


def keep(last: Path, previous: Path) -> None:
    """Keep the last checkpoint as the one before it; a new one is about to replace it.

    Args:
        last: The checkpoint; it stays where it is, too.
        previous: Where to keep it.
    """
    if not last.exists():
        return
    temporary = previous.with_name(f".{previous.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(last, temporary)
    except OSError:  # a file system without links
        shutil.copyfile(last, temporary)
    os.replace(temporary, previous)


def choose(last: Path, previous: Path, remedy: str) -> bool:
    """Make sure that the last checkpoint is whole; otherwise take the one before it.

    Args:
        last: The last checkpoint.
        previous: The one before it.
        remedy: What to do if both are damaged.

    Returns:
        Whether there is a checkpoint to continue from.

    Raises:
        DamagedCheckpointError: There are checkpoints, and none of them is whole.
    """
    if not last.exists() and not previous.exists():
        return False
    try:
        if not last.exists():
            raise DamagedCheckpointError(f"{last} is missing")
        check(last)
    except DamagedCheckpointError as damage:
        try:
            if not previous.exists():
                raise DamagedCheckpointError("there is none before it")
            check(previous)
        except DamagedCheckpointError as error:
            raise DamagedCheckpointError(f"{damage}; {error}; {remedy}") from None
        os.replace(previous, last)
        logger.warning("%s; the run continues from the checkpoint before it", damage)
    return True


def _digest(path: Path, size: int) -> str:
    """Return the SHA-256 of the first bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(_CHUNK, size))):
            digest.update(chunk)
            size -= len(chunk)
    return digest.hexdigest()
