"""Short mono recordings of single sounds, separate for training and testing."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Split = Literal["train", "dev"]
SPLITS: tuple[Split, ...] = ("train", "dev")
Stereo = Literal["raise", "mix"]
SUFFIXES = (".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".wav")
METADATA = "metadata.csv"
DEV_SHARE = 5  # one clip of this many is for testing, where no folds say otherwise


class Clip(NamedTuple):
    """A sound by itself."""

    name: str
    label: str
    samples: Array


class Clips(Protocol):
    """Clips of several classes."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        ...

    @property
    def fingerprint(self) -> str:
        """A string that changes whenever the clips change."""
        ...

    @property
    def longest(self) -> tuple[str, float]:
        """The name of the longest clip, and its seconds."""
        ...

    def draw(self, rng: np.random.Generator, split: Split, rate: int) -> Clip:
        """Draw a class, and a clip of it that only this split has."""
        ...


@dataclass(frozen=True)
class FolderClips:
    """Clips in files.

    Attributes:
        root: The folder.
        files: The files of each split and class, relative to the folder.
        fingerprint: A string that changes whenever names or sizes change.
        longest: The name of the longest clip, and its seconds.
        stereo: Whether the channels of a clip are averaged, or an error.
    """

    root: Path
    files: Mapping[Split, Mapping[str, Sequence[str]]]
    fingerprint: str
    longest: tuple[str, float]
    stereo: Stereo = "raise"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, sorted."""
        return tuple(self.files["train"])

    def draw(self, rng: np.random.Generator, split: Split, rate: int) -> Clip:
        """Draw a class, and a clip of it that only this split has.

        Args:
            rng: The source of the randomness.
            split: "train" or "dev".
            rate: Samples per second wanted.
        """
        label = self.classes[rng.integers(len(self.classes))]
        names = self.files[split][label]
        name = names[int(rng.integers(len(names)))]
        return Clip(name, label, read_clip(self.root / name, rate, self.stereo))


class _File(NamedTuple):
    name: str
    label: str
    fold: str | None


def open_clips(
    root: Path,
    *,
    folds: str | None = None,
    labels: str | None = None,
    stereo: Stereo = "raise",
) -> FolderClips:
    """Find the clips of a folder, and divide them among the splits.

    The folder has one folder of audio files for each class. It may have a file metadata.csv that
    lists the clips to use, with the columns `file` (relative to the folder) and, if clips that
    belong together must stay together, `fold`. Without folds, one clip of five of each class is for
    testing, chosen by a hash of its name.

    Args:
        root: The folder.
        folds: The folds for testing, separated by commas; the last by default.
        labels: The column of metadata.csv with the classes; the names of the folders by default.
        stereo: Whether a clip of several channels is an error, or averaged.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a folder of clips")
    files = _list_files(root, labels)
    if not files:
        raise ValueError(
            f"{root} has no clips: it must have a folder for each class, with audio files in it "
            f"({', '.join(suffix[1:] for suffix in SUFFIXES)})"
        )
    seconds = {file.name: _measure(root / file.name, stereo) for file in files}
    longest = max(seconds, key=lambda name: seconds[name])
    sizes = [f"{file.name}\t{file.label}\t{(root / file.name).stat().st_size}" for file in files]
    splits = _divide(files, folds, root)
    return FolderClips(
        root=root,
        files=splits,
        fingerprint=_hash("\n".join([*sizes, repr(splits), stereo])),
        longest=(longest, seconds[longest]),
        stereo=stereo,
    )


def read_clip(path: Path, rate: int, stereo: Stereo = "raise") -> Array:
    """Read a clip as one channel.

    Args:
        path: The audio file.
        rate: Samples per second wanted; another rate is converted.
        stereo: Whether a clip of several channels is an error, or averaged.
    """
    import soundfile

    try:
        channels, own_rate = soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{path} cannot be read: {error.error_string}") from error
    _check_channels(path, channels.shape[1], stereo)
    samples: Array = channels.mean(axis=1)
    samples = resample(samples, own_rate, rate)
    if not np.isfinite(samples).all():
        raise ValueError(f"{path} has samples that are not numbers")
    if not samples.any():
        raise ValueError(f"{path} is silent; take it out of the folder")
    return samples


