"""Scenes in the format of L3DAS21: clips that sound from places in a simulated office.

A scene is a function of the simulation, the part and its own number alone: whatever the number of
processes, and wherever a run was stopped, the same files come out.
"""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import shutil
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

from phnn.io.atomic import replacing, write_text
from phnn.lab.tasks.sound.classes import SETTINGS
from phnn.lab.tasks.sound.clips import PARTS, Clip, Clips, Part
from phnn.lab.tasks.sound.features import count_hop
from phnn.lab.tasks.sound.rooms import (
    CHANNELS,
    Place,
    check_reverberation,
    draw_place,
    impulse_response,
)

Array = npt.NDArray[np.float32]

COLUMNS = ("File", "Start", "End", "Class", "X", "Y", "Z")
MOST_OVERLAPS = 3
TRAIN_SPLITS = 4  # split0 … split3; the dev part is split4
LEVELS = 20.0  # decibels between the loudest and the softest event at the same distance
LOUDNESS = 0.05  # RMS of the loudest tenth of a second of a 0 dB event, 1 m away
PEAK = 0.99  # of full scale; a louder scene is scaled down
# seconds between two events of a voice: above 0.3, never in one of the frames of 0.1 s, which
# rounding may widen by one frame at each end
GAPS = (0.3, 3.0)
SAMPLE_BYTES = 2
VERSION = 1  # to be raised when the same settings make other scenes


class Event(NamedTuple):
    """A row of a label file.

    Attributes:
        file: the clip.
        start: seconds from the beginning of the scene.
        end: likewise.
        label: the class.
        place: metres from microphone A.
    """

    file: str
    start: float
    end: float
    label: str
    place: Place


class Scene(NamedTuple):
    """A recording and what is in it.

    Attributes:
        audio: (8, samples) in [-1, 1]: W, Y, Z, X of microphone A, then of B.
        events: in the order of their starts.
    """

    audio: Array
    events: list[Event]


@dataclass(frozen=True)
class Simulation:
    """What scenes are made of, and how.

    Attributes:
        clips: the sounds.
        seed: of everything random.
        seconds: of a scene.
        rate: samples per second.
        rt60: seconds until a sound has fallen by 60 dB; 0 for a room without walls.
        reflections: the most walls on the way of a sound.
        snr: decibels from the power of the background noise to that of the events, both averaged
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
        """The length of a scene."""
        return round(self.seconds * self.rate)

    @property
    def settings(self) -> dict[str, Any]:
        """All that a scene depends on, as values for a text file."""
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
    """What a run did.

    Attributes:
        made: the number of scenes it made.
        found: the number that were there.
        size: bytes of all their recordings.
    """

    made: int
    found: int
    size: int


def name_scene(part: Part, number: int) -> str:
    """Returns a scene's name; one of three has at most one, two and three sounds at once.

    Args:
        part: "train" or "dev".
        number: of the scene, from 0.

    Example:
        >>> [name_scene("train", number) for number in (0, 1, 3, 12)]
        ['split0_ov1_1', 'split0_ov2_1', 'split1_ov1_1', 'split0_ov1_2']
        >>> name_scene("dev", 3)
        'split4_ov1_2'
    """
    row = number // MOST_OVERLAPS
    split, index = (
        (TRAIN_SPLITS, row) if part == "dev" else (row % TRAIN_SPLITS, row // TRAIN_SPLITS)
    )
    return f"split{split}_ov{_count_voices(number)}_{index + 1}"


def make_scene(simulation: Simulation, part: Part, number: int) -> Scene:
    """Makes one scene.

    Args:
        simulation: what it is made of.
        part: whose clips to use.
        number: of the scene, from 0.
    """
    rng = np.random.default_rng([simulation.seed, PARTS.index(part), number])
    audio = np.zeros((CHANNELS, simulation.samples), np.float32)
    events = []
    for _ in range(_count_voices(number)):
        for clip, start in _draw_voice(rng, simulation, part):
            place = draw_place(rng)
            level = LOUDNESS * 10 ** (-rng.uniform(0, LEVELS) / 20)
            _add(audio, simulation, clip, start, place, level)
            end = min(start + len(clip.samples) / simulation.rate, simulation.seconds)
            events.append(Event(clip.name, start, round(end, 3), clip.label, place))
    audio += _make_noise(rng, audio, simulation)
    audio *= min(1.0, PEAK / float(np.abs(audio).max()))
    return Scene(audio, sorted(events, key=lambda event: event.start))


def simulate(simulation: Simulation, out: Path, *, train: int, dev: int, jobs: int = 1) -> Summary:
    """Makes the scenes that a folder has not yet.

    They are written as `out`/L3DAS_Task2_train and `out`/L3DAS_Task2_dev, with the settings beside
    them. Scenes that are there stay; a run with other settings is refused.

    Args:
        simulation: what the scenes are made of.
        out: the folder.
        train: the number of training scenes.
        dev: the number of scenes of the dev part.
        jobs: the number of processes, each with one thread.
    """
    _check_counts(train=train, dev=dev, jobs=jobs)
    wanted = [
        (part, number)
        for part, count in zip(PARTS, (train, dev), strict=True)
        for number in range(count)
    ]
    missing = [scene for scene in wanted if not _is_complete(out, *scene)]
    out.mkdir(parents=True, exist_ok=True)
    size = CHANNELS * simulation.samples * SAMPLE_BYTES
    _check_space(out, len(missing) * size)
    _keep_settings(simulation, out)
    for part in PARTS:
        for kind in ("data", "labels"):
            _folder(out, part, kind).mkdir(parents=True, exist_ok=True)
    _run(partial(_produce, simulation, out), missing, jobs)
    return Summary(len(missing), len(wanted) - len(missing), len(wanted) * size)


def _count_voices(number: int) -> int:
    return 1 + number % MOST_OVERLAPS


def _draw_voice(
    rng: np.random.Generator, simulation: Simulation, part: Part
) -> Iterator[tuple[Clip, float]]:
    """Draws sounds that follow one another, and the second at which each starts.

    A scene of k voices has at most k sounds at once. The first sound always fits; the voice ends
    with the first one after it that does not.
    """
    time = 0.0
    while True:
        clip = simulation.clips.draw(rng, part, simulation.rate)
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
    audio: Array, simulation: Simulation, clip: Clip, start: float, place: Place, level: float
) -> None:
    """Adds what the microphones hear of a clip; a tail beyond the end is cut."""
    response = impulse_response(place, simulation.rate, simulation.rt60, simulation.reflections)
    dry = clip.samples * np.float32(level / _measure_loudness(clip.samples, simulation.rate))
    first = round(start * simulation.rate)
    heard = oaconvolve(dry[None], response, axes=1)[:, : audio.shape[1] - first]
    audio[:, first : first + heard.shape[1]] += heard


def _measure_loudness(samples: Array, rate: int) -> float:
    """Returns the RMS of the loudest tenth of a second.

    That of the whole would make a single click as loud as seconds of noise.
    """
    frame = rate // 10
    power = np.pad(samples.astype(np.float64), (0, -len(samples) % frame)) ** 2
    return float(np.sqrt(power.reshape(-1, frame).mean(axis=1).max()))


def _make_noise(rng: np.random.Generator, audio: Array, simulation: Simulation) -> Array:
    """Makes the hum of a room: pink, from everywhere, other at each microphone.

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


