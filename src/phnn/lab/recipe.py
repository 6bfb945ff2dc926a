"""Recipes: the description of a training run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from phnn._names import check_choices

Tree = dict[str, Any]
PRIVATE = ("root", "cache")  # options of the data that name folders of one machine


@dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer.

    The paper uses one weight decay for all parameters: filters, algebras, biases and batch norms.

    Args:
        name: sgd, adam or adamw.
        lr: The highest learning rate.
        balanced: Whether the rates of A and F of PH layers are balanced: a step then changes both
            as much as it changes a real weight, see phnn.nn.balance_rates.
        relative: Whether each learning rate is a share of the size of its tensor at the start (its
            root mean square), as is best for fine-tuning converted networks with adam or adamw.
        norm_bias_scale: Factor of the rate for the biases of batch norms.
        filter_scale: Factor of the rate for the filters F of PH layers.
        algebra_scale: Factor of the rate for the learned algebras A.
        momentum: The momentum of sgd.
        nesterov: Whether sgd uses Nesterov's momentum.
        weight_decay: The weight decay of every parameter without one of its own below.
        decoupled: Whether decays are independent of the rate: each step at the highest rate takes
            this fraction of a weight. Otherwise it takes decay times rate.
        keep_zeros: Whether weights that are zero at the start stay zero, as after pruning.
        algebra_lr: The learning rate of the learned algebras; lr · algebra_scale by default.
        algebra_decay: The weight decay of the learned algebras; weight_decay by default.
        vector_decay: The weight decay of biases and batch norms; weight_decay by default.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    balanced: bool = False
    relative: bool = False
    norm_bias_scale: float = 1.0
    filter_scale: float = 1.0
    algebra_scale: float = 1.0
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    decoupled: bool = False
    keep_zeros: bool = False
    algebra_lr: float | None = None
    algebra_decay: float | None = None
    vector_decay: float | None = None

    def __post_init__(self) -> None:
        if self.decoupled and self.name == "adam":
            raise ValueError(
                "optimizer.decoupled is for sgd and adamw: adam adds the decay to the gradient and "
                "rescales it; give --optimizer.name adamw"
            )
        if self.relative and (self.balanced or self.name == "sgd"):
            rest = "optimizer.balanced out" if self.balanced else "it out, or take adamw"
            raise ValueError(
                "optimizer.relative scales the steps of adam and adamw to each tensor; leave "
                f"{rest}"
            )


@dataclass(frozen=True)
class ScheduleOptions:
    """The learning-rate schedule, over the length of the run.

    Args:
        name: cosine (falls at each epoch), step (falls every few epochs), onecycle (rises, then
            falls, at each step), triangular (the same in straight lines) or constant.
        every: For step: the epochs between two falls.
        factor: For step: the factor of the rate at each fall.
        warmup: For onecycle and triangular: the fraction of the run in which the rate rises.
        start: For triangular: the first rate, as a fraction of the highest.
        end: For triangular: the last rate, as a fraction of the highest.
    """

    name: Literal["cosine", "step", "onecycle", "triangular", "constant"] = "cosine"
    every: int = 30
    factor: float = 0.1
    warmup: float = 0.3
    start: float = 0.2
    end: float = 0.07

    def __post_init__(self) -> None:
        _check_least("schedule.every", self.every)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"schedule.warmup={self.warmup} must be at least 0 and below 1")


_COUNTS = (
    "max_epochs", "max_steps", "early_stopping", "threads", "checkpoint_steps", "devices",
    "num_nodes", "accumulate_grad_batches",
)  # fmt: skip


@dataclass(frozen=True)
class TrainerOptions:
    """How the training is carried out.

    Args:
        max_epochs: The epochs to train.
        max_steps: The steps after which training ends, if the epochs have not ended before.
        early_stopping: Stop after this many epochs without a better validation score; never by
            default.
        averaging: Test the average of the weights: ema (exponential moving average) or swa (mean
            over the last part of the run). By default the weights themselves.
        averaging_decay: For ema: the weight of the average at each step.
        averaging_start: For swa: the fraction of the run after which averaging begins.
        accelerator: cpu, gpu, mps or auto.
        devices: The number of devices of this machine.
        num_nodes: The number of machines.
        strategy: How devices share the work: ddp (each has the whole network), fsdp2 (each has a
            part of every tensor), or another of Lightning's names.
        precision: 32-true, bf16-mixed, 16-mixed or another of Lightning's; auto is bf16-mixed where
            the processor or GPU computes in bf16, and 32-true elsewhere.
        accumulate_grad_batches: Batches whose gradients make one step. Batches of 32 and 4 of them
            learn as batches of 128 do, in less memory.
        compile: Whether torch.compile compiles the network: a minute at the start, faster steps.
        gradient_clip_val: The largest norm of a gradient; no limit by default.
        channels_last: Whether images and filters use the channels-last memory format.
        deterministic: Whether to refuse operations that are not deterministic.
        threads: CPU threads of each process; torch's choice by default.
        logger: Where curves are written besides metrics.csv: tensorboard, csv, wandb, mlflow or
            none.
        checkpoint_steps: Checkpoint after this many steps, besides after each epoch.
        checkpoint_minutes: Checkpoint after this many minutes, besides after each epoch; null for
            after epochs alone. A kill costs at most this much work.
        energy: Whether to measure energy with codecarbon; by default when it is installed.
        country: Three-letter code of the country, for the CO2 of its electricity.
    """

    max_epochs: int = 200
    max_steps: int | None = None
    early_stopping: int | None = None
    averaging: Literal["ema", "swa"] | None = None
    averaging_decay: float = 0.999
    averaging_start: float = 0.75
    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    accumulate_grad_batches: int = 1
    compile: bool = False
    gradient_clip_val: float | None = None
    channels_last: bool = False
    deterministic: bool = True
    threads: int | None = None
    logger: Literal["tensorboard", "csv", "wandb", "mlflow", "none"] = "tensorboard"
    checkpoint_steps: int | None = None
    checkpoint_minutes: float | None = 5.0
    energy: bool | None = None
    country: str = "ITA"

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _check_least(f"trainer.{name}", getattr(self, name))
        if self.strategy == "fsdp2" and self.channels_last:
            raise ValueError(
                "trainer.channels_last does not go with fsdp2, which takes contiguous tensors: "
                "give --trainer.channels_last false"
            )
        if self.strategy == "fsdp2" and self.averaging is not None:
            raise ValueError(
                f"trainer.averaging={self.averaging} needs the whole network on each device; leave "
                "it out, or give --trainer.strategy ddp"
            )
        minutes = self.checkpoint_minutes
        if minutes is not None and not 0 <= minutes < math.inf:
            raise ValueError(
                f"trainer.checkpoint_minutes={minutes} must be a number of minutes, or null"
            )
        for name in ("averaging_decay", "averaging_start"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"trainer.{name}={value} must be at least 0 and below 1")


def _check_least(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{name}={value} must be at least 1")


@dataclass(frozen=True)
class Recipe:
    """A training run.

    Args:
        task: What the network learns: images, sound, or a task of another package.
        model: The network: name, n, algebra and the other arguments of phnn.create_model, such as
            --model.n 4 or --model.algebra quaternion.
        data: The data: root, batch_size and the other arguments of ImageData, SoundData or the data
            of another task, such as --data.root FOLDER.
        optimizer: The optimizer.
        schedule: The learning-rate schedule.
        learner: Options of the task's loss and of its tests, such as --learner.label_smoothing 0.1.
        trainer: How the training is carried out.
        seed: The seed of the starting values, the order of the data, augmentation and dropout.
        start: A file of phnn.save with the weights to start from.
        distill: A network to learn from instead of the labels: the folder of a run, a file of
            phnn.save, or package.module:function. On the command line, it also replaces the
            optimizer, the schedule and the epochs of the recipe by those of a short fine-tuning.
    """

    task: str = "images"
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    learner: dict[str, Any] = field(default_factory=dict)
    trainer: TrainerOptions = field(default_factory=TrainerOptions)
    seed: int = 0
    start: str | None = None
    distill: str | None = None

    def __post_init__(self) -> None:
        options = self.optimizer
        if self.trainer.strategy != "fsdp2":
            return
        names = ("balanced", "relative", "keep_zeros")
        given = [name for name in names if getattr(options, name)]
        if options.name == "sgd" and not options.momentum:
            raise ValueError(
                "optimizer.momentum=0 leaves sgd without a state, and Lightning cannot resume that "
                "with fsdp2; give a momentum, or --trainer.strategy ddp"
            )
        if given:
            raise ValueError(
                f"optimizer.{given[0]} reads whole tensors, and fsdp2 gives each device a part; "
                "leave it out, or give --trainer.strategy ddp"
            )

    def to_dict(self) -> Tree:
        """Return the recipe as YAML and JSON can hold it."""
        return asdict(self)

    def describe(self) -> Tree:
        """Return what a saved network tells about its training, without private folders."""
        data = {key: value for key, value in self.data.items() if key not in PRIVATE}
        return {"task": self.task, "data": data, "seed": self.seed}


# what fine-tunes a converted network by distillation
FINE_TUNING: Tree = {
    "optimizer": {"name": "adamw", "lr": 0.01, "relative": True, "weight_decay": 0.0},
    "schedule": {"name": "onecycle", "warmup": 0.05},
    "trainer": {"max_epochs": 3},
}


def build_recipe(tree: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a nested mapping describes, with its names and types checked.

    The names of the task and the network, and the options of the data, are checked by
    `phnn.lab.training.check_recipe`.

    Args:
        tree: A mapping as `Recipe.to_dict` returns it. Missing options have their defaults.
    """
    from jsonargparse import ArgumentError

    check_choices("section of a recipe", tree, [f.name for f in fields(Recipe)])
    for section, options in SECTIONS.items():
        check_choices(f"{section} option", tree.get(section, {}), [f.name for f in fields(options)])
    parser = _make_parser()
    try:
        recipe: Recipe = parser.instantiate(parser.parse_object({"recipe": dict(tree)})).recipe
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).replace("recipe.", "").split())) from None
    return recipe


