"""What the networks hear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from phnn.lab.reports import page
from phnn.lab.reports.drawing import Picture
from phnn.lab.reports.evaluation import Shelf
from phnn.lab.reports.page import Section
from phnn.lab.reports.rolls import draw_roll
from phnn.lab.reports.spectrograms import draw_spectrograms
from phnn.lab.runs import Run
from phnn.lab.tasks.sound.batches import SoundBatch
from phnn.lab.tasks.sound.detection import THRESHOLD
from phnn.lab.tasks.sound.features import restore_magnitudes
from phnn.lab.tasks.sound.labels import FRAMES_PER_SECOND
from phnn.lab.tasks.sound.recordings import MICROPHONES
from phnn.lab.trained import load_trained

RECORDINGS = 2  # of the test part, for each network


def show_events(runs: Sequence[Run], shelf: Shelf) -> Section:
    """Returns the section with the events of some recordings of the test part.

    Args:
        runs: Whose networks are here.
        shelf: Where their recordings are found.

    Raises:
        DataMissingError: The recordings are not here.
    """
    about = page.paragraph(
        f"The first {RECORDINGS} recordings of the test part: the events that each network found, "
        "those it missed, and those that are none. The spectrograms are of the first one."
    )
    return Section("events", "Events", [about, page.gallery(draw_events(runs, shelf))])


def draw_events(runs: Sequence[Run], shelf: Shelf) -> Iterator[Picture]:
    """Yields what each network hears, and the spectrograms of the first recording.

    Args:
        runs: Whose networks are here.
        shelf: Where their recordings are found.

    Raises:
        DataMissingError: The recordings are not here.
    """
    shown: set[str] = set()
    for run in runs:
        trained = load_trained(run.folder)
        data = shelf.open_sound(trained)
        batch = _take(data.test_dataloader())
        if run.family not in shown:
            shown.add(run.family)
            yield _draw_first(run.family, batch.spectrograms[0].float(), data.metadata())
        inputs, labels = data.on_after_batch_transfer(batch, 0)
        with torch.inference_mode():
            outputs = trained.model(inputs).sigmoid()
        for i, (output, label) in enumerate(zip(outputs, labels, strict=True), 1):
            found, truth = (
                (values > THRESHOLD).unflatten(-1, (-1, data.overlaps)).any(-1)
                for values in (output, label)
            )
            title = f"{run.variant}, recording {i}"
            yield Picture(
                f"events-{run.folder.name}-{i}",
                draw_roll(truth, found, data.classes, seconds=1 / FRAMES_PER_SECOND, title=title),
                f"{run.name}: the events of recording {i} of the test part.",
            )


def _take(batches: Iterable[SoundBatch]) -> SoundBatch:
    """The first recordings, from no more batches than it takes."""
    taken: list[SoundBatch] = []
    for batch in batches:
        taken.append(batch)
        if sum(len(each.labels) for each in taken) >= RECORDINGS:
            break
    spectrograms, labels = (
        torch.cat([getattr(batch, name) for batch in taken])[:RECORDINGS]
        for name in ("spectrograms", "labels")
    )
    return taken[0]._replace(spectrograms=spectrograms, labels=labels)


def _draw_first(family: str, spectrograms: Tensor, about: dict[str, Any]) -> Picture:
    magnitudes, phases = split_phases(spectrograms, about)
    names = [
        f"{microphone}, channel {channel + 1}"
        for microphone in MICROPHONES[: about["microphones"]]
        for channel in range(about["channels"])
    ]
    figure = draw_spectrograms(
        magnitudes, names, phases=phases, seconds=about["seconds"], hertz=about["rate"] / 2
    )
    caption = f"{family}: the spectrograms of the first recording of the test part."
    return Picture(f"spectrograms-{family}", figure, caption, "png")


def split_phases(spectrograms: Tensor, about: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Returns the magnitudes and the phases of all channels, in the order of the microphones.

    Args:
        spectrograms: (channels, bins, frames) as a network takes them.
        about: The metadata of the data.
    """
    if not about["phase"]:
        return restore_magnitudes(spectrograms, about["magnitudes"]), None
    sizes = about["microphones"], about["channels"]
    if about["order"] == "paper":
        kinds = spectrograms.unflatten(0, (sizes[0], 2, sizes[1])).unbind(1)
    else:
        kinds = spectrograms.unflatten(0, (2, *sizes)).unbind(0)
    magnitudes, phases = (kind.flatten(0, 1) for kind in kinds)
    return restore_magnitudes(magnitudes, about["magnitudes"]), phases
