"""The splits of a set of recordings: features, labels and statistics."""

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
    find_splits,
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
        splits: "train", "test" and, if wanted, "validation".
        format: The format of all recordings.
        skipped: The recordings that were left out, as messages.
    """

    splits: Mapping[str, SoundSet]
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
    """Open a set of recordings; the arguments are those of `SoundData`."""
    skipped = Skipped(broken)
    found = find_splits(root, features.microphones)
    train, format = _load(found["train"], features, labels, cache, skipped)
    test, other = _load(found["test"], features, labels, cache, skipped)
    if other != format:
        raise ValueError(f"the train split has {format}, the test split {other}; they must agree")
    if skipped.reasons:
        logger.warning(
            "%s: %d broken recordings left out, the first: %s",
            root,
            len(skipped.reasons),
            skipped.reasons[0],
        )
    splits = {"train": train, "test": test}
    if validation:
        splits["train"], splits["validation"] = _hold_out(train, validation, seed)
    groups = _group_channels(features, format.channels, standardize)
    measured = {
        name: _measure(split if standardize == "authors" else splits["train"], groups)
        for name, split in splits.items()
    }
    sets = {
        name: SoundSet(split.features, split.rows, split.labels, *measured[name])
        for name, split in splits.items()
    }
    return SoundSets(sets, format, tuple(skipped.reasons))


@dataclass(frozen=True)
class _Split:
    features: Features
    rows: Tensor
    labels: Tensor

    def take(self, index: Tensor) -> "_Split":
        return _Split(self.features, self.rows[index], self.labels[index])


def _load(
    recordings: Sequence[Recording],
    features: Options,
    labels: LabelOptions,
    cache: Path,
    skipped: Skipped,
) -> tuple[_Split, Format]:
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
    split = _Split(stored, torch.tensor(rows), torch.stack([targets[row] for row in rows]))
    return split, format


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
    """Return the tenths of a second of a recording, the last of which may be incomplete."""
    return -(-format.samples // (POOLED * count_hop(format.rate)))


def _hold_out(split: _Split, fraction: float, seed: int) -> tuple[_Split, _Split]:
    """Return the rest and a random fraction."""
    size = len(split.rows)
    count = round(fraction * size)
    if not 0 < count < size:
        raise ValueError(
            f"validation={fraction} of {size} recordings leaves one split empty; give a fraction "
            "that takes at least one and leaves at least one, or 0 for no validation"
        )
    order = permutation_of(size, seed)
    return split.take(order[count:].sort().values), split.take(order[:count].sort().values)


def check_standardize(standardize: str | None) -> None:
    """Raise a ValueError for an unknown value of `standardize`."""
    if standardize is not None and standardize not in get_args(Standardize):
        known = ", ".join(get_args(Standardize))
        raise ValueError(f"standardize={standardize!r} must be None or one of {known}")


def _group_channels(
    options: Options, channels: int, standardize: Standardize | None
) -> Tensor | None:
    """Return the group of each channel; a group shares its mean and standard deviation.

    Magnitudes are one group and phases another. The authors cut after eight channels: with two
    microphones this is the same, with one microphone it is one group for all.
    """
    if standardize is None:
        return None
    apart = standardize == "train" or options.microphones * channels >= AUTHORS_GROUP
    return torch.tensor([int(phase and apart) for phase in options.phases(channels)])


def _measure(split: _Split, groups: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel: those of its group, in all rows."""
    stored = split.features
    if groups is None:
        return torch.zeros(len(stored.scale)), torch.ones(len(stored.scale))
    count = stored.values[0, 0].size
    moments = stored.sums[split.rows].mean(0) / count
    moments = torch.stack([moments[groups == group].mean(0) for group in groups])
    mean, square = moments.unbind(1)
    std = (square - mean.square()).clamp(min=0).sqrt()
    if not (std > 0).all():
        raise ValueError(
            f"a standard deviation over {len(split.rows)} recordings is zero: they are silent; "
            "look at the files, or use standardize=None"
        )
    return mean.float(), std.float()
