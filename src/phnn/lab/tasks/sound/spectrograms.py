"""Spectrograms of multichannel sound, the input of the paper's network."""

import math
from itertools import product
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

Order = Literal["paper", "authors"]

WINDOW = 512  # samples
BINS = WINDOW // 2  # without that of frequency zero
HOP = 400  # samples: 12.5 ms at 32 kHz
CAPSULES = 4  # channels of a first-order Ambisonics microphone
BLOCK = 600  # frames at a time on a CPU: what is between the steps stays in its cache


@torch.no_grad()
def spectrogram(
    wave: Tensor,
    phase: bool = False,
    *,
    order: Order = "paper",
    microphones: int | None = None,
    hop: int = HOP,
) -> Tensor:
    """Return magnitudes, and with `phase` also phases, of the short-time Fourier transform.

    They are those of `scipy.signal.stft(wave, window="hamming", nperseg=512, noverlap=512 - hop)`
    without the frequency zero and the last frame: magnitudes divided by 512, phases by π. Silence
    has phase 0.

    Args:
        wave: The samples, one microphone after the other.
        phase: Whether to add a channel of phases for each channel of magnitudes.
        order: The order of magnitudes |·| and phases ∠· of microphones A and B: "paper" is
            |A| ∠A |B| ∠B, "authors" is |A| |B| ∠A ∠B, as in the code published with the paper.
        microphones: The number of microphones; by default one for every four channels.
        hop: The samples from frame to frame.

    Shape:
        (channels, samples) or (batch, channels, samples) to (..., channels or 2 · channels, 256,
        ⌈samples / hop⌉).

    Example:
        >>> wave = torch.sin(2 * torch.pi * 1000 * torch.arange(32_000) / 32_000).expand(4, -1)
        >>> spectrogram(wave, phase=True).shape
        torch.Size([8, 256, 80])
        >>> f"{spectrogram(wave)[0, 15, 40].item():.3e}"
        '9.766e-04'
    """
    check_order(order)
    if wave.ndim not in (2, 3) or not wave.is_floating_point():
        raise ValueError(
            "wave must be floating point of shape (channels, samples) or (batch, channels, "
            f"samples), not {wave.dtype} of shape {tuple(wave.shape)}"
        )
    if not 0 < hop <= WINDOW or wave.shape[-1] == 0:
        raise ValueError(
            f"hop={hop} must lie in 1..{WINDOW} and wave have samples; it has {wave.shape[-1]}"
        )
    channels = wave.shape[-2]
    microphones = _count_microphones(channels, microphones)
    frames = math.ceil(wave.shape[-1] / hop)
    kinds = 2 if phase else 1
    result = _allocate(wave, (*wave.shape[:-2], kinds * channels, BINS, frames))
    # views of the result, whichever the order: [..., microphone, capsule, bin, frame]
    capsules = channels // microphones
    if order == "paper":
        views = result.unflatten(-3, (microphones, kinds, capsules)).unbind(-4)
    else:
        views = result.unflatten(-3, (kinds, microphones, capsules)).unbind(-5)
    sources = wave.unflatten(-2, (microphones, capsules))
    for index in product(*map(range, sources.shape[:-1])):
        _transform(sources[index], hop, *(view[index] for view in views))
    return result


def _allocate(wave: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return memory for a result; numpy asks for large pages, which halves the time."""
    if wave.device.type != "cpu" or wave.dtype not in (torch.float32, torch.float64):
        return wave.new_empty(shape)
    return torch.from_numpy(np.empty(shape, "f4" if wave.dtype == torch.float32 else "f8"))


def _transform(wave: Tensor, hop: int, magnitudes: Tensor, phases: Tensor | None = None) -> None:
    """Write magnitudes and phases (bins, frames) of one channel of samples."""
    window = torch.hamming_window(WINDOW, dtype=torch.float64, device="cpu")
    window = (window / (window.sum() * WINDOW)).to(wave.dtype).to(wave.device)
    frames = magnitudes.shape[-1]
    block = min(frames, BLOCK) if wave.device.type == "cpu" else frames
    for start in range(0, frames, block):
        piece = slice(start, min(start + block, frames))
        spectrum = torch.view_as_real(torch.fft.rfft(_cut_frames(wave, hop, piece) * window))
        # the first step that reads these views transposes them, the others run along rows
        real, imaginary = spectrum[:, 1:].permute(2, 1, 0)
        if phases is not None:
            real_rows = real.contiguous().add_(0.0)  # the angle of -0 would be π
            torch.atan2(imaginary.contiguous(), real_rows, out=phases[:, piece]).div_(math.pi)
        spectrum.square_()
        torch.add(real, imaginary, out=magnitudes[:, piece])
    magnitudes.sqrt_()


def _cut_frames(wave: Tensor, hop: int, piece: slice) -> Tensor:
    """Return frames (count, 512) around every hop-th sample, with zeros beyond both ends."""
    start = piece.start * hop - WINDOW // 2
    stop = (piece.stop - 1) * hop + WINDOW // 2
    inside = wave[max(start, 0) : stop]
    if len(inside) < stop - start:  # not always: it would copy all samples
        inside = nn.functional.pad(inside, (max(-start, 0), max(stop - len(wave), 0)))
    return inside.unfold(0, WINDOW, hop)


def find_phases(channels: int, microphones: int, phase: bool, order: Order) -> list[bool]:
    """Tell for each channel of a spectrogram whether it holds phases.

    Args:
        channels: The channels of each microphone.
        microphones: The number of microphones.
        phase: Whether there are phases at all.
        order: The order of magnitudes and phases.
    """
    kinds = (False, True) if phase else (False,)
    if order == "paper":
        return microphones * [kind for kind in kinds for _ in range(channels)]
    return [kind for kind in kinds for _ in range(microphones * channels)]


def check_order(order: str) -> None:
    """Raise a ValueError for an unknown order of the channels."""
    if order not in get_args(Order):
        raise ValueError(f"order={order!r} must be one of {', '.join(get_args(Order))}")


def _count_microphones(channels: int, microphones: int | None) -> int:
    if microphones is None and channels % CAPSULES == 0:
        return channels // CAPSULES
    if microphones is None or microphones < 1 or channels % microphones:
        raise ValueError(
            f"{channels} channels do not divide into microphones={microphones}; give a number of "
            f"microphones with equally many channels (by default, {CAPSULES} each)"
        )
    return microphones
