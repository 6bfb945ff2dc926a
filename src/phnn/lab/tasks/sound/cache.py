"""Spectrograms on disk, mapped into memory."""

import hashlib
import json
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phnn._screen import ProgressBar
from phnn.io.atomic import write_text
from phnn.lab.files import lock
from phnn.lab.tasks.sound.features import POOLED, Magnitudes, check_magnitudes, count_hop, extract
from phnn.lab.tasks.sound.recordings import Broken, Format, Recording, Skipped, read_wave
from phnn.lab.tasks.sound.spectrograms import BINS, Order, find_phases

Dtype = Literal["float32", "float16"]

logger = logging.getLogger(__name__)

VERSION = 1  # part of every key; raise it when the features change
INDEX = "index.json"  # written last: where it is, everything is
HALF_SCALE = 2.0**22  # brings magnitudes, at most 2⁻⁹ at full scale, into the range of float16


@dataclass(frozen=True)
class Options:
    """What features depend on, besides the recordings.

    Attributes:
        microphones: How many microphones are used.
        phase: Whether phases are added.
        order: The order of magnitudes and phases.
        magnitudes: Magnitudes as they are, or their logarithms.
        dtype: The type on disk; float16 halves the size, at three digits of precision.
    """

    microphones: int
    phase: bool
    order: Order
    magnitudes: Magnitudes = "linear"
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        check_magnitudes(self.magnitudes)
        if self.dtype not in get_args(Dtype):
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(get_args(Dtype))}")

    def phases(self, channels: int) -> list[bool]:
        """Tell for each channel of features whether it holds phases.

        Args:
            channels: The channels of each microphone.
        """
        return find_phases(channels, self.microphones, self.phase, self.order)

    def scale(self, channels: int) -> Tensor:
        """Return the factor of each channel on disk."""
        small = self.dtype == "float16" and self.magnitudes == "linear"
        factor = HALF_SCALE if small else 1.0
        return torch.tensor([1.0 if phase else factor for phase in self.phases(channels)])


@dataclass(frozen=True)
class Features:
    """The spectrograms of recordings, on disk.

    Attributes:
        values: (recordings, channels, bins, frames), mapped into memory: `scale` times the true
            values.
        scale: The factor of each channel.
        sums: float64 (recordings, channels, 2), the sums of the true values and their squares.
        rows: Which of the recordings could be read.
    """

    values: npt.NDArray[Any]
    scale: Tensor
    sums: Tensor
    rows: tuple[int, ...]


def cached_features(
    recordings: Sequence[Recording],
    format: Format,
    options: Options,
    cache: Path,
    skipped: Skipped,
) -> Features:
    """Open the features of recordings; compute the missing ones first.

    A computation that was stopped continues where it was. Of several processes, one computes and
    the others wait for it. What does not match its checksum is computed again.

    Args:
        recordings: The files.
        format: The format of all of them.
        options: What to compute.
        cache: The folder for these features and others.
        skipped: Takes the recordings that cannot be read, or raises.
    """
    folder = cache / f"sound-{_make_key(recordings, options)}"
    opened = _open_whole(folder)
    if opened is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = lock(folder / "lock")
        except OSError as error:
            raise OSError(
                f"spectrograms cannot be kept in {cache} ({error}); give another folder with cache="
            ) from error
        with held:
            opened = _open_whole(folder)
            if opened is None:
                _compute(recordings, format, options, folder, skipped.mode)
                opened = _open_whole(folder)
        if opened is None:
            raise OSError(
                f"the spectrograms in {folder} change while they are written; the disk may be "
                "failing, or another program uses the folder: give another with cache="
            )
    values, sums, index = opened
    for reason in index["skipped"]:
        skipped.add(reason)
    scale = options.scale(format.channels)
    return Features(values, scale, torch.from_numpy(sums), tuple(index["rows"]))


def _open_whole(folder: Path) -> tuple[Any, Any, dict[str, Any]] | None:
    """Return features, sums and index, if they are all as they were written.

    The recordings that are not are marked, to be computed again.
    """
    if not (folder / INDEX).exists():
        return None
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        values = np.load(folder / "features.npy", mmap_mode="r")
        sums, digests = (np.load(folder / name) for name in ("sums.npy", "digests.npy"))
        if index["sha256"] != _seal_index(index, digests):
            raise ValueError("its index does not match its checksum")
        damaged = [
            row
            for row in index["rows"]
            if _digest(values[row], sums[row]) != digests[row].tobytes()
        ]
        if not damaged:
            return values, sums, index
        done = np.load(folder / "done.npy", mmap_mode="r+")
        done[damaged] = False
        done.flush()
        reason = f"{len(damaged)} recordings do not match their checksums"
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError) as error:
        (folder / "done.npy").unlink(missing_ok=True)
        reason = f"{error}"
    (folder / INDEX).unlink(missing_ok=True)
    logger.warning("the spectrograms in %s are damaged (%s) and are made again", folder, reason)
    return None


