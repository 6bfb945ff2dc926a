"""Images in the files of their authors: CIFAR's pickles and SVHN's MATLAB files."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phnn.lab.seeds import permutation_of
from phnn.lab.tasks.images.sources import Encoded, Opened, fingerprint_files

Pixels = npt.NDArray[np.uint8]

SIDE = 32
# the folder that torchvision unpacks, the files of each split, the file and key of the classes
CIFAR = {
    "cifar-10-batches-py": (
        {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
        ("batches.meta", "label_names", "labels"),
    ),
    "cifar-100-python": (
        {"train": ["train"], "test": ["test"]},
        ("meta", "fine_label_names", "fine_labels"),
    ),
}
SVHN = {"train": "train_32x32.mat", "test": "test_32x32.mat"}


@dataclass(frozen=True)
class ArrayRows:
    """Images in memory, with their labels."""

    name: str
    pixels: Pixels  # (N, height, width, 3)
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pixels)

    def __iter__(self) -> Iterator[Encoded]:
        return self._encode(range(len(self)))

    def shuffled(self, seed: int, epoch: int) -> Iterable[Encoded]:
        """Return the images in a random order."""
        return self._encode(permutation_of(len(self), seed, epoch).tolist())

    def _encode(self, order: Iterable[int]) -> Iterator[Encoded]:
        for row in order:
            yield Encoded(f"{self.name} row {row}", self.pixels[row], int(self.labels[row]))


@dataclass(frozen=True)
class CifarFolder:
    """CIFAR-10 or CIFAR-100 as its authors publish it for Python, and torchvision keeps it.

    The files are pickles. Nothing in them is executed: see `read_pickle`.
    """

    folder: Path
    layout: str

    @property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and times of the files."""
        splits, (meta, _, _) = CIFAR[self.layout]
        names = [meta, *(name for files in splits.values() for name in files)]
        return fingerprint_files(self.folder, [self.folder / name for name in names])

    def open(self, *, streaming: bool = False) -> Opened:
        """Read the images; there is nothing to stream."""
        del streaming
        splits, (meta, names, labels) = CIFAR[self.layout]
        classes = [_text(name) for name in _get(read_pickle(self.folder / meta), names, meta)]
        rows = {}
        for split, files in splits.items():
            found = {file: read_pickle(self.folder / file) for file in files}
            data = [_as_images(_get(each, "data", file)) for file, each in found.items()]
            numbers = [
                number for file, each in found.items() for number in _get(each, labels, file)
            ]
            name = f"{self.folder.name} {split}"
            rows[split] = ArrayRows(name, np.concatenate(data), np.array(numbers, np.int64))
            _check_labels(self.folder, rows[split], len(classes))
        return Opened(tuple(classes), rows)


@dataclass(frozen=True)
class SvhnFolder:
    """SVHN's cropped digits as their authors publish them, train_32x32.mat and test_32x32.mat."""

    folder: Path

    @property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and times of the files."""
        return fingerprint_files(self.folder, [self.folder / name for name in SVHN.values()])

    def open(self, *, streaming: bool = False) -> Opened:
        """Read the images; there is nothing to stream."""
        del streaming
        rows = {}
        for split, name in SVHN.items():
            images, labels = _read_mat(self.folder / name)
            rows[split] = ArrayRows(f"{name}", images, labels)
            _check_labels(self.folder, rows[split], 10)
        return Opened(tuple(str(digit) for digit in range(10)), rows)


def find_cifar(folder: Path) -> CifarFolder | None:
    """Return CIFAR's files in a folder or one folder below it; None when there are none.

    Raises:
        ValueError: Both data sets are there, or files are missing.
    """
    found = []
    for layout, (splits, (meta, _, _)) in CIFAR.items():
        names = [meta, *(name for files in splits.values() for name in files)]
        for base in (folder, folder / layout):
            there = [name for name in names if (base / name).is_file()]
            if meta in there:
                missing = [name for name in names if name not in there]
                if missing:
                    raise ValueError(f"{base} lacks {', '.join(missing)} of {layout}")
                found.append(CifarFolder(base, layout))
    refuse_several(folder, [each.folder for each in found])
    return found[0] if found else None


def find_svhn(folder: Path) -> SvhnFolder | None:
    """Return SVHN's files in a folder; None when there are none."""
    there = [name for name in SVHN.values() if (folder / name).is_file()]
    if there and len(there) < len(SVHN):
        missing = next(name for name in SVHN.values() if name not in there)
        raise ValueError(f"{folder} has {there[0]} and lacks {missing}")
    return SvhnFolder(folder) if there else None