@cache
def _make_parser() -> Any:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe, "recipe")
    return parser


SECTIONS: dict[str, type[Any]] = {
    "optimizer": OptimizerOptions,
    "schedule": ScheduleOptions,
    "trainer": TrainerOptions,
}
_FIXED = {
    "max_epochs", "max_steps", "early_stopping", "averaging", "averaging_decay", "averaging_start",
    "accumulate_grad_batches",
}  # fmt: skip
_RESCUES = {"precision", "gradient_clip_val"}  # these may help against a loss that is not finite
# what may change when a run continues: where the data are, and where and how it is computed
_FREE = {
    "data": {"root", "cache"},
    "trainer": TrainerOptions.__dataclass_fields__.keys() - _FIXED,
}
# what may differ when the result of a finished run is used
_FREE_AT_END = {"data": {"cache"}, "trainer": _FREE["trainer"] - _RESCUES}


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, ended: bool) -> list[str]:
    """Return how two recipes differ in what they compute, as "model.n: 2 → 4".

    Args:
        old: The recipe of a run.
        new: The recipe that is asked for now.
        ended: Whether the run has ended, and its result would be used. Otherwise the run would
            continue with the new recipe.
    """
    free = _FREE_AT_END if ended else _FREE
    if _count_batch(old) == _count_batch(new) is not None:
        # another number of processes, which take as many samples together
        free = {**free, "data": {*free["data"], "batch_size"}}
    found = []
    for section in sorted({*old, *new}):
        before, after = old.get(section), new.get(section)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            keys = sorted({*before, *after} - free.get(section, set()))
            pairs = [(f"{section}.{key}", before.get(key), after.get(key)) for key in keys]
        else:
            pairs = [(section, before, after)]
        found += [f"{name}: {a} → {b}" for name, a, b in pairs if not _is_same(name, a, b)]
    return found


def _count_batch(tree: Mapping[str, Any]) -> int | None:
    """Return the samples of a batch over all processes; None where they are not known."""
    size, trainer = tree.get("data", {}).get("batch_size"), tree.get("trainer", {})
    if not isinstance(size, int):
        return None
    return size * int(trainer.get("devices", 1)) * int(trainer.get("num_nodes", 1))


def keep_known(tree: Mapping[str, Any]) -> Tree:
    """Return a recipe without the parts that this version does not know."""
    names = {f.name for f in fields(Recipe)}
    return {
        key: {k: v for k, v in value.items() if k in {f.name for f in fields(SECTIONS[key])}}
        if key in SECTIONS and isinstance(value, Mapping)
        else value
        for key, value in tree.items()
        if key in names
    }


def _is_same(name: str, one: Any, other: Any) -> bool:
    if name in ("data.root", "start", "distill") and None not in (one, other):
        return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()
    return bool(one == other)


def merge(base: Mapping[str, Any], *others: Mapping[str, Any]) -> Tree:
    """Return a nested mapping in which later values replace earlier ones."""
    merged = deepcopy(dict(base))
    for other in others:
        for key, value in other.items():
            old = merged.get(key)
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            merged[key] = merge(old, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return merged
