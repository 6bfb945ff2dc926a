"""Spectrograms of minutes of sound one after the other, beside scipy's channel by channel.

Run as `python benchmarks/spectrogram.py [threads]`.
"""

import sys

import numpy as np
import numpy.typing as npt
import scipy.signal
import torch

from measure import provenance
from phnn.lab.tasks.sound.spectrograms import HOP, WINDOW, spectrogram
from phnn.runtimes.timing import interleave

SECONDS, RATE = 60, 32_000
RECORDINGS = 4


def by_channel(wave: npt.NDArray[np.float32], phase: bool) -> npt.NDArray[np.float32]:
    magnitudes, phases = [], []
    for channel in wave:
        transform = scipy.signal.stft(
            channel, window="hamming", nperseg=WINDOW, noverlap=WINDOW - HOP
        )
        kept = transform[2][1:, :-1]
        magnitudes.append(np.abs(kept) / WINDOW)
        if phase:
            phases.append(np.angle(kept) / np.pi)
    return np.stack(magnitudes + phases)


def main(threads: int) -> None:
    torch.set_num_threads(threads)
    print(provenance(), "\n")
    print("| channels | phase | scipy, ms | phnn, ms | ratio |\n|---:|---|---:|---:|---:|")
    for channels in (4, 8):
        waves = 0.1 * torch.randn(RECORDINGS, channels, SECONDS * RATE)
        for phase in (False, True):
            times = interleave(
                {
                    "scipy": lambda: [by_channel(wave.numpy(), phase) for wave in waves],  # noqa: B023
                    "phnn": lambda: [spectrogram(wave, phase) for wave in waves],  # noqa: B023
                },
                rounds=9,
            )
            scipy_time, ours = (times[name] / RECORDINGS for name in ("scipy", "phnn"))
            print(
                f"| {channels} | {'yes' if phase else 'no'} | {1e3 * scipy_time:.0f} | "
                f"{1e3 * ours:.0f} | {scipy_time / ours:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
