"""Recordings on disk, in the folders of L3DAS21."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from phnn._names import suggest

Broken = Literal["raise", "skip"]

MICROPHONES = ("A", "B")
FOLDERS = {"train": ("train",), "test": ("dev", "test")}  # the first that exists is the split


class BrokenRecordingError(ValueError):
    """A recording that cannot be used."""


@dataclass(frozen=True)
class Recording:
    """A scene: a file for each microphone, and one for its labels.

    Attributes:
        name: What to call it.
        waves: The file of microphone A, and of B where two are used.
        labels: The label file.
    """

    name: str
    waves: tuple[Path, ...]
    labels: Path


class Format(NamedTuple):
    """What all recordings of a set have in common.

    Attributes:
        samples: The samples of each channel.
        rate: Samples per second.
        channels: The channels of each microphone.
    """

    samples: int
    rate: int
    channels: int

    def __str__(self) -> str:
        seconds = self.samples / self.rate
        return f"{seconds:g} s at {self.rate} Hz in {self.channels} channels"


def check_broken(broken: str) -> None:
    """Raise a ValueError for an unknown treatment of broken recordings."""
    if broken not in get_args(Broken):
        raise ValueError(f"broken={broken!r} must be one of {', '.join(get_args(Broken))}")


class Skipped:
    """A context that raises or collects the errors of recordings that cannot be used.

    Args:
        mode: "raise" lets errors pass, "skip" notes them.

    Attributes:
        reasons: The messages of the errors that were caught.
    """

    def __init__(self, mode: Broken) -> None:
        check_broken(mode)
        self.mode = mode
        self.reasons: list[str] = []

    def add(self, reason: str) -> None:
        """Note a recording that cannot be used, or raise."""
        with self:
            raise BrokenRecordingError(reason)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, BrokenRecordingError):
            return False
        if self.mode == "raise":
            raise BrokenRecordingError(
                f"{error}. broken='skip' leaves such recordings out"
            ) from error
        self.reasons.append(str(error))
        return True


def find_splits(root: str | Path, microphones: int) -> dict[str, list[Recording]]:
    """List the recordings of the train and of the test split.

    `root` holds a folder called train, or whose name ends in _train, and one called dev or test. In
    each, data/ has NAME_A.wav and NAME_B.wav, or NAME.wav where there is one microphone, and
    labels/ has label_NAME.csv or NAME.csv.

    Args:
        root: The folder.
        microphones: How many to use, 1 or 2.
    """
    folder = Path(root).expanduser()
    if not folder.is_dir():
        near = suggest(folder.name, (p.name for p in folder.parent.glob("*") if p.is_dir()))
        raise FileNotFoundError(f"root={str(root)!r} is not a folder; {near}give one")
    return {
        split: _list_recordings(_find_folder(folder, names), microphones)
        for split, names in FOLDERS.items()
    }


def _find_folder(root: Path, names: Sequence[str]) -> Path:
    for name in names:
        found = [p for p in sorted(root.iterdir()) if re.fullmatch(f"(.*_)?{name}", p.name)]
        found = [p for p in found if (p / "data").is_dir()]
        if len(found) > 1:
            raise ValueError(f"{found[0]} and {found[1]} are both the {name} split; keep one")
        if found:
            return found[0]
    raise FileNotFoundError(
        f"{root} has no folder with data/ whose name is {' or '.join(names)}, or ends in "
        f"{' or '.join('_' + name for name in names)}; root= is the folder that has "
        "L3DAS_Task2_train and L3DAS_Task2_dev"
    )


def _list_recordings(folder: Path, microphones: int) -> list[Recording]:
    files = sorted(p for p in (folder / "data").iterdir() if p.suffix.lower() == ".wav")
    if not files:
        raise FileNotFoundError(f"{folder / 'data'} holds no .wav files")
    stems: dict[str, dict[str, Path]] = {}
    for file in files:
        name, _, microphone = file.stem.rpartition("_")
        if microphone not in MICROPHONES:
            name, microphone = file.stem, MICROPHONES[0]
        stems.setdefault(name, {})[microphone] = file
    return [
        Recording(
            name,
            tuple(
                waves.get(microphone, folder / "data" / f"{name}_{microphone}.wav")
                for microphone in MICROPHONES[:microphones]
            ),
            find_labels(folder / "labels", name),
        )
        for name, waves in stems.items()
    ]


def find_labels(folder: Path, name: str) -> Path:
    """Return the label file of a recording, which need not exist."""
    plain = folder / f"{name}.csv"
    return plain if plain.exists() else folder / f"label_{name}.csv"


def read_format(waves: Iterable[Path]) -> Format:
    """Read the headers of a recording's files, which must agree."""
    import soundfile

    formats: dict[Path, Format] = {}
    for path in waves:
        if path.exists() and not path.is_file():  # reading a pipe would wait for a writer
            raise BrokenRecordingError(f"{path}: not a regular file")
        try:
            info = soundfile.info(str(path))
        except (OSError, RuntimeError) as error:
            reason = "there is no such file" if not path.exists() else str(error)
            raise BrokenRecordingError(f"{path}: {reason}") from error
        formats[path] = Format(info.frames, info.samplerate, info.channels)
    (first, expected), *others = formats.items()
    for path, found in others:
        if found != expected:
            raise BrokenRecordingError(f"{path} has {found}, but {first} {expected}")
    return expected


def select_usable(
    recordings: Sequence[Recording], skipped: Skipped
) -> tuple[list[Recording], Format]:
    """Read all headers, and leave out recordings that differ from most others.

    Args:
        recordings: The files of a split.
        skipped: Takes those that are left out, or raises.
    """
    formats: dict[Recording, Format] = {}
    for recording in recordings:
        with skipped:
            formats[recording] = read_format(recording.waves)
    if not formats:
        raise BrokenRecordingError(
            f"none of {len(recordings)} recordings can be read: {skipped.reasons[0]}"
        )
    usual, _ = Counter(formats.values()).most_common(1)[0]
    usable = []
    for recording, found in formats.items():
        with skipped:
            if found != usual:
                raise BrokenRecordingError(
                    f"{recording.waves[0]} has {found}, other recordings {usual}"
                )
            usable.append(recording)
    return usable, usual


def read_wave(waves: Sequence[str | Path], expected: Format | None = None) -> Tensor:
    """Read the samples of a recording's files, one microphone after the other.

    Args:
        waves: A file for each microphone.
        expected: The format that the header promises.

    Returns:
        float32 (channels, samples), of full scale 1.
    """
    import soundfile

    paths = [Path(wave) for wave in waves]
    expected = expected or read_format(paths)
    channels = []
    for path in paths:
        try:
            samples, _ = soundfile.read(str(path), dtype="float32", always_2d=True)
        except (OSError, RuntimeError) as error:
            raise BrokenRecordingError(f"{path}: {error}") from error
        if samples.shape != (expected.samples, expected.channels):
            raise BrokenRecordingError(
                f"{path} ends after {len(samples)} samples of {expected.samples}"
            )
        channels.append(torch.from_numpy(samples).T)
    wave = torch.cat(channels)
    if not torch.isfinite(wave).all():
        raise BrokenRecordingError(f"{paths[0]}: there are samples that are not finite")
    return wave