def resample(samples: Array, rate: int, wanted: int) -> Array:
    """Convert a signal to another rate.

    Args:
        samples: The signal.
        rate: Its samples per second.
        wanted: The samples per second wanted.
    """
    from scipy.signal import resample_poly

    if rate == wanted:
        return samples
    common = gcd(rate, wanted)
    converted: Array = resample_poly(samples, wanted // common, rate // common)
    return converted


def _list_files(root: Path, labels: str | None) -> list[_File]:
    if (root / METADATA).exists():
        return _read_metadata(root, labels)
    if labels is not None:
        raise ValueError(f"labels={labels!r} is a column of {root / METADATA}, which is missing")
    paths = (path for path in root.glob("*/*") if path.suffix.lower() in SUFFIXES)
    return [
        _File(path.relative_to(root).as_posix(), path.parent.name, None) for path in sorted(paths)
    ]


def _read_metadata(root: Path, labels: str | None) -> list[_File]:
    with (root / METADATA).open(newline="", encoding="utf-8") as text:
        reader = csv.DictReader(text)
        missing = {"file", *([labels] if labels else [])} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(
                f"{root / METADATA} has no column {' or '.join(sorted(missing))}; it has "
                f"{', '.join(reader.fieldnames or ())}"
            )
        return sorted(
            _File(
                row["file"],
                row[labels] if labels else Path(row["file"]).parent.name,
                row.get("fold"),
            )
            for row in reader
        )


def _measure(path: Path, stereo: Stereo) -> float:
    """Return the seconds of a file; one that cannot be used is found before the work."""
    import soundfile

    if path.exists() and not path.is_file():  # reading a pipe would wait for a writer
        raise ValueError(f"{path} is not a regular file")
    try:
        info = soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{path} cannot be read: {error.error_string}") from error
    _check_channels(path, info.channels, stereo)
    return float(info.duration)


def _check_channels(path: Path, channels: int, stereo: Stereo) -> None:
    if channels > 1 and stereo == "raise":
        raise ValueError(f"{path} has {channels} channels; stereo=mix averages them")


def _order(fold: str) -> tuple[bool, int, str]:
    """Order numbers by their size, then names."""
    return not fold.isdigit(), int(fold) if fold.isdigit() else 0, fold


def _divide(
    files: Sequence[_File], folds: str | None, root: Path
) -> dict[Split, dict[str, list[str]]]:
    known = sorted({file.fold for file in files if file.fold is not None}, key=_order)
    if "" in known:
        raise ValueError(f"{root / METADATA} has rows without a fold; give every clip one")
    if known:
        held = [known[-1]] if folds is None else [fold.strip() for fold in folds.split(",")]
        if not set(held) < set(known):
            raise ValueError(f"folds={folds!r} must be some of {','.join(known)}, but not all")
        dev = {file.name for file in files if file.fold in held}
    elif folds is not None:
        raise ValueError(f"folds={folds!r} needs a column fold in {root / METADATA}")
    else:
        dev = _hold_out(files)
    labels = sorted({file.label for file in files})
    splits: dict[Split, dict[str, list[str]]] = {
        split: {
            label: [
                f.name for f in files if f.label == label and (f.name in dev) == (split == "dev")
            ]
            for label in labels
        }
        for split in SPLITS
    }
    for split, members in splits.items():
        for label, names in members.items():
            if not names:
                raise ValueError(
                    f"no clip of the class {label} is left for {split}; each class needs one for "
                    f"{' and one for '.join(SPLITS)}"
                )
    return splits


def _hold_out(files: Sequence[_File]) -> set[str]:
    dev = set()
    for label in {file.label for file in files}:
        names = sorted((file.name for file in files if file.label == label), key=_hash)
        dev.update(names[: -(-len(names) // DEV_SHARE)])
    return dev


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
