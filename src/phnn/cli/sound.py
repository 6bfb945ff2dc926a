"""The command that makes data for the task sound."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Literal


def simulate(
    out: Path,
    clips: Path | None = None,
    train: int = 36,
    dev: int = 12,
    seconds: float = 60.0,
    rate: int = 32000,
    rt60: float = 0.3,
    reflections: int | None = None,
    snr: float = 30.0,
    folds: str | None = None,
    labels: str | None = None,
    stereo: Literal["raise", "mix"] = "raise",
    seed: int = 0,
    jobs: int | None = None,
) -> int:
    """Make scenes for sound event detection, in the format of L3DAS21, from a folder of clips.

    Each scene is a minute in an office of 6 × 5 × 3 m with two ambisonics microphones. It has at
    most one, two or three sounds at once, and takes 31 MB (16 bytes per sample of time): 1.5 GB in
    all by default. The same command continues where it was stopped: it makes the missing scenes.

    Example: phnn simulate --clips sounds/ --train 72 --dev 24 --out scenes

    Args:
        out: Folder to write.
        clips: Folder with a folder of mono audio files for each class. By default the clips are
            synthetic, with the classes of L3DAS21.
        train: Number of scenes for training.
        dev: Number of scenes for testing, from clips that training does not use.
        seconds: Length of a scene.
        rate: Samples per second; clips of another rate are converted.
        rt60: Seconds until a sound has fallen by 60 dB, by Sabine's formula; 0 for a room without
            walls.
        reflections: Largest number of reflections of a sound; by default until it has lost 35 dB.
            The time for a scene grows with its cube.
        snr: Signal-to-noise ratio in decibels; inf for no noise.
        folds: Folds for testing, separated by commas, when the clips have a metadata.csv with the
            columns file and fold; the last by default. Without folds, a fifth of each class.
        labels: Column of metadata.csv with the classes; by default they are the folders' names.
        stereo: Whether a clip of several channels is an error, or averaged.
        seed: Seed of all random numbers. The result does not depend on the number of processes.
        jobs: Processes at once; one for each core by default.
    """
    from phnn.lab.tasks.sound.classes import CLASSES
    from phnn.lab.tasks.sound.clips import Clips, open_clips
    from phnn.lab.tasks.sound.rooms import count_reflections
    from phnn.lab.tasks.sound.simulate import Simulation
    from phnn.lab.tasks.sound.simulate import simulate as run
    from phnn.lab.tasks.sound.synthesis import SyntheticClips

    if not seconds > 0:
        raise ValueError(f"seconds={seconds:g} must be more than 0")
    if clips is None and (folds, labels, stereo) != (None, None, "raise"):
        raise ValueError("folds, labels and stereo need a folder of clips; give --clips")
    source: Clips = (
        SyntheticClips(seed)
        if clips is None
        else open_clips(clips, folds=folds, labels=labels, stereo=stereo)
    )
    reflections = count_reflections(rt60) if reflections is None else reflections
    simulation = Simulation(source, seed, seconds, rate, rt60, reflections, snr)
    jobs = (os.cpu_count() or 1) if jobs is None else jobs
    done = run(simulation, out, train=train, dev=dev, jobs=jobs)
    print(
        f"made {done.made} scenes of {seconds:g} s in {out}, {done.found} were there; "
        f"{done.size / 1e9:.2f} GB in all"
    )
    argv = ["phnn", "train", "sednet-short", "--data.root", str(out)]
    if source.classes != CLASSES:
        argv += ["--data.classes", f"[{','.join(source.classes)}]"]
    print(f"next: {shlex.join(argv)}")
    return 0