def _produce(simulation: Simulation, out: Path, part: Part, number: int) -> None:
    """Writes a scene; the label, which makes it complete, last."""
    import soundfile

    scene = make_scene(simulation, part, number)
    pcm = np.round(scene.audio * 32767).astype(np.int16)
    recordings, label = _name_files(out, part, number)
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
            [event.file, f"{event.start:.3f}", f"{event.end:.3f}", event.label, *event.place]
        )
    return text.getvalue()


def _folder(out: Path, part: Part, kind: str) -> Path:
    return out / f"L3DAS_Task2_{part}" / kind


def _name_files(out: Path, part: Part, number: int) -> tuple[list[Path], Path]:
    name = name_scene(part, number)
    recordings = [_folder(out, part, "data") / f"{name}_{microphone}.wav" for microphone in "AB"]
    return recordings, _folder(out, part, "labels") / f"label_{name}.csv"


def _is_complete(out: Path, part: Part, number: int) -> bool:
    recordings, label = _name_files(out, part, number)
    return all(path.exists() for path in (*recordings, label))


def _check_counts(*, train: int, dev: int, jobs: int) -> None:
    if min(train, dev) < 0 or train + dev == 0:
        raise ValueError(f"train={train} and dev={dev} must be numbers of scenes, not both 0")
    if jobs < 1:
        raise ValueError(f"jobs={jobs} must be at least 1")


def _keep_settings(simulation: Simulation, out: Path) -> None:
    """Writes the settings, or compares them with those of the scenes that are there."""
    file = out / SETTINGS
    if not file.exists():
        write_text(file, json.dumps(simulation.settings, indent=2) + "\n")
        return
    there = json.loads(file.read_text(encoding="utf-8"))
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


def _run(produce: partial[None], scenes: Sequence[tuple[Part, int]], jobs: int) -> None:
    from tqdm import tqdm  # type: ignore[import-untyped]

    bar = partial(tqdm, total=len(scenes), unit="scene", disable=not scenes)
    if jobs == 1:
        for scene in bar(scenes):
            produce(*scene)
        return
    # spawn: a process that has threads of torch cannot safely be forked
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    try:
        for done in bar(as_completed([pool.submit(produce, *scene) for scene in scenes])):
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
