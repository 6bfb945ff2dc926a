"""The sound events that a trained network detects in recordings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phnn.lab.tasks.sound import labels as true
from phnn.lab.tasks.sound.features import (
    DETECTION_KEYS,
    check_metadata,
    preprocess,
    restore_magnitudes,
)
from phnn.lab.tasks.sound.labels import FRAMES_PER_SECOND, read_events
from phnn.lab.tasks.sound.recordings import MICROPHONES, find_labels, read_format, read_wave
from phnn.lab.tasks.task import Answer
from phnn.models import Network

THRESHOLD = 0.5  # the probability above which an event is active


class Event(NamedTuple):
    """A sound that was detected.

    Attributes:
        start: The start in seconds.
        end: The end in seconds.
        label: The class.
        probability: The mean over the frames.
        track: 1; 2 or 3 for further events of the class at the same time.
    """

    start: float
    end: float
    label: str
    probability: float
    track: int = 1


@dataclass(frozen=True)
class Heard:
    """What a network detects in a recording.

    Attributes:
        file: The recording of the first microphone.
        events: The detected events, in the order of their starts.
        truth: The events of the label file, where there is one.
        magnitudes: The spectrogram of the first channel, (bins, frames).
        seconds: The length of the recording.
        rate: Samples per second.
    """

    file: Path
    events: tuple[Event, ...]
    truth: tuple[true.Event, ...] | None
    magnitudes: Tensor
    seconds: float
    rate: int


def predict(
    model: Network,
    metadata: Mapping[str, Any],
    inputs: Sequence[str | Path],
    threshold: float = THRESHOLD,
    merge: bool = False,
) -> Iterator[Answer]:
    """Yield the answer for each recording, see `detect`."""
    for heard in detect(model, metadata, inputs, threshold=threshold, merge=merge):
        lines = [
            f"{heard.file}: {event.start:.1f} to {event.end:.1f} s: {event.label}"
            f"{f' #{event.track}' if event.track > 1 else ''} ({100 * event.probability:.1f} %)"
            for event in heard.events
        ]
        yield Answer(
            lines=lines or [f"{heard.file}: nothing was heard"],
            rows=[(str(heard.file), *event) for event in heard.events],
            name=f"{heard.file.stem}-events",
            detail=heard,
        )


def detect(
    model: Network,
    metadata: Mapping[str, Any],
    recordings: Sequence[str | Path],
    *,
    threshold: float = THRESHOLD,
    merge: bool = False,
) -> Iterator[Heard]:
    """Yield what a network detects in each recording.

    A recording may have any length. The network gets pieces of the length that it was tested on.

    Args:
        model: A network for sound, in evaluation mode.
        metadata: The metadata of the network.
        recordings: Files, or folders of files. For recordings with two microphones the file of the
            first, NAME_A.wav, with NAME_B.wav beside it.
        threshold: The probability above which an event is active.
        merge: Whether events of one class that overlap become one.
    """
    if not 0 < threshold < 1:
        raise ValueError(f"threshold={threshold} must be a probability between 0 and 1")
    check_metadata(metadata, DETECTION_KEYS)
    for file in find_recordings(recordings):
        waves = _find_waves(file, metadata["microphones"])
        wave = _read(waves, metadata)
        magnitudes, probabilities = _hear(model, metadata, wave)
        seconds = wave.shape[1] / metadata["rate"]
        if not metadata["classes"] or probabilities.shape[1] % len(metadata["classes"]):
            raise ValueError(
                f"the network has {probabilities.shape[1]} outputs, its metadata "
                f"{len(metadata['classes'])} classes"
            )
        events = find_events(probabilities, metadata["classes"], seconds, threshold)
        yield Heard(
            file=file,
            events=tuple(merge_events(events) if merge else events),
            truth=_read_truth(file),
            magnitudes=magnitudes,
            seconds=seconds,
            rate=metadata["rate"],
        )


def read_inputs(metadata: Mapping[str, Any], files: Sequence[str | Path]) -> Iterator[Tensor]:
    """Yield pieces of recordings as a network takes them, of the length that it was tested on.

    Args:
        metadata: The metadata of the network.
        files: Recordings, of the first microphone.
    """
    check_metadata(metadata, DETECTION_KEYS)
    length = round(metadata["seconds"] * metadata["rate"])
    for file in files:
        wave = _read(_find_waves(Path(file), metadata["microphones"]), metadata)
        pieces = wave.split(length, 1)
        whole = [piece for piece in pieces if piece.shape[1] == length]
        for piece in whole or pieces:
            yield preprocess(piece, metadata)


def _hear(model: Network, metadata: Mapping[str, Any], wave: Tensor) -> tuple[Tensor, Tensor]:
    """Return the magnitudes of the first channel, and the probabilities (frames, tracks)."""
    magnitudes, probabilities = [], []
    for piece in wave.split(round(metadata["seconds"] * metadata["rate"]), 1):
        inputs = preprocess(piece, metadata)
        with torch.inference_mode():
            outputs = model(inputs)[0]
        probabilities.append(outputs.sigmoid() if model.config["logits"] else outputs)
        first = inputs[0, 0] * metadata["std"][0] + metadata["mean"][0]
        magnitudes.append(restore_magnitudes(first, metadata["magnitudes"]))
    return torch.cat(magnitudes, 1), torch.cat(probabilities)


def find_events(
    probabilities: Tensor, classes: Sequence[str], seconds: float, threshold: float = THRESHOLD
) -> list[Event]:
    """Return an event for each sequence of frames in which a track is active.

    Args:
        probabilities: (frames, classes · overlaps), for frames of a tenth of a second.
        classes: The names of the classes.
        seconds: The length of the recording; no event ends after it.
        threshold: The probability above which an event is active.

    Example:
        >>> find_events(torch.tensor([[0.1], [0.75], [1.0], [0.5]]), ["Knock"], 60)
        [Event(start=0.1, end=0.3, label='Knock', probability=0.875, track=1)]
    """
    overlaps = probabilities.shape[1] // len(classes)
    active = (probabilities > threshold).int()
    silence = active.new_zeros(1, active.shape[1])
    steps = torch.cat([silence, active, silence]).diff(dim=0)
    events = []
    for track in range(active.shape[1]):
        starts, ends = ((steps[:, track] == step).nonzero()[:, 0].tolist() for step in (1, -1))
        for start, end in zip(starts, ends, strict=True):
            events.append(
                Event(
                    start=start / FRAMES_PER_SECOND,
                    end=min(end / FRAMES_PER_SECOND, seconds),
                    label=classes[track // overlaps],
                    probability=probabilities[start:end, track].mean().item(),
                )
            )
    return _number_tracks(sorted(events))


def _number_tracks(events: Sequence[Event]) -> list[Event]:
    """Return events with the number of each among those of its class at its start.

    Tracks of a network have no meaning of their own: an event that is alone is always the first.

    Args:
        events: In the order of their starts.
    """
    numbered: list[Event] = []
    for event in events:
        at_once = [e for e in numbered if e.label == event.label and e.end > event.start]
        taken = {other.track for other in at_once}
        track = next(number for number in range(1, len(taken) + 2) if number not in taken)
        numbered.append(event._replace(track=track))
    return numbered


def merge_events(events: Sequence[Event]) -> list[Event]:
    """Return one event for all of a class that overlap, with the highest of their probabilities.

    Args:
        events: In the order of their starts.

    Example:
        >>> merge_events([Event(0.0, 2.0, "Knock", 0.7), Event(1.0, 3.0, "Knock", 0.9, track=2)])
        [Event(start=0.0, end=3.0, label='Knock', probability=0.9, track=1)]
    """
    merged: dict[str, list[Event]] = {}
    for event in events:
        known = merged.setdefault(event.label, [])
        if known and event.start <= known[-1].end:
            last = known[-1]
            end, probability = max(last.end, event.end), max(last.probability, event.probability)
            known[-1] = last._replace(end=end, probability=probability)
        else:
            known.append(event._replace(track=1))
    return sorted(event for found in merged.values() for event in found)


def find_recordings(paths: Sequence[str | Path]) -> list[Path]:
    """Return the recordings of the first microphone among paths, and in folders among them."""
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
    """Return the file of each microphone."""
    if microphones == 1:
        return [file]
    first, *others = (f"_{microphone}" for microphone in MICROPHONES[:microphones])
    if not file.stem.endswith(first):
        raise ValueError(
            f"the network needs recordings of {microphones} microphones; give the file of the "
            f"first, NAME{first}.wav, not {file}"
        )
    waves = [file, *(file.with_stem(file.stem.removesuffix(first) + other) for other in others)]
    for wave in waves:
        if not wave.exists():
            raise FileNotFoundError(
                f"there is no {wave.name} beside {file}, which the network needs"
            )
    return waves


def _read(waves: Sequence[Path], metadata: Mapping[str, Any]) -> Tensor:
    found = read_format(waves)
    if (found.rate, found.channels) != (metadata["rate"], metadata["channels"]):
        raise ValueError(
            f"{waves[0]} has {found}; the network was trained at {metadata['rate']} Hz in "
            f"{metadata['channels']} channels"
        )
    return read_wave(waves, found)


def _read_truth(file: Path) -> tuple[true.Event, ...] | None:
    name = file.stem.removesuffix(f"_{MICROPHONES[0]}")
    labels = find_labels(file.parent.parent / "labels", name)
    return tuple(read_events(labels)) if labels.exists() else None
