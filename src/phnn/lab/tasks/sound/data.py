"""The data of a sound event detection run."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phnn._names import check_choices
from phnn.lab.files import lock
from phnn.lab.tasks.batches import Plan
from phnn.lab.tasks.cache import cache_folder
from phnn.lab.tasks.data import Data
from phnn.lab.tasks.sound.batches import SoundBatch, SoundBatches
from phnn.lab.tasks.sound.cache import Dtype, Options
from phnn.lab.tasks.sound.classes import CLASSES, find_classes
from phnn.lab.tasks.sound.features import Magnitudes, standardize
from phnn.lab.tasks.sound.labels import FRAMES_PER_SECOND, Rule, check_rule
from phnn.lab.tasks.sound.recordings import MICROPHONES, Broken, check_broken
from phnn.lab.tasks.sound.sets import (
    LabelOptions,
    SoundSets,
    Standardize,
    check_standardize,
    count_label_frames,
    load_sets,
)
from phnn.lab.tasks.sound.spectrograms import BINS, Order, check_order

NAMES = ("l3das21", "simulated")
CACHE = ".phnn-cache"  # in root: features are larger than recordings, and belong beside them
SIMULATED = {"train": 40, "dev": 10}  # scenes of the embedded set,
SIMULATED_SECONDS = 20.0  # each this long
# metadata that spectrograms must share to be inputs of the same network
_KIND = {"rate", "microphones", "channels", "phase", "order", "magnitudes"}


class SoundData(Data):
    """Recordings of sound events for training, validation and test.

    Spectrograms are computed once and kept on disk, in `cache`. Batches are standardized on the
    device. The order of the training segments is a function of (seed, epoch): a run that was
    stopped and resumed sees what an unbroken run sees, and so do several processes that share its
    batches. A batch is float32 (B, channels, 256, frames) with labels, float32 (B, frames / 8,
    classes · overlaps).

    Args:
        name: "l3das21", or "simulated", which does not need `root`: a small set is then made once,
            in `$PHNN_CACHE` (`~/.cache/phnn` by default).
        root: The folder that has the train and the dev split; see `find_splits`.
        microphones: 1 uses microphone A, 2 uses A and B.
        phase: Whether to give phases besides magnitudes.
        order: The order of magnitudes and phases, "paper" or "authors"; see `spectrogram`.
        magnitudes: "linear" as in the paper, or "log", from which networks learn faster.
        rule: Which frames an event is in, "reference" or "plain"; see `find_frames`.
        batch_size: Segments per process per training step.
        global_batch: Whether batch sizes are those of all processes together instead, so that a
            recipe trains the same on any number of devices.
        eval_batch_size: Recordings per process per evaluation step; by default batch_size, or 1
            with segments.
        validation: The fraction of the training recordings that is used for validation; 0 for no
            validation.
        classes: The names of the classes; by default those of the simulation that made the
            recordings, or L3DAS21's.
        seed: The seed of the validation split and the order.
        standardize: "train" gives magnitudes, and phases, mean 0 and standard deviation 1 in the
            training split. "authors" does so in each split by itself, so that the test split
            influences its own input; with one microphone, magnitudes and phases are then measured
            together. None does nothing.
        broken: "raise" stops at a recording that cannot be used, "skip" leaves it out.
        overlaps: How many events of one class may be active at once.
        segment: Seconds of the pieces that training sees; whole recordings by default. Evaluation
            always sees whole recordings.
        dtype: The type of the spectrograms on disk, "float32" or "float16".
        cache: The folder for the spectrograms; `.phnn-cache` in root by default.
    """

    def __init__(
        self,
        name: str = "simulated",
        root: str | Path | None = None,
        microphones: int = 1,
        phase: bool = False,
        order: Order = "paper",
        magnitudes: Magnitudes = "linear",
        rule: Rule = "reference",
        batch_size: int = 16,
        eval_batch_size: int | None = None,
        validation: float = 0.2,
        classes: Sequence[str] | None = None,
        seed: int = 0,
        standardize: Standardize | None = "train",
        broken: Broken = "raise",
        overlaps: int = 3,
        segment: float | None = None,
        dtype: Dtype = "float32",
        cache: str | Path | None = None,
        global_batch: bool = False,
    ) -> None:
        check_order(order)
        check_rule(rule)
        check_broken(broken)
        check_standardize(standardize)
        if root is None:
            check_choices("data set", [name], NAMES)
        if root is None and name != "simulated":
            raise ValueError(
                f"{name} is not downloaded; give root=, the folder that has L3DAS_Task2_train and "
                "L3DAS_Task2_dev of https://zenodo.org/record/4642005"
            )
        if not 1 <= microphones <= len(MICROPHONES):
            raise ValueError(f"microphones={microphones} must be 1 or {len(MICROPHONES)}")
        if not 0 <= validation < 1:
            raise ValueError(f"validation={validation} must be a fraction: at least 0, less than 1")
        if overlaps < 1:
            raise ValueError(f"overlaps={overlaps} must be at least 1")
        if classes is None:
            classes = CLASSES if root is None else find_classes(Path(root).expanduser())
        classes = tuple(classes)
        if not classes or len(set(classes)) < len(classes):
            raise ValueError(f"classes={list(classes)} must be different names, at least one")
        self.name = name
        self.batch_size = batch_size
        self.global_batch = global_batch
        self.phase = phase
        self.segment = segment
        self._root = root
        self._cache = cache
        self._features = Options(microphones, phase, order, magnitudes, dtype)
        self._labels = LabelOptions(classes, overlaps, rule)
        self._validation = validation
        self._standardize: Standardize | None = standardize
        self._broken: Broken = broken
        self._train_plan = Plan(batch_size, seed, shuffle=True)
        if eval_batch_size is None:  # whole recordings, which may be many times longer
            eval_batch_size = batch_size if segment is None else 1
        self._eval_plan = Plan(eval_batch_size, seed)
        self._opened: SoundSets | None = None

    def setup(self) -> None:
        """Open the data, once."""
        if self._opened is not None:
            return
        root = _simulate() if self._root is None else Path(self._root).expanduser()
        self._opened = load_sets(
            root,
            self._features,
            self._labels,
            cache=root / CACHE if self._cache is None else Path(self._cache).expanduser(),
            validation=self._validation,
            standardize=self._standardize,
            broken=self._broken,
            seed=self._train_plan.seed,
        )
        self._count_segment()

    def standardize_as(self, metadata: Mapping[str, Any]) -> None:
        """Use the mean and standard deviation of other data, on which a network was trained.

        Where each split is standardized by itself, or not at all, this changes nothing.

        Args:
            metadata: The metadata of the other data, or of the network.

        Raises:
            ValueError: These data are of another kind.
        """
        for key, ours in self.metadata().items():
            if key in _KIND and metadata.get(key, ours) != ours:
                raise ValueError(
                    f"the network was trained on recordings with {key}={metadata[key]}, these have "
                    f"{key}={ours}"
                )
        if self._standardize == "train":
            mean, std = (torch.tensor(metadata[name]) for name in ("mean", "std"))
            splits = {
                name: replace(split, mean=mean, std=std)
                for name, split in self._sets.splits.items()
            }
            self._opened = replace(self._sets, splits=splits)

    @property
    def _sets(self) -> SoundSets:
        if self._opened is None:
            raise RuntimeError("the data have not been read; call setup() first")
        return self._opened

    def _count_segment(self) -> int:
        """Return the label frames of a training segment."""
        frames = count_label_frames(self._sets.format)
        if self.segment is None:
            return frames
        segment = round(self.segment * FRAMES_PER_SECOND)
        whole = abs(segment - self.segment * FRAMES_PER_SECOND) < 1e-6
        if not whole or segment < 1 or frames % segment:
            raise ValueError(
                f"segment={self.segment} s must be tenths of a second that divide the recordings' "
                f"{frames / FRAMES_PER_SECOND:g} s"
            )
        return segment

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class."""
        return self._labels.classes

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def overlaps(self) -> int:
        """How many events of one class may be active at once."""
        return self._labels.overlaps

    @property
    def in_channels(self) -> int:
        """The number of channels of the spectrograms."""
        return len(self._features.phases(self._sets.format.channels))

    @property
    def skipped(self) -> tuple[str, ...]:
        """The broken recordings that were left out, as messages."""
        return self._sets.skipped

    def metadata(self) -> dict[str, Any]:
        """Return what `preprocess` needs, as JSON can hold it; saved models have it."""
        format, train = self._sets.format, self._sets.splits["train"]
        return {
            "classes": list(self.classes),
            "overlaps": self.overlaps,
            "rule": self._labels.rule,
            "rate": format.rate,
            "seconds": count_label_frames(format) / FRAMES_PER_SECOND,
            "bins": BINS,
            "microphones": self._features.microphones,
            "channels": format.channels,
            "phase": self._features.phase,
            "order": self._features.order,
            "magnitudes": self._features.magnitudes,
            "mean": train.mean.tolist(),
            "std": train.std.tolist(),
        }

    def train_dataloader(self) -> SoundBatches:
        """Return the training batches, in a new order each epoch."""
        return self._batches("train", self._train_plan, self._count_segment())

    def val_dataloader(self) -> SoundBatches | list[SoundBatches]:
        """Return the validation batches; an empty list where there is no validation split."""
        return self._batches("validation", self._eval_plan) if self._validation else []

    def test_dataloader(self) -> SoundBatches:
        """Return the test batches."""
        return self._batches("test", self._eval_plan)

    def _batches(self, split: str, plan: Plan, segment: int | None = None) -> SoundBatches:
        return SoundBatches(self._sets.splits[split], self.share(plan), segment)

    def on_after_batch_transfer(
        self, batch: SoundBatch, dataloader_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Standardize a batch on the device of the network.

        Args:
            batch: The batch as its loader gave it.
            dataloader_idx: Ignored; a batch has the statistics of its split.

        Returns:
            Spectrograms and labels as float32.
        """
        inputs = standardize(batch.spectrograms, batch.mean, batch.std)
        return inputs, batch.labels.float()


def _simulate() -> Path:
    """Make the embedded set, unless it exists, and return its folder."""
    from phnn.lab.tasks.sound.simulate import VERSION, Simulation, simulate
    from phnn.lab.tasks.sound.synthesis import SyntheticClips

    simulation = Simulation(SyntheticClips(), seconds=SIMULATED_SECONDS)
    settings = json.dumps([VERSION, simulation.settings])
    name = f"simulated-sound-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
    folder = cache_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder.with_suffix(".lock")):  # one process makes it, the others wait
        simulate(simulation, folder, **SIMULATED)
    return folder
