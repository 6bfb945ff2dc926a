"""Scenes in the format of L3DAS21: clips that sound from positions in a simulated office.

A scene is a function of the simulation, the split and its own number alone. The same files come
out for any number of processes, and after any interruption.
"""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft
from scipy.signal import oaconvolve

from phnn._screen import ProgressBar
from phnn.io.atomic import replacing, write_text
from phnn.lab.files import read_json
from phnn.lab.tasks.sound.classes import SETTINGS
from phnn.lab.tasks.sound.clips import SPLITS, Clip, Clips, Split
from phnn.lab.tasks.sound.features import count_hop
from phnn.lab.tasks.sound.rooms import (
    CHANNELS,
    Position,
    check_reverberation,
    draw_position,
    impulse_response,
)

Array = npt.NDArray[np.float32]

COLUMNS = ("File", "Start", "End", "Class", "X", "Y", "Z")
MOST_OVERLAPS = 3
TRAIN_FOLDS = 4  # named split0 … split3; the dev split is named split4
LEVELS = 20.0  # decibels between the loudest and the softest event at the same distance
LOUDNESS = 0.05  # RMS of the loudest tenth of a second of a 0 dB event, 1 m away
PEAK = 0.99  # of full scale; a louder scene is scaled down
# seconds between two events of a voice: above 0.3, never in one of the frames of 0.1 s, which
# rounding may widen by one frame at each end
GAPS = (0.3, 3.0)
SAMPLE_BYTES = 2
VERSION = 1  # raise it when the same settings make other scenes


class Event(NamedTuple):
    """A row of a label file.

    Attributes:
        file: The clip.
        start: The start in seconds.
        end: The end in seconds.
        label: The class.
        position: Metres from microphone A.
    """

    file: str
    start: float
    end: float
    label: str
    position: Position


class Scene(NamedTuple):
    """A recording and what is in it.

    Attributes:
        audio: (8, samples) in [-1, 1]: W, Y, Z, X of microphone A, then of B.
        events: The events, in the order of their starts.
    """

    audio: Array
    events: list[Event]


