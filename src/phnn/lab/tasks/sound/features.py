"""From samples to the input of a network."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from phnn.io.header import check_fields
from phnn.lab.tasks.sound.labels import FRAMES_PER_SECOND
from phnn.lab.tasks.sound.spectrograms import WINDOW, Order, find_phases, spectrogram

Magnitudes = Literal["linear", "log"]

POOLED = 8  # frames of a spectrogram for each frame of labels
FLOOR = 1e-7  # added to magnitudes before their logarithm; a full-scale sine has 1e-3
METADATA_KEYS = ("rate", "microphones", "channels", "phase", "order", "magnitudes", "mean", "std")
DETECTION_KEYS = (*METADATA_KEYS, "seconds", "classes")  # for whole recordings
KINDS: dict[str, Any] = {
    **dict.fromkeys(("rate", "microphones", "channels"), int),
    "phase": bool,
    **dict.fromkeys(("order", "magnitudes"), str),
    **dict.fromkeys(("mean", "std", "classes"), list),
    "seconds": int | float,
}
MOST = {"microphones": 2, "channels": 64}
LARGEST = 1e30  # of means and standard deviations


def count_hop(rate: int) -> int:
    """Return the samples from frame to frame; eight frames make a tenth of a second.

    Args:
        rate: Samples per second, 32,000 in the paper.
    """
    hop, rest = divmod(rate, FRAMES_PER_SECOND * POOLED)
    if rest or not 0 < hop <= WINDOW:
        step = FRAMES_PER_SECOND * POOLED
        raise ValueError(
            f"a rate of {rate} Hz must be a multiple of {step} up to {step * WINDOW}; make or "
            "resample the recordings at 32000 Hz, the paper's"
        )
    return hop


def check_magnitudes(magnitudes: str) -> None:
    """Raise a ValueError for an unknown kind of magnitudes."""
    if magnitudes not in get_args(Magnitudes):
        known = ", ".join(get_args(Magnitudes))
        raise ValueError(f"magnitudes={magnitudes!r} must be one of {known}")


def extract(
    wave: Tensor,
    rate: int,
    *,
    phase: bool,
    order: Order,
    magnitudes: Magnitudes,
    microphones: int,
) -> Tensor:
    """Return the spectrogram of whole tenths of a second; silence is added to the last.

    Args:
        wave: (..., channels, samples).
        rate: Samples per second.
        phase: Whether to add the phases.
        order: The order of magnitudes and phases; see `spectrogram`.
        magnitudes: "linear", or "log" for their logarithms.
        microphones: The number of microphones.
    """
    hop = count_hop(rate)
    missing = -wave.shape[-1] % (hop * POOLED)
    if missing:
        wave = nn.functional.pad(wave, (0, missing))
    features = spectrogram(wave, phase, order=order, microphones=microphones, hop=hop)
    if magnitudes == "log":
        phases = find_phases(wave.shape[-2] // microphones, microphones, phase, order)
        for channel, holds_phases in zip(features.unbind(-3), phases, strict=True):
            if not holds_phases:
                channel.add_(FLOOR).log_()
    return features


def restore_magnitudes(features: Tensor, magnitudes: Magnitudes) -> Tensor:
    """Return the magnitudes behind channels of features without phases."""
    return features.exp().sub_(FLOOR).clamp_(min=0) if magnitudes == "log" else features


def standardize(spectrograms: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return (spectrograms − mean) / std as float32.

    Args:
        spectrograms: (..., channels, bins, frames).
        mean: The mean of each channel.
        std: The standard deviation of each channel.
    """
    return (spectrograms.float() - mean[:, None, None]).div_(std[:, None, None])


def check_metadata(metadata: Mapping[str, Any], wanted: Sequence[str] = METADATA_KEYS) -> None:
    """Raise a ValueError for metadata that cannot be those of a network for sound.

    Args:
        metadata: What came with a network, perhaps from a file of somebody else.
        wanted: The keys that are needed.
    """
    missing = [key for key in wanted if key not in metadata]
    if missing:
        raise ValueError(
            f"the metadata lack {', '.join(missing)}; save the model with "
            "metadata=SoundData.metadata()"
        )
    try:
        known = check_fields(metadata, {key: KINDS[key] for key in wanted})
    except ValueError as error:
        raise ValueError(f"the metadata are not those of a network for sound: {error}") from None
    for key in ("microphones", "channels"):
        if not 1 <= known[key] <= MOST[key]:
            raise ValueError(f"{key}={known[key]} in the metadata must be from 1 to {MOST[key]}")
    count_hop(known["rate"])
    check_magnitudes(known["magnitudes"])
    for key in ("mean", "std"):
        numbers = [v for v in known[key] if isinstance(v, int | float) and abs(v) < LARGEST]
        if len(numbers) < len(known[key]) or len(numbers) != len(known["mean"]):
            raise ValueError(f"{key} in the metadata must be a list of finite numbers")
    if min(known["std"], default=0) <= 0:
        raise ValueError("std in the metadata must be above 0")
    if "seconds" in known and not 1 <= known["seconds"] * known["rate"] < math.inf:
        raise ValueError(f"seconds={known['seconds']} in the metadata must be above 0")
    if not all(isinstance(name, str) for name in known.get("classes", [""])):
        raise ValueError("classes in the metadata must be a list of names")


def preprocess(wave: Tensor, metadata: Mapping[str, Any]) -> Tensor:
    """Make the input of a network from samples, as in its training.

    Args:
        wave: (channels, samples) or (batch, channels, samples) at the trained rate, of any length:
            silence is added up to a whole tenth of a second. `read_wave` reads them.
        metadata: `SoundData.metadata()`, as a saved model has it.

    Returns:
        float32 (batch, channels, bins, frames); the batch is 1 where `wave` has none.
    """
    check_metadata(metadata)
    microphones, channels = metadata["microphones"], metadata["channels"]
    if wave.ndim not in (2, 3) or wave.shape[-2] != microphones * channels:
        raise ValueError(
            f"wave must be ({microphones * channels}, samples), with or without a batch, for "
            f"{microphones} microphones of {channels} channels; it is {tuple(wave.shape)}"
        )
    features = extract(
        wave if wave.ndim == 3 else wave[None],
        metadata["rate"],
        phase=metadata["phase"],
        order=metadata["order"],
        magnitudes=metadata["magnitudes"],
        microphones=microphones,
    )
    mean, std = (torch.tensor(metadata[key], device=wave.device) for key in ("mean", "std"))
    if len(mean) != features.shape[-3]:
        raise ValueError(
            f"mean and std in the metadata have {len(mean)} numbers, the features "
            f"{features.shape[-3]} channels"
        )
    return standardize(features, mean, std)
