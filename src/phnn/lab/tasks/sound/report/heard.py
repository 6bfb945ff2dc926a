"""Figures of the events that a network heard in a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phnn.lab.drawing import COLOURS
from phnn.lab.tasks import sound
from phnn.lab.tasks.sound.detection import Event, Heard
from phnn.lab.tasks.sound.report.spectrograms import FLOOR, in_decibels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOUND, TRUE = COLOURS[1:3]
HEIGHT = 0.38  # of a bar; a class has 1


def draw_heard(heard: Heard) -> Figure:
    """Draw the spectrogram of a recording and, below it, the heard and the true events.

    Args:
        heard: What a network heard. Classes without a heard or true event are left out.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    events: list[Event | sound.Event] = [*heard.events, *(heard.truth or ())]
    classes = sorted({event.label for event in events}, reverse=True)  # the first at the top
    height = 0.5 + 0.34 * max(len(classes), 2)
    figure = Figure(figsize=(9.6, 3.4 + height), layout="constrained")
    figure.suptitle(heard.file.name)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, height))
    _draw_spectrogram(above, heard)
    _draw_bars(below, heard.events, classes, FOUND, 0)
    _draw_bars(below, heard.truth or (), classes, TRUE, -HEIGHT)
    below.set_yticks(range(len(classes)), [name.replace("_", " ") for name in classes])
    below.set_ylim(-0.6, max(len(classes), 1) - 0.4)
    below.set_xlabel("time (s)")
    below.set_axisbelow(True)
    below.grid(axis="x", alpha=0.3)
    if not heard.events:
        below.set_title("nothing was heard", fontsize="medium")
    kinds = {"heard": FOUND} if heard.truth is None else {"heard": FOUND, "true": TRUE}
    handles = [Patch(color=colour, label=kind) for kind, colour in kinds.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_spectrogram(panel: Axes, heard: Heard) -> None:
    image = panel.imshow(
        in_decibels(heard.magnitudes).numpy(),
        origin="lower",
        aspect="auto",
        cmap="magma",
        vmin=FLOOR,
        vmax=0,
        extent=(0, heard.seconds, 0, heard.rate / 2),
    )
    panel.set_ylabel("frequency (Hz)")
    panel.figure.colorbar(image, ax=panel, label="magnitude (dB)")


def _draw_bars(
    panel: Axes,
    events: Sequence[Event | sound.Event],
    classes: Sequence[str],
    colour: str,
    shift: float,
) -> None:
    tracks = _stack(events)
    most = max(tracks, default=0) + 1
    panel.barh(
        [
            classes.index(event.label) + shift + track * HEIGHT / most
            for event, track in zip(events, tracks, strict=True)
        ],
        [event.end - event.start for event in events],
        HEIGHT / most,
        [event.start for event in events],
        align="edge",
        color=colour,
    )


def _stack(events: Sequence[Event | sound.Event]) -> list[int]:
    """Return a row for each event within that of its class, so that no two cover each other."""
    rows: list[int] = []
    for i, event in enumerate(events):
        taken = {
            rows[j]
            for j, other in enumerate(events[:i])
            if other.label == event.label and other.end > event.start and other.start < event.end
        }
        rows.append(next(row for row in range(len(taken) + 1) if row not in taken))
    return rows