@dataclass(frozen=True)
class Simulation:
    """What scenes are made of.

    Attributes:
        clips: The sounds.
        seed: The seed of everything random.
        seconds: The length of a scene.
        rate: Samples per second.
        rt60: Seconds until a sound has fallen by 60 dB; 0 for a room without walls.
        reflections: The most walls on the path of a sound.
        snr: Decibels from the power of the background noise to that of the events, both averaged
            over the scene; infinite for no noise.
    """

    clips: Clips
    seed: int = 0
    seconds: float = 60.0
    rate: int = 32000
    rt60: float = 0.3
    reflections: int = 17
    snr: float = 30.0

    def __post_init__(self) -> None:
        check_reverberation(self.rt60, self.reflections)
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must not be negative")
        if self.rate < 8000:
            raise ValueError(f"rate={self.rate} must be at least 8000 samples per second")
        count_hop(self.rate)  # or no network could hear the scenes
        if np.isnan(self.snr) or self.snr == -np.inf:
            raise ValueError(f"snr={self.snr} must be a number of decibels")
        name, seconds = self.clips.longest
        if not seconds <= self.seconds:
            raise ValueError(
                f"{name} lasts {seconds:.2f} s, longer than a scene of {self.seconds:g} s; make "
                "the scenes longer, or use shorter clips"
            )

    @property
    def samples(self) -> int:
        """The length of a scene in samples."""
        return round(self.seconds * self.rate)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that a scene depends on, as JSON can hold it."""
        return {
            "classes": list(self.clips.classes),
            "clips": self.clips.fingerprint,
            "seed": self.seed,
            "seconds": self.seconds,
            "rate": self.rate,
            "rt60": self.rt60,
            "reflections": self.reflections,
            "snr": str(self.snr),
        }


class Summary(NamedTuple):
    """What a simulation did.

    Attributes:
        made: The number of scenes it made.
        found: The number of scenes that existed.
        size: The bytes of all recordings.
    """

    made: int
    found: int
    size: int


def name_scene(split: Split, number: int) -> str:
    """Return a scene's name; a third each has at most one, two and three sounds at once.

    Args:
        split: "train" or "dev".
        number: The number of the scene, from 0.

    Example:
        >>> [name_scene("train", number) for number in (0, 1, 3, 12)]
        ['split0_ov1_1', 'split0_ov2_1', 'split1_ov1_1', 'split0_ov1_2']
        >>> name_scene("dev", 3)
        'split4_ov1_2'
    """
    row = number // MOST_OVERLAPS
    fold, index = (TRAIN_FOLDS, row) if split == "dev" else (row % TRAIN_FOLDS, row // TRAIN_FOLDS)
    return f"split{fold}_ov{_count_voices(number)}_{index + 1}"


def make_scene(simulation: Simulation, split: Split, number: int) -> Scene:
    """Make one scene.

    Args:
        simulation: What it is made of.
        split: The split whose clips to use.
        number: The number of the scene, from 0.
    """
    rng = np.random.default_rng([simulation.seed, SPLITS.index(split), number])
    audio = np.zeros((CHANNELS, simulation.samples), np.float32)
    events = []
    for _ in range(_count_voices(number)):
        for clip, start in _draw_voice(rng, simulation, split):
            position = draw_position(rng)
            level = LOUDNESS * 10 ** (-rng.uniform(0, LEVELS) / 20)
            _add(audio, simulation, clip, start, position, level)
            end = min(start + len(clip.samples) / simulation.rate, simulation.seconds)
            events.append(Event(clip.name, start, round(end, 3), clip.label, position))
    audio += _make_noise(rng, audio, simulation)
    audio *= min(1.0, PEAK / float(np.abs(audio).max()))
    return Scene(audio, sorted(events, key=lambda event: event.start))


def simulate(simulation: Simulation, out: Path, *, train: int, dev: int, jobs: int = 1) -> Summary:
    """Make the scenes that a folder does not have yet.

    They are written to `out`/L3DAS_Task2_train and `out`/L3DAS_Task2_dev, with the settings beside
    them. Existing scenes stay; other settings than theirs are refused.

    Args:
        simulation: What the scenes are made of.
        out: The folder.
        train: The number of training scenes.
        dev: The number of scenes of the dev split.
        jobs: The number of processes, each with one thread. They end with this process, however
            it ends.
    """
    _check_counts(train=train, dev=dev, jobs=jobs)
    wanted = [
        (split, number)
        for split, count in zip(SPLITS, (train, dev), strict=True)
        for number in range(count)
    ]
    missing = [scene for scene in wanted if not _is_complete(out, *scene)]
    out.mkdir(parents=True, exist_ok=True)
    size = CHANNELS * simulation.samples * SAMPLE_BYTES
    _check_space(out, len(missing) * size)
    _keep_settings(simulation, out)
    for split in SPLITS:
        for kind in ("data", "labels"):
            _folder(out, split, kind).mkdir(parents=True, exist_ok=True)
    _run(partial(_produce, simulation, out), missing, jobs)
    return Summary(len(missing), len(wanted) - len(missing), len(wanted) * size)


def _count_voices(number: int) -> int:
    return 1 + number % MOST_OVERLAPS


def _draw_voice(
    rng: np.random.Generator, simulation: Simulation, split: Split
) -> Iterator[tuple[Clip, float]]:
    """Draw sounds that follow one another, and the second at which each starts.

    A scene of k voices has at most k sounds at once. The first sound always fits. The voice ends
    before the next one that does not.
    """
    time = 0.0
    while True:
        clip = simulation.clips.draw(rng, split, simulation.rate)
        latest = simulation.seconds - len(clip.samples) / simulation.rate
        start = time + rng.uniform(*GAPS)
        if time == 0:
            start = min(start, max(latest, 0.0))
        elif start > latest:
            return
        start = np.floor(1000 * start) / 1000
        yield clip, float(start)
        time = start + len(clip.samples) / simulation.rate


def _add(
    audio: Array, simulation: Simulation, clip: Clip, start: float, position: Position, level: float
) -> None:
    """Add what the microphones hear of a clip; a tail beyond the end is cut."""
    response = impulse_response(position, simulation.rate, simulation.rt60, simulation.reflections)
    dry = clip.samples * np.float32(level / _measure_loudness(clip.samples, simulation.rate))
    first = round(start * simulation.rate)
    heard = oaconvolve(dry[None], response, axes=1)[:, : audio.shape[1] - first]
    audio[:, first : first + heard.shape[1]] += heard


def _measure_loudness(samples: Array, rate: int) -> float:
    """Return the RMS of the loudest tenth of a second.

    The RMS of the whole would make a single click as loud as seconds of noise.
    """
    frame = rate // 10
    power = np.pad(samples.astype(np.float64), (0, -len(samples) % frame)) ** 2
    return float(np.sqrt(power.reshape(-1, frame).mean(axis=1).max()))


def _make_noise(rng: np.random.Generator, audio: Array, simulation: Simulation) -> Array:
    """Make the hum of a room: pink, from everywhere, different at each microphone.

    Sound from everywhere has a third of the power of W in each figure of eight.
    """
    if simulation.snr == np.inf:
        return np.zeros_like(audio)
    white = rng.standard_normal(audio.shape, dtype=np.float32)
    frequency = np.fft.rfftfreq(audio.shape[1], 1 / simulation.rate)
    spectrum = fft.rfft(white) / np.sqrt(np.maximum(frequency, 20)).astype(np.float32)
    pink: Array = fft.irfft(spectrum, audio.shape[1])
    pink /= pink.std(axis=1, keepdims=True)
    pink[np.arange(CHANNELS) % 4 > 0] /= np.sqrt(np.float32(3))
    heard = np.sqrt(np.mean(audio[0].astype(np.float64) ** 2))
    return pink * np.float32(heard * 10 ** (-simulation.snr / 20))


def _produce(simulation: Simulation, out: Path, split: Split, number: int) -> None:
    """Write a scene; the label, which makes it complete, last."""
    import soundfile

    scene = make_scene(simulation, split, number)
    pcm = np.round(scene.audio * 32767).astype(np.int16)
    recordings, label = _name_files(out, split, number)
    for recording, channels in zip(recordings, np.split(pcm, len(recordings)), strict=True):
        with replacing(recording) as temporary:
            soundfile.write(temporary, channels.T, simulation.rate, "PCM_16", format="WAV")
    write_text(label, _render_label(scene.events))


def _render_label(events: Sequence[Event]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for event in events:
        writer.writerow(
            [event.file, f"{event.start:.3f}", f"{event.end:.3f}", event.label, *event.position]
        )
    return text.getvalue()


def _folder(out: Path, split: Split, kind: str) -> Path:
    return out / f"L3DAS_Task2_{split}" / kind


def _name_files(out: Path, split: Split, number: int) -> tuple[list[Path], Path]:
    name = name_scene(split, number)
    recordings = [_folder(out, split, "data") / f"{name}_{microphone}.wav" for microphone in "AB"]
    return recordings, _folder(out, split, "labels") / f"label_{name}.csv"


def _is_complete(out: Path, split: Split, number: int) -> bool:
    recordings, label = _name_files(out, split, number)
    return all(path.exists() for path in (*recordings, label))


def _check_counts(*, train: int, dev: int, jobs: int) -> None:
    if min(train, dev) < 0 or train + dev == 0:
        raise ValueError(f"train={train} and dev={dev} must be numbers of scenes, not both 0")
    if jobs < 1:
        raise ValueError(f"jobs={jobs} must be at least 1")


def _keep_settings(simulation: Simulation, out: Path) -> None:
    """Write the settings, or compare them with those of the existing scenes."""
    file = out / SETTINGS
    if not file.exists():
        write_text(file, json.dumps(simulation.settings, indent=2) + "\n")
        return
    there = read_json(file)
    if not isinstance(there, dict):
        raise ValueError(f"{file} is damaged; delete it if the scenes have these settings")
    other = [
        f"{name} {there.get(name)}, not {value}"
        for name, value in simulation.settings.items()
        if there.get(name) != value
    ]
    if other:
        raise ValueError(
            f"the scenes of {out} were made with {'; '.join(other)}; use the same settings, or "
            "another folder"
        )


def _check_space(out: Path, needed: int) -> None:
    free = shutil.disk_usage(out).free
    if needed > free:
        raise OSError(
            f"the scenes need {needed / 1e9:.1f} GB, and {out} has {free / 1e9:.1f} GB left; make "
            "fewer or shorter ones"
        )


def _run(produce: partial[None], scenes: Sequence[tuple[Split, int]], jobs: int) -> None:
    bar, total = ProgressBar(), len(scenes)
    if jobs == 1:
        for number, scene in enumerate(scenes):
            bar("making scenes", number, total)
            produce(*scene)
        bar.close()
        return
    # spawn: a process that has threads of torch cannot safely be forked
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=_end_with_parent)
    try:
        made = as_completed([pool.submit(produce, *scene) for scene in scenes])
        bar("making scenes", 0, total)
        for number, done in enumerate(made, 1):
            done.result()
            bar("making scenes", number, total)
    finally:
        bar.close()
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Let this process end when its parent does, even by SIGKILL."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)  # whatever the process is doing: files are replaced when they are complete

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the pool
    threading.Thread(target=watch, daemon=True).start()
