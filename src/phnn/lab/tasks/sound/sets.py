"""The parts of a set of recordings: features, labels and statistics."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from phnn.lab.seeds import permutation_of
from phnn.lab.tasks.sound.batches import SoundSet
from phnn.lab.tasks.sound.cache import Features, Options, cached_features
from phnn.lab.tasks.sound.features import POOLED, count_hop
from phnn.lab.tasks.sound.labels import FRAMES_PER_SECOND, Rule, make_labels, read_events
from phnn.lab.tasks.sound.recordings import (
    Broken,
    BrokenRecordingError,
    Format,
    Recording,
    Skipped,
    find_parts,
    select_usable,
)

Standardize = Literal["train", "authors"]

logger = logging.getLogger(__name__)

AUTHORS_GROUP = 8  # channels that the authors' code standardizes together


@dataclass(frozen=True)
class LabelOptions:
    """What labels depend on, besides the label files; see `make_labels`."""

    classes: tuple[str, ...]
    overlaps: int
    rule: Rule


@dataclass(frozen=True)
class SoundSets:
    """A set of recordings.

    Attributes:
        parts: "train", "test" and, unless it was not wanted, "validation".
        format: what all recordings are.
        skipped: those that were left out, as messages.
    """

    parts: Mapping[str, SoundSet]
    format: Format
    skipped: tuple[str, ...]


def load_sets(
    root: Path,
    features: Options,
    labels: LabelOptions,
    *,
    cache: Path,
    validation: float,
    standardize: Standardize | None,
    broken: Broken,
    seed: int,
) -> SoundSets:
    """Opens a set of recordings; the arguments are those of `SoundData`."""
    skipped = Skipped(broken)
    found = find_parts(root, features.microphones)
    train, format = _load(found["train"], features, labels, cache, skipped)
    test, other = _load(found["test"], features, labels, cache, skipped)
    if other != format:
        raise ValueError(f"the train part has {format}, the test part {other}; they must agree")
    if skipped.reasons:
        logger.warning(
            "%s: %d broken recordings left out, the first: %s",
            root,
            len(skipped.reasons),
            skipped.reasons[0],
        )
    parts = {"train": train, "test": test}
    if validation:
        parts["train"], parts["validation"] = _split(train, validation, seed)
    groups = _group_channels(features, format.channels, standardize)
    measured = {
        name: _measure(part if standardize == "authors" else parts["train"], groups)
        for name, part in parts.items()
    }
    sets = {
        name: SoundSet(part.features, part.rows, part.labels, *measured[name])
        for name, part in parts.items()
    }
    return SoundSets(sets, format, tuple(skipped.reasons))


@dataclass(frozen=True)
class _Part:
    features: Features
    rows: Tensor
    labels: Tensor

    def take(self, index: Tensor) -> "_Part":
        return _Part(self.features, self.rows[index], self.labels[index])


def _load(
    recordings: Sequence[Recording],
    features: Options,
    labels: LabelOptions,
    cache: Path,
    skipped: Skipped,
) -> tuple[_Part, Format]:
    usable, format = select_usable(recordings, skipped)
    seconds = count_label_frames(format) / FRAMES_PER_SECOND
    targets: dict[int, Tensor] = {}
    for row, recording in enumerate(usable):
        with skipped:
            targets[row] = _read_labels(recording.labels, seconds, labels)
    stored = cached_features(usable, format, features, cache, skipped)
    rows = [row for row in stored.rows if row in targets]
    if not rows:
        raise BrokenRecordingError(
            f"none of {len(recordings)} recordings can be used: {skipped.reasons[0]}"
        )
    part = _Part(stored, torch.tensor(rows), torch.stack([targets[row] for row in rows]))
    return part, format


def _read_labels(path: Path, seconds: float, options: LabelOptions) -> Tensor:
    events = read_events(path)
    try:
        labels = make_labels(
            events,
            seconds,
            classes=options.classes,
            overlaps=options.overlaps,
            rule=options.rule,
        )
    except BrokenRecordingError as error:
        raise BrokenRecordingError(f"{path}: {error}") from error
    return torch.from_numpy(labels)


def count_label_frames(format: Format) -> int:
    """Returns the tenths of a second of a recording, the last of which may need filling."""
    return -(-format.samples // (POOLED * count_hop(format.rate)))


def _split(part: _Part, fraction: float, seed: int) -> tuple[_Part, _Part]:
    """Splits off a random part."""
    size = len(part.rows)
    count = round(fraction * size)
    if not 0 < count < size:
        raise ValueError(
            f"validation={fraction} of {size} recordings leaves one part empty; give a fraction "
            "that takes at least one and leaves at least one, or 0 for no validation"
        )
    order = permutation_of(size, seed)
    return part.take(order[count:].sort().values), part.take(order[:count].sort().values)


def check_standardize(standardize: str | None) -> None:
    """Raises a ValueError for an unknown way to standardize."""
    if standardize is not None and standardize not in get_args(Standardize):
        known = ", ".join(get_args(Standardize))
        raise ValueError(f"standardize={standardize!r} must be None or one of {known}")


def _group_channels(
    options: Options, channels: int, standardize: Standardize | None
) -> Tensor | None:
    """Returns the group of each channel; those of a group share mean and standard deviation.

    Magnitudes are one group and phases another. The authors cut after eight channels, which comes
    to the same with two microphones, and is one group for all with one.
    """
    if standardize is None:
        return None
    apart = standardize == "train" or options.microphones * channels >= AUTHORS_GROUP
    return torch.tensor([int(phase and apart) for phase in options.phases(channels)])


def _measure(part: _Part, groups: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation of each channel: those of its group, in all rows."""
    stored = part.features
    if groups is None:
        return torch.zeros(len(stored.scale)), torch.ones(len(stored.scale))
    count = stored.values[0, 0].size
    moments = stored.sums[part.rows].mean(0) / count
    moments = torch.stack([moments[groups == group].mean(0) for group in groups])
    mean, square = moments.unbind(1)
    std = (square - mean.square()).clamp(min=0).sqrt()
    if not (std > 0).all():
        raise ValueError(
            f"a standard deviation over {len(part.rows)} recordings is zero: they are silent; "
            "look at the files, or use standardize=None"
        )
    return mean.float(), std.float()