def refuse_several(folder: Path, found: Sequence[Path]) -> None:
    """Raise a ValueError that names the choice when a folder holds several data sets."""
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ValueError(
            f"{folder} holds several data sets: {names}; give one of them, such as root={found[0]}"
        )


def read_pickle(path: Path) -> Mapping[str, Any]:
    """Return the dictionary in a pickle of numbers, texts, lists and arrays.

    No code is called that a pickle names. NumPy's names stand for objects of ours that remember
    what they were given; every other name is refused.

    Raises:
        ValueError: The file is damaged, or names something else.
    """
    try:
        with path.open("rb") as file:
            content = _Reader(file, encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError) as error:
        raise ValueError(f"{path} cannot be read as one of CIFAR's files: {error}") from error
    except (AttributeError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} cannot be read as one of CIFAR's files: {error!r}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a dictionary")
    return {_text(key): value for key, value in content.items()}


class _Remembered:
    """What a pickle says about an object of NumPy: what made it, and its state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def to_numpy(self) -> Pixels:
        """Return an array; its state is a version, its shape, its type, an order and its bytes."""
        _, shape, kind, in_columns, content = self.state
        if not isinstance(kind, _Remembered) or kind.arguments[0] not in (b"u1", "u1"):
            raise ValueError("an array of CIFAR's files must be of unsigned bytes")
        raw = content if isinstance(content, bytes) else str(content).encode("latin1")
        array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if in_columns else "C")
        return np.ascontiguousarray(array)


class _StandIn:
    """What a name in a pickle stands for: an object that can be called, and not be changed."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f"it tries to change {name} of something it names")

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it tries to change something it names")


def _encode(text: str, *_: Any) -> bytes:
    return text.encode("latin1")


_NUMPY = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
_STAND_INS = {name: _StandIn(_Remembered) for name in ("_reconstruct", "ndarray", "dtype")}
_ENCODE = _StandIn(_encode)  # how Python 3 writes bytes for Python 2


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _NUMPY and name in _STAND_INS:
            return _STAND_INS[name]
        if (module, name) == ("_codecs", "encode"):
            return _ENCODE
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is never called")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside of the file")


def _get(content: Mapping[str, Any], key: str, file: str) -> Any:
    if key not in content:
        raise ValueError(f"{file} has no {key}; it has {', '.join(sorted(content))}")
    return content[key]


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _as_images(data: Any) -> Pixels:
    if not isinstance(data, _Remembered):
        raise ValueError(f"data must be an array, not a {type(data).__name__}")
    pixels = data.to_numpy()
    if pixels.ndim != 2 or pixels.shape[1] != 3 * SIDE * SIDE:
        raise ValueError(f"data must be (N, {3 * SIDE * SIDE}), not {pixels.shape}")
    return pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _read_mat(path: Path) -> tuple[Pixels, npt.NDArray[np.int64]]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, variable_names=["X", "y"])
        images, labels = np.asarray(content["X"]), np.asarray(content["y"])
    except (MatReadError, KeyError, ValueError, TypeError, OSError, NotImplementedError) as error:
        raise ValueError(f"{path} cannot be read as one of SVHN's files: {error!r}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (SIDE, SIDE, 3):
        raise ValueError(f"X of {path} must be uint8 ({SIDE}, {SIDE}, 3, N), not {images.shape}")
    digits = labels.astype(np.int64).reshape(-1) % 10  # the digit 0 has the label 10
    return images.transpose(3, 0, 1, 2), digits


def _check_labels(folder: Path, rows: ArrayRows, classes: int) -> None:
    if len(rows.labels) != len(rows.pixels):
        raise ValueError(
            f"{folder}: {rows.name} has {len(rows.pixels)} images and {len(rows.labels)} labels"
        )
    if len(rows.labels) and not 0 <= rows.labels.min() <= rows.labels.max() < classes:
        raise ValueError(f"{folder}: a label of {rows.name} is not one of {classes} classes")
