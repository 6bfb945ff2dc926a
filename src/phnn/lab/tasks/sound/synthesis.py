"""Synthetic clips: one family of sounds for each class of L3DAS21.

They are not meant to sound real, but they differ as the real ones do: in pitch, in rhythm, in how
long they ring. With them the sound task works without recordings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phnn.lab.tasks.sound.classes import CLASSES
from phnn.lab.tasks.sound.clips import SPLITS, Clip, Split, resample

Signal = npt.NDArray[np.float64]
RATE = 32000
VARIANTS = 200  # clips of each class and split


@dataclass(frozen=True)
class SyntheticClips:
    """Clips that are computed when they are drawn.

    Attributes:
        seed: The seed of the clips.
    """

    seed: int = 0

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return CLASSES

    @property
    def fingerprint(self) -> str:
        """A string that changes whenever the clips change."""
        return f"synthetic {self.seed}"

    @property
    def longest(self) -> tuple[str, float]:
        """A name for any of the clips, and the most seconds that one lasts."""
        return "a synthetic clip", 8.0

    def draw(self, rng: np.random.Generator, split: Split, rate: int) -> Clip:
        """Draw a class, and a clip of it that only this split has.

        Args:
            rng: The source of the randomness.
            split: "train" or "dev".
            rate: Samples per second wanted.
        """
        number, variant = int(rng.integers(len(CLASSES))), int(rng.integers(VARIANTS))
        label = CLASSES[number]
        own = np.random.default_rng([self.seed, SPLITS.index(split), number, variant])
        samples = synthesize(label, own, rate)
        return Clip(f"{label}/{split}-{variant}", label, samples)


def synthesize(label: str, rng: np.random.Generator, rate: int) -> npt.NDArray[np.float32]:
    """Make a clip.

    Args:
        label: One of the classes of L3DAS21.
        rng: The source of the variation.
        rate: Samples per second.

    Example:
        >>> synthesize("Knock", np.random.default_rng(0), 32000).ndim
        1
    """
    samples = FAMILIES[label](_Bench(rng)).astype(np.float32)
    samples = resample(samples, RATE, rate)  # a low rate would have no high partials
    samples /= np.abs(samples).max()
    return samples


class _Bench:
    """The tools of every family of sounds."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def draw(self, low: float, high: float) -> float:
        """Draw a number, uniform in its logarithm."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def time(self, seconds: float) -> Signal:
        return np.arange(round(seconds * RATE)) / RATE

    def noise(self, seconds: float, low: float, high: float) -> Signal:
        """Return noise between two frequencies, of RMS 1."""
        size = round(seconds * RATE)
        spectrum = np.fft.rfft(self.rng.standard_normal(size))
        frequency = np.fft.rfftfreq(size, 1 / RATE)
        spectrum /= 1 + (low / np.maximum(frequency, 1)) ** 4 + (frequency / high) ** 4
        filtered: Signal = np.fft.irfft(spectrum, size)
        filtered /= filtered.std()
        return filtered

    def ring(self, frequency: float, decay: float, partials: int) -> Signal:
        """Return the sound of something struck: inharmonic partials that decay."""
        t = self.time(6 * decay)
        rung = np.zeros_like(t)
        for number in range(partials):
            pitch = frequency * (1 + 1.6 * number * self.draw(0.8, 1.25))
            if pitch < 0.45 * RATE:
                rung += np.sin(2 * np.pi * pitch * t) * np.exp(-t * (1 + number) / decay)
        rung /= partials**0.5
        return rung

    def burst(self, decay: float, low: float, high: float) -> Signal:
        """Return noise that starts at once and decays."""
        return self.noise(6 * decay, low, high) * np.exp(-self.time(6 * decay) / decay)

    def sweep(self, seconds: float, first: float, last: float) -> Signal:
        """Return a phase in radians with a gliding frequency."""
        t = self.time(seconds) / seconds
        return np.cumsum(2 * np.pi * first * (last / first) ** t) / RATE

    def swell(self, seconds: float) -> Signal:
        """Return an envelope that rises and falls."""
        return np.sin(np.pi * self.time(seconds) / seconds)

    def lay(self, sounds: list[tuple[float, Signal]]) -> Signal:
        """Add sounds, each at its own second."""
        starts = [round(start * RATE) for start, _ in sounds]
        laid = np.zeros(
            max(start + len(sound) for start, (_, sound) in zip(starts, sounds, strict=True))
        )
        for start, (_, sound) in zip(starts, sounds, strict=True):
            laid[start : start + len(sound)] += sound
        return laid

    def repeat(
        self, sound: Callable[[], Signal], times: tuple[int, int], gap: tuple[float, float]
    ) -> Signal:
        """Add new sounds of one kind, one after another."""
        count = int(self.rng.integers(times[0], times[1] + 1))
        starts = np.cumsum([0.0, *(self.draw(*gap) for _ in range(count - 1))])
        return self.lay([(start, self.draw(0.5, 1.0) * sound()) for start in starts])

    def voice(self, seconds: float, pitch: float, tract: float, breath: float) -> Signal:
        """Return a syllable: harmonics of a gliding pitch under three formants."""
        phase = self.sweep(seconds, pitch * self.draw(0.9, 1.2), pitch * self.draw(0.8, 1.05))
        formants = tract * np.array(
            [self.draw(300, 850), self.draw(900, 2200), self.draw(2400, 3000)]
        )
        spoken = breath * self.noise(seconds, 500, 5000)
        for number in range(1, int(5000 / pitch) + 1):
            nearness = np.exp(-(((number * pitch - formants) / (80 + 0.08 * formants)) ** 2))
            spoken += (0.05 + nearness.sum()) / number**0.5 * np.sin(number * phase)
        return spoken * self.swell(seconds)

    def speak(self, pitch: float, tract: float) -> Signal:
        return self.repeat(
            lambda: self.voice(self.draw(0.12, 0.3), pitch * self.draw(0.9, 1.1), tract, 0.05),
            (4, 12),
            (0.16, 0.35),
        )


def _clink(bench: _Bench) -> Signal:
    pitch = bench.draw(1800, 4000)
    return bench.repeat(
        lambda: bench.ring(pitch * bench.draw(0.9, 1.1), bench.draw(0.05, 0.25), 4),
        (1, 4),
        (0.1, 0.6),
    )


def _type(bench: _Bench) -> Signal:
    return bench.repeat(
        lambda: bench.lay(
            [
                (0.0, bench.burst(0.004, 1500, 8000)),
                (0.0, 0.6 * bench.ring(bench.draw(180, 300), 0.01, 2)),
                (bench.draw(0.05, 0.09), 0.4 * bench.burst(0.003, 2000, 9000)),
            ]
        ),
        (8, 24),
        (0.08, 0.25),
    )


def _open_cupboard(bench: _Bench) -> Signal:
    seconds = bench.draw(0.4, 1.2)
    phase = bench.sweep(seconds, bench.draw(150, 300), bench.draw(250, 600))
    creak = np.sign(np.sin(phase)) * np.abs(np.sin(bench.sweep(seconds, 9, 25)))
    thud = bench.ring(bench.draw(80, 150), bench.draw(0.04, 0.09), 3)
    return bench.lay([(0.0, 0.2 * creak * bench.swell(seconds)), (seconds, thud)])


def _pull_drawer(bench: _Bench) -> Signal:
    seconds = bench.draw(0.4, 1.0)
    slide = bench.noise(seconds, 200, bench.draw(1200, 2500)) * bench.time(seconds) / seconds
    clack = bench.lay(
        [(0.0, bench.burst(0.012, 400, 3000)), (0.0, bench.ring(bench.draw(160, 260), 0.05, 3))]
    )
    return bench.lay([(0.0, 0.25 * slide), (seconds, clack)])


def _snap(bench: _Bench) -> Signal:
    middle = bench.draw(1500, 3200)
    return bench.repeat(
        lambda: bench.burst(bench.draw(0.008, 0.016), 0.7 * middle, 1.3 * middle),
        (1, 4),
        (0.3, 0.8),
    )


def _jangle(bench: _Bench) -> Signal:
    return bench.repeat(
        lambda: bench.ring(bench.draw(3500, 8000), bench.draw(0.01, 0.06), 3),
        (15, 45),
        (0.015, 0.15),
    )


def _knock(bench: _Bench) -> Signal:
    pitch, gap = bench.draw(130, 350), bench.draw(0.14, 0.3)
    return bench.repeat(
        lambda: bench.lay(
            [(0.0, bench.ring(pitch, 0.03, 4)), (0.0, 0.5 * bench.burst(0.004, 300, 2500))]
        ),
        (2, 6),
        (gap, 1.1 * gap),
    )


def _laugh(bench: _Bench) -> Signal:
    pitch, gap = bench.draw(140, 380), bench.draw(0.15, 0.24)
    return bench.repeat(
        lambda: bench.voice(0.6 * gap, pitch * bench.draw(0.85, 1.3), 1.1, 0.4),
        (5, 12),
        (gap, 1.15 * gap),
    )


def _print(bench: _Bench) -> Signal:
    seconds, hum = bench.draw(1.5, 4.0), bench.draw(90, 220)
    t = bench.time(seconds)
    motor = sum(np.sin(2 * np.pi * hum * k * t + k) / k for k in range(1, 12))
    strokes = np.sin(np.pi * bench.draw(1.5, 4.0) * t) ** 2
    return 0.4 * motor + strokes * bench.noise(seconds, 1000, 6000)


def _cut(bench: _Bench) -> Signal:
    def snip() -> Signal:
        seconds = bench.draw(0.06, 0.14)
        blades = bench.noise(seconds, 3000, 10000) * np.sin(
            bench.sweep(seconds, 2000, bench.draw(5000, 8000))
        )
        ring = bench.ring(bench.draw(3000, 5000), 0.012, 3)
        return bench.lay([(0.0, 0.4 * blades * bench.swell(seconds)), (seconds, ring)])

    return bench.repeat(snip, (2, 7), (0.25, 0.5))


def _call(bench: _Bench) -> Signal:
    pitch, ratio, rate = bench.draw(600, 1400), bench.draw(1.15, 1.4), bench.draw(10, 25)

    def bell() -> Signal:
        t = bench.time(bench.draw(0.5, 1.0))
        tone = np.where(np.sin(2 * np.pi * rate * t) > 0, pitch, ratio * pitch)
        phase = 2 * np.pi * np.cumsum(tone) / RATE
        return np.sin(phase) + 0.3 * np.sin(3 * phase)

    return bench.repeat(bell, (1, 3), (1.1, 1.6))


def _write(bench: _Bench) -> Signal:
    def stroke() -> Signal:
        seconds = bench.draw(0.07, 0.3)
        grain = 1 + 0.5 * bench.noise(seconds, 20, 200)
        return bench.noise(seconds, 3500, 9000) * grain * bench.swell(seconds)

    return bench.repeat(stroke, (5, 16), (0.12, 0.4))


FAMILIES: dict[str, Callable[[_Bench], Signal]] = dict(
    zip(
        CLASSES,
        (
            _clink,
            _type,
            _open_cupboard,
            _pull_drawer,
            lambda bench: bench.speak(bench.draw(180, 260), 1.15),
            _snap,
            _jangle,
            _knock,
            _laugh,
            lambda bench: bench.speak(bench.draw(85, 140), 1.0),
            _print,
            _cut,
            _call,
            _write,
        ),
        strict=True,
    )
)
