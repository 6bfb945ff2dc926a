"""What a report shows of networks that detect sound events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from phnn.lab import pages
from phnn.lab.drawing import Picture
from phnn.lab.pages import Section
from phnn.lab.runs import Run
from phnn.lab.tasks.report import RunLoader, Say, find_trained, group_families
from phnn.lab.tasks.sound.batches import SoundBatch
from phnn.lab.tasks.sound.detection import THRESHOLD
from phnn.lab.tasks.sound.features import restore_magnitudes
from phnn.lab.tasks.sound.labels import FRAMES_PER_SECOND
from phnn.lab.tasks.sound.recordings import MICROPHONES
from phnn.lab.tasks.sound.report.radar import draw_radar
from phnn.lab.tasks.sound.report.rolls import draw_roll
from phnn.lab.tasks.sound.report.spectrograms import draw_spectrograms
from phnn.lab.tasks.sound.task import SOUND

RECORDINGS = 2  # of the test split, for each network


def sections(runs: Sequence[Run], loader: RunLoader, say: Say) -> Iterator[Section]:
    """Yield the radars, and the events of some recordings.

    Args:
        runs: The runs of the report.
        loader: Loads the networks and data of the runs.
        say: Called with a message before each slow step.

    Raises:
        DataMissingError: The recordings cannot be read.
    """
    radars = list(_draw_radars(runs))
    if radars:
        yield Section("radar", "Radar", [pages.gallery(radars)])
    trained = find_trained(runs)
    if trained:
        say("testing the networks on some recordings")
        about = pages.paragraph(
            f"The first {RECORDINGS} recordings of the test split: the events that each network "
            "found, those it missed, and its false alarms. The spectrograms show the first "
            "recording."
        )
        pictures = pages.gallery(_draw_events(trained, loader))
        yield Section("events", "Events", [about, pictures])


def figures(runs: Sequence[Run], loader: RunLoader, say: Say) -> Iterator[Picture]:
    """Yield the radars, the spectrograms and the events of some recordings.

    Args:
        runs: The runs of the report.
        loader: Loads the networks and data of the runs.
        say: Called with a message before each slow step.

    Raises:
        DataMissingError: The recordings cannot be read.
    """
    yield from _draw_radars(runs)
    yield from _draw_events(find_trained(runs), loader)


def _draw_radars(runs: Sequence[Run]) -> Iterator[Picture]:
    """Yield a radar for each family in which several variants have a result."""
    for family, members in group_families(runs).items():
        variants: dict[str, list[Mapping[str, Any]]] = {run.variant: [] for run in members}
        for run in members:
            if run.result is not None:
                variants[run.variant].append(run.result)
        if sum(map(bool, variants.values())) > 1:
            yield Picture(
                f"radar-{family}",
                draw_radar(variants, SOUND.scores, family),
                f"{family}: the larger the area, the better. The axes of parameters and times show "
                "the smallest value of all variants divided by the variant's own.",
            )


def _draw_events(runs: Sequence[Run], loader: RunLoader) -> Iterator[Picture]:
    """Yield the events that each network finds, and the spectrograms of the first recording."""
    shown: set[str] = set()
    for run in runs:
        model, data = loader.load(run)
        batch = _take_first(data.test_dataloader())
        if run.family not in shown:
            shown.add(run.family)
            yield _draw_spectrograms(run.family, batch.spectrograms[0].float(), data.metadata())
        inputs, labels = data.on_after_batch_transfer(batch, 0)
        with torch.inference_mode():
            outputs = model(inputs).sigmoid()
        for i, (output, label) in enumerate(zip(outputs, labels, strict=True), 1):
            found, truth = (
                (values > THRESHOLD).unflatten(-1, (-1, data.overlaps)).any(-1)
                for values in (output, label)
            )
            title = f"{run.variant}, recording {i}"
            yield Picture(
                f"events-{run.folder.name}-{i}",
                draw_roll(truth, found, data.classes, seconds=1 / FRAMES_PER_SECOND, title=title),
                f"{run.name}: the events of recording {i} of the test split.",
            )


def _take_first(batches: Iterable[SoundBatch]) -> SoundBatch:
    """Return the first recordings, and read no more batches than necessary."""
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


def _draw_spectrograms(family: str, spectrograms: Tensor, metadata: Mapping[str, Any]) -> Picture:
    magnitudes, phases = split_phases(spectrograms, metadata)
    names = [
        f"{microphone}, channel {channel + 1}"
        for microphone in MICROPHONES[: metadata["microphones"]]
        for channel in range(metadata["channels"])
    ]
    figure = draw_spectrograms(
        magnitudes, names, phases=phases, seconds=metadata["seconds"], hertz=metadata["rate"] / 2
    )
    caption = f"{family}: the spectrograms of the first recording of the test split."
    return Picture(f"spectrograms-{family}", figure, caption, "png")


def split_phases(spectrograms: Tensor, metadata: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return the magnitudes and the phases of all channels, ordered by microphone.

    Args:
        spectrograms: (channels, bins, frames), as a network takes them.
        metadata: The metadata of the data.
    """
    if not metadata["phase"]:
        return restore_magnitudes(spectrograms, metadata["magnitudes"]), None
    sizes = metadata["microphones"], metadata["channels"]
    if metadata["order"] == "paper":
        kinds = spectrograms.unflatten(0, (sizes[0], 2, sizes[1])).unbind(1)
    else:
        kinds = spectrograms.unflatten(0, (2, *sizes)).unbind(0)
    magnitudes, phases = (kind.flatten(0, 1) for kind in kinds)
    return restore_magnitudes(magnitudes, metadata["magnitudes"]), phases
