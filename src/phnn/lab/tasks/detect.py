"""Sound events that a trained network hears in recordings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phnn.lab.tasks import sound
from phnn.lab.tasks.sound.features import restore_magnitudes
from phnn.lab.tasks.sound.labels import FRAMES_PER_SECOND
from phnn.lab.tasks.sound.recordings import MICROPHONES, find_labels, read_format
from phnn.lab.trained import Trained

THRESHOLD = 0.5  # above which a sound is heard


class Event(NamedTuple):
    """A sound that was heard.

    Attributes:
        start: Seconds from the beginning of the recording.
        end: Likewise.
        label: Its class.
        probability: Mean over its frames.
    """

    start: float
    end: float
    label: str
    probability: float


@dataclass(frozen=True)
class Heard:
    """What a network hears in a recording.

    Attributes:
        file: The recording of the first microphone.
        events: In the order of their starts.
        truth: The events of its label file, where there is one.
        magnitudes: The spectrogram of the first channel, (bins, frames).
        seconds: Length of the recording.
        rate: Samples per second.
    """

    file: Path
    events: tuple[Event, ...]
    truth: tuple[sound.Event, ...] | None
    magnitudes: Tensor
    seconds: float
    rate: int


def detect(trained: Trained, recordings: Sequence[str | Path]) -> Iterator[Heard]:
    """Yields what a network hears in each recording.

    A recording may have any length; pieces as long as those the network was tested on are heard one
    by one.

    Args:
        trained: A network for sound.
        recordings: Files, or folders of files. Of recordings with two microphones the file of the
            first, NAME_A.wav, with NAME_B.wav beside it.
    """
    metadata = trained.metadata
    for file in _find_files(recordings):
        waves = _find_waves(file, metadata["microphones"])
        wave = _read(waves, metadata)
        magnitudes, probabilities = _hear(trained, wave)
        seconds = wave.shape[1] / metadata["rate"]
        yield Heard(
            file=file,
            events=tuple(find_events(probabilities, metadata["classes"], seconds)),
            truth=_read_truth(file),
            magnitudes=magnitudes,
            seconds=seconds,
            rate=metadata["rate"],
        )


def _hear(trained: Trained, wave: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the magnitudes of the first channel, and the probabilities (frames, places)."""
    metadata = trained.metadata
    magnitudes, probabilities = [], []
    for piece in wave.split(round(metadata["seconds"] * metadata["rate"]), 1):
        inputs = sound.preprocess(piece, metadata)
        with torch.inference_mode():
            outputs = trained.model(inputs)[0]
        probabilities.append(outputs.sigmoid() if trained.model.config["logits"] else outputs)
        first = inputs[0, 0] * metadata["std"][0] + metadata["mean"][0]
        magnitudes.append(restore_magnitudes(first, metadata["magnitudes"]))
    return torch.cat(magnitudes, 1), torch.cat(probabilities)


def find_events(probabilities: Tensor, classes: Sequence[str], seconds: float) -> list[Event]:
    """Returns an event for each run of frames in which a place is active.

    Args:
        probabilities: (frames, classes · overlaps), of frames of a tenth of a second.
        classes: Their names.
        seconds: Length of the recording; nothing ends after it.

    Example:
        >>> find_events(torch.tensor([[0.1], [0.75], [1.0], [0.5]]), ["Knock"], 60)
        [Event(start=0.1, end=0.3, label='Knock', probability=0.875)]
    """
    overlaps = probabilities.shape[1] // len(classes)
    active = (probabilities > THRESHOLD).int()
    silence = active.new_zeros(1, active.shape[1])
    steps = torch.cat([silence, active, silence]).diff(dim=0)
    events = []
    for place in range(active.shape[1]):
        starts, ends = ((steps[:, place] == step).nonzero()[:, 0].tolist() for step in (1, -1))
        for start, end in zip(starts, ends, strict=True):
            events.append(
                Event(
                    start=start / FRAMES_PER_SECOND,
                    end=min(end / FRAMES_PER_SECOND, seconds),
                    label=classes[place // overlaps],
                    probability=probabilities[start:end, place].mean().item(),
                )
            )
    return sorted(events)


def _find_files(paths: Sequence[str | Path]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no recording {path}")
        second = f"_{MICROPHONES[1]}"
        inside = sorted(f for f in path.rglob("*.wav") if not f.stem.endswith(second))
        if path.is_dir() and not inside:
            raise ValueError(f"the folder {path} holds no .wav files")
        found += inside if path.is_dir() else [path]
    return found


def _find_waves(file: Path, microphones: int) -> list[Path]:
    """Returns the file of each microphone."""
    if microphones == 1:
        return [file]
    first, *others = (f"_{microphone}" for microphone in MICROPHONES[:microphones])
    if not file.stem.endswith(first):
        raise ValueError(
            f"the network hears {microphones} microphones; give the file of the first, which is "
            f"called NAME{first}.wav, not {file}"
        )
    waves = [file, *(file.with_stem(file.stem.removesuffix(first) + other) for other in others)]
    for wave in waves:
        if not wave.exists():
            raise FileNotFoundError(
                f"there is no {wave.name} beside {file}, which the network needs"
            )
    return waves


def _read(waves: Sequence[Path], metadata: dict[str, Any]) -> Tensor:
    found = read_format(waves)
    if (found.rate, found.channels) != (metadata["rate"], metadata["channels"]):
        raise ValueError(
            f"{waves[0]} has {found}; the network was trained at {metadata['rate']} Hz in "
            f"{metadata['channels']} channels"
        )
    return sound.read_wave(waves, found)


def _read_truth(file: Path) -> tuple[sound.Event, ...] | None:
    name = file.stem.removesuffix(f"_{MICROPHONES[0]}")
    labels = find_labels(file.parent.parent / "labels", name)
    return tuple(sound.read_events(labels)) if labels.exists() else None
