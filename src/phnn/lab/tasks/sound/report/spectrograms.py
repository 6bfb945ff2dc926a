"""Figures of multichannel spectrograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

COLUMNS = 4
FLOOR = -80.0  # decibels, relative to the largest magnitude, of the darkest colour

Extent = tuple[float, float, float, float]


def draw_spectrograms(
    magnitudes: Tensor,
    names: Sequence[str],
    *,
    phases: Tensor | None = None,
    seconds: float,
    hertz: float,
) -> Figure:
    """Draw the magnitudes of all channels, then their phases, as the paper's Fig. 7.

    Args:
        magnitudes: (channels, frequencies, frames).
        names: The names of the channels.
        phases: (channels, frequencies, frames), in units of π.
        seconds: The duration of the recording.
        hertz: The highest frequency.

    Raises:
        ValueError: The shapes do not match the names.
    """
    kinds = {"magnitude (dB)": in_decibels(magnitudes)}
    if phases is not None:
        kinds["phase (π)"] = phases
    for values in kinds.values():
        if values.ndim != 3 or len(values) != len(names):
            raise ValueError(
                f"values of shape {tuple(values.shape)} do not match {len(names)} names; they must "
                f"have shape ({len(names)}, frequencies, frames)"
            )
    from matplotlib.figure import Figure

    rows = math.ceil(len(names) / COLUMNS)
    size = 1.2 + 2.4 * min(COLUMNS, len(names)), 0.8 + 2.1 * rows * len(kinds)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(f"Spectrograms of {len(names)} channels")
    halves = figure.subfigures(len(kinds), 1, squeeze=False).ravel()
    for (kind, values), half in zip(kinds.items(), halves, strict=True):
        _draw_kind(half, kind, values, names, (0, seconds, 0, hertz / 1000))
    return figure


def in_decibels(magnitudes: Tensor) -> Tensor:
    """Return magnitudes in decibels relative to the largest; none is below `FLOOR`."""
    largest = magnitudes.max().clamp(min=torch.finfo(magnitudes.dtype).tiny)
    return 20 * (magnitudes / largest).clamp(min=10 ** (FLOOR / 20)).log10()


def _draw_kind(
    half: SubFigure, kind: str, values: Tensor, names: Sequence[str], extent: Extent
) -> None:
    colours, low, high = ("twilight", -1, 1) if "phase" in kind else ("magma", FLOOR, 0)
    columns = min(COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    panels = half.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel, name, value in zip(panels.flat, names, values, strict=False):
        image = panel.imshow(
            value.cpu().numpy(), origin="lower", aspect="auto", cmap=colours, vmin=low, vmax=high,
            extent=extent, interpolation="nearest",
        )  # fmt: skip
        panel.set_title(name, fontsize="small")
    for panel in panels.ravel()[len(names) :]:
        panel.set_axis_off()
    half.colorbar(image, ax=panels, label=kind)
    half.supxlabel("time (s)", fontsize="medium")
    half.supylabel("frequency (kHz)", fontsize="medium")