def _digest(values: npt.NDArray[Any], sums: npt.NDArray[Any]) -> bytes:
    """Return the SHA-256 of what is stored of a recording."""
    digest = hashlib.sha256(np.ascontiguousarray(values).data)
    digest.update(np.ascontiguousarray(sums).data)
    return digest.digest()


def _seal_index(index: Mapping[str, Any], digests: npt.NDArray[Any]) -> str:
    """Return the SHA-256 of an index and of the digests of the recordings."""
    text = json.dumps([index["rows"], index["skipped"]])
    return hashlib.sha256(text.encode() + digests.tobytes()).hexdigest()


def _make_key(recordings: Sequence[Recording], options: Options) -> str:
    digest = hashlib.sha256(f"{VERSION}\0{options}\0".encode())
    for recording in recordings:
        for path in recording.waves:
            stat = path.stat()
            name = "/".join(path.parts[-3:])  # splits may have files of one name, size and time
            digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:24]


def _compute(
    recordings: Sequence[Recording], format: Format, options: Options, folder: Path, broken: Broken
) -> None:
    """Compute the features that are not marked as done."""
    scale = options.scale(format.channels)
    blocks = -(-format.samples // (POOLED * count_hop(format.rate)))
    shape = (len(recordings), len(scale), BINS, POOLED * blocks)
    values = _open(folder / "features.npy", shape, options.dtype)
    sums = _open(folder / "sums.npy", (*shape[:2], 2), "float64")
    digests = _open(folder / "digests.npy", (len(recordings), 32), "uint8")
    done = _open(folder / "done.npy", shape[:1], "bool")
    skipped = Skipped(broken)
    bar = ProgressBar()
    for row, recording in enumerate(recordings):
        bar("computing spectrograms", row, len(recordings))
        if done[row]:
            continue
        with skipped:
            spectrogram = extract(
                read_wave(recording.waves, format),
                format.rate,
                phase=options.phase,
                order=options.order,
                magnitudes=options.magnitudes,
                microphones=options.microphones,
            )
            both = (spectrogram, spectrogram.square())
            rounded = _round(spectrogram, scale, options, recording)
            total = torch.stack([x.sum((1, 2), dtype=torch.float64) for x in both], 1).numpy()
            values[row], sums[row] = rounded, total
            # of what was computed, not of what the disk made of it
            digests[row] = np.frombuffer(_digest(rounded, total), np.uint8)
            values.flush()
            sums.flush()
            digests.flush()
            done[row] = True
    bar.close()
    index: dict[str, Any] = {"rows": np.flatnonzero(done).tolist(), "skipped": skipped.reasons}
    index["sha256"] = _seal_index(index, digests)
    done.flush()
    write_text(folder / INDEX, json.dumps(index))


def _open(path: Path, shape: tuple[int, ...], dtype: str) -> Any:
    """Open a file of numbers for writing; make one of zeros if it is missing or damaged."""
    try:
        array = np.load(path, mmap_mode="r+")
        if array.shape == shape and array.dtype == dtype:
            return array
    except (FileNotFoundError, ValueError, EOFError):
        pass
    # done.npy is made last: where it is, the others are whole
    path.with_name("done.npy").unlink(missing_ok=True)
    needed = math.prod(shape) * np.dtype(dtype).itemsize
    free = shutil.disk_usage(path.parent).free
    if needed > free:  # writing to a mapped file on a full disk ends the process silently
        raise OSError(
            f"the spectrograms need {needed / 1e9:.1f} GB, and {path.parent} has {free / 1e9:.1f} "
            "GB left; give another folder with cache=, or use dtype='float16'"
        )
    return np.lib.format.open_memmap(path, "w+", dtype, shape)


def _round(
    spectrogram: Tensor, scale: Tensor, options: Options, recording: Recording
) -> npt.NDArray[Any]:
    if options.dtype == "float32":
        return spectrogram.numpy()
    half = spectrogram.mul(scale[:, None, None]).half()
    if not torch.isfinite(half).all():
        raise ValueError(
            f"{recording.name} is louder than dtype='float16' can hold, eight times full scale; "
            "use dtype='float32'"
        )
    return half.numpy()
