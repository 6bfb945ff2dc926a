"""Arrays of NumPy from files that somebody else may have written."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

LARGEST = 2**29  # bytes of all arrays, where the file itself is small
RATIO = 20  # to which numbers are compressed at best; zeros can stand for a thousand times more


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays in a file of NumPy, in their order; the one of an .npy file is "".

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no regular file (a fifo would never end), stands for out of all proportion
            more bytes than it has, or is damaged.
    """
    import numpy as np

    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    try:
        with path.open("rb") as file:
            _check_size(file, path.stat().st_size)
            loaded = np.load(file, allow_pickle=False)
            return {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded.items())
    except Exception as error:  # damaged archives have errors of many types
        raise ValueError(
            f"{path} does not hold arrays of numbers (.npy or .npz): {error}"
        ) from error


def _check_size(file: Any, size: int) -> None:
    """Raise an error for an archive that would fill the memory."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            whole = sum(entry.file_size for entry in archive.infolist())
        if whole > max(LARGEST, RATIO * size):
            raise ValueError(f"its {size:,} bytes stand for {whole:,}")
    file.seek(0)
