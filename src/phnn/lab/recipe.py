"""Recipes: what a training run is made of, read from YAML."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from phnn._names import check_choices

Tree = dict[str, Any]
PRIVATE = ("root", "cache")  # options of the data that name folders of somebody's machine


@dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer.

    The paper decays every parameter alike: filters, algebras, biases and batch norms.

    Args:
        name: sgd, adam or adamw.
        lr: Learning rate at its highest.
        momentum: Of sgd.
        nesterov: Nesterov's momentum, for sgd.
        weight_decay: Of every parameter that has no decay of its own below.
        algebra_lr: Learning rate of the learned algebras A, when it differs.
        algebra_decay: Weight decay of the learned algebras, when it differs.
        vector_decay: Weight decay of biases and batch norms, when it differs.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    algebra_lr: float | None = None
    algebra_decay: float | None = None
    vector_decay: float | None = None


@dataclass(frozen=True)
class ScheduleOptions:
    """How the learning rate changes; the length of every schedule is that of the run.

    Args:
        name: cosine (falls at each epoch), step (falls every few epochs), onecycle (rises, then
            falls, at each step) or constant.
        every: Of step: epochs between two falls.
        factor: Of step: what the rate is multiplied by at each fall.
        warmup: Of onecycle: the part of the run in which the rate rises.
    """

    name: Literal["cosine", "step", "onecycle", "constant"] = "cosine"
    every: int = 30
    factor: float = 0.1
    warmup: float = 0.3

    def __post_init__(self) -> None:
        _check_least("schedule.every", self.every)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"schedule.warmup={self.warmup} must be at least 0 and below 1")


@dataclass(frozen=True)
class TrainerOptions:
    """How long, on what and how carefully the run is made.

    Args:
        max_epochs: Epochs to train.
        accelerator: cpu, gpu, mps or auto.
        devices: How many devices of this machine.
        num_nodes: How many machines.
        strategy: Lightning's name of the way to share work between devices, such as ddp.
        precision: 32-true, bf16-mixed, 16-mixed or another of Lightning's.
        gradient_clip_val: Longest gradient allowed; none by default.
        channels_last: Store images and filters with the channels innermost.
        deterministic: Refuse operations whose result may differ from run to run.
        threads: CPU threads of each process; torch's choice by default.
        checkpoint_steps: Checkpoint after this many steps, besides after each epoch.
        checkpoint_minutes: Checkpoint after this many minutes, besides after each epoch.
        energy: Measure energy with codecarbon; by default when it is installed.
        country: Three-letter code of the country whose electricity codecarbon reckons with.
    """

    max_epochs: int = 200
    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    gradient_clip_val: float | None = None
    channels_last: bool = False
    deterministic: bool = True
    threads: int | None = None
    checkpoint_steps: int | None = None
    checkpoint_minutes: float | None = None
    energy: bool | None = None
    country: str = "ITA"

    def __post_init__(self) -> None:
        _check_least("trainer.max_epochs", self.max_epochs)
        _check_least("trainer.checkpoint_steps", self.checkpoint_steps)


def _check_least(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{name}={value} must be at least 1")


@dataclass(frozen=True)
class Recipe:
    """A training run.

    Args:
        task: What the network learns: the classes of images, or which events are heard in sound.
        model: The network: name, n, algebra and the other arguments of phnn.create_model, such as
            --model.n 4 or --model.algebra quaternion.
        data: The images or scenes: root, batch_size and the other arguments of ImageData or
            SoundData, such as --data.root FOLDER.
        optimizer: The optimizer.
        schedule: The learning-rate schedule.
        trainer: How the training is carried out.
        seed: Of the starting values, the order of the data, augmentation and dropout.
        start: A file of phnn.save whose weights to begin with.
    """

    task: Literal["images", "sound"] = "images"
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    trainer: TrainerOptions = field(default_factory=TrainerOptions)
    seed: int = 0
    start: str | None = None

    def to_dict(self) -> Tree:
        """Returns the recipe as YAML and JSON can hold it."""
        return asdict(self)

    def describe(self) -> Tree:
        """Returns what a saved network tells of how it was made: no private folder."""
        data = {key: value for key, value in self.data.items() if key not in PRIVATE}
        return {"task": self.task, "data": data, "seed": self.seed}


def build_recipe(tree: Mapping[str, Any]) -> Recipe:
    """Returns the recipe that a nested mapping describes, with its names and types checked.

    Args:
        tree: As `Recipe.to_dict` gives it; what is left out has its default.
    """
    from jsonargparse import ArgumentError, ArgumentParser

    check_choices("part of a recipe", tree, [f.name for f in fields(Recipe)])
    for section, options in SECTIONS.items():
        check_choices(f"{section} option", tree.get(section, {}), [f.name for f in fields(options)])
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe, "recipe")
    try:
        recipe: Recipe = parser.instantiate(parser.parse_object({"recipe": dict(tree)})).recipe
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).replace("recipe.", "").split())) from None
    return recipe


SECTIONS: dict[str, type] = {
    "optimizer": OptimizerOptions,
    "schedule": ScheduleOptions,
    "trainer": TrainerOptions,
}
# what may change between a run and its continuation: where the data are, where and how carefully
# it is computed, and what may help against a loss that is not finite
_RESCUES = {"precision", "gradient_clip_val"}
_FREE = {
    "data": {"root", "cache"},
    "trainer": {f for f in TrainerOptions.__dataclass_fields__ if f != "max_epochs"},
}
# and what may differ when the result of a run is taken for that of another
_FREE_AT_END = {"data": {"cache"}, "trainer": _FREE["trainer"] - _RESCUES}


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, ended: bool) -> list[str]:
    """Returns how two recipes differ in what they compute, as "model.n: 2 → 4".

    Args:
        old: Of a run.
        new: Of what is asked for now.
        ended: Whether the run has ended, so that its result would be taken for the new one's;
            otherwise the run would go on by the new recipe.
    """
    free = _FREE_AT_END if ended else _FREE
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


def keep_known(tree: Mapping[str, Any]) -> Tree:
    """Return a recipe without the parts that this version does not know."""
    names = {f.name for f in fields(Recipe)}
    return {
        key: {k: v for k, v in value.items() if k in SECTIONS[key].__dataclass_fields__}
        if key in SECTIONS
        else value
        for key, value in tree.items()
        if key in names
    }


def _is_same(name: str, one: Any, other: Any) -> bool:
    if name in ("data.root", "start") and None not in (one, other):
        return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()
    return bool(one == other)


def merge(base: Mapping[str, Any], *others: Mapping[str, Any]) -> Tree:
    """Returns a nested mapping in which later values replace earlier ones."""
    merged = deepcopy(dict(base))
    for other in others:
        for key, value in other.items():
            old = merged.get(key)
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            merged[key] = merge(old, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return merged


def list_recipes() -> list[str]:
    """Returns the names of the packaged recipes."""
    return list(_packaged("recipes"))


def read_recipe(name: str | Path) -> Tree:
    """Returns a packaged recipe, or one from a YAML file, with what it is based on merged in.

    A recipe may begin with `base: other`: then it holds only what differs from the other recipe, a
    packaged name or a file beside it.

    Args:
        name: A name of `list_recipes()` or the path of a file.
    """
    return _resolve(*_find("recipes", "recipe", name))


def read_comparison(name: str | Path) -> Tree:
    """Returns a packaged comparison, or one from a YAML file, as it is written."""
    return _find("comparisons", "comparison", name)[0]


def list_comparisons() -> list[str]:
    """Returns the names of the packaged comparisons."""
    return list(_packaged("comparisons"))


def _resolve(tree: Tree, folder: Path, seen: tuple[str, ...] = ()) -> Tree:
    base = tree.pop("base", None)
    if base is None:
        return tree
    if base in seen:
        raise ValueError(f"the recipe {base!r} is based on itself: {' → '.join([*seen, base])}")
    beside = folder / str(base)
    parent, place = _find("recipes", "recipe", beside if beside.is_file() else base)
    return merge(_resolve(parent, place, (*seen, base)), tree)


def _find(kind: str, noun: str, name: str | Path) -> tuple[Tree, Path]:
    """Returns a packaged or given YAML mapping, and the folder that it came from."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise FileNotFoundError(f"there is no {noun} file {path}")
        return _parse(path.read_text(encoding="utf-8"), str(path)), path.parent
    packaged = _packaged(kind)
    check_choices(noun, [str(name)], packaged)
    return packaged[str(name)], Path()


def _packaged(kind: str) -> dict[str, Tree]:
    """Returns every packaged recipe or comparison by its name."""
    found: dict[str, Tree] = {}
    for file in sorted(files("phnn.lab").joinpath(kind).iterdir(), key=lambda file: file.name):
        tree = _parse(file.read_text(encoding="utf-8"), file.name)
        found |= _cross(tree) if "networks" in tree else {file.name.removesuffix(".yaml"): tree}
    return found


def _cross(tree: Tree) -> dict[str, Tree]:
    """Returns NETWORK-DATASET for every pair that a file with `networks` and `datasets` holds."""
    return {
        f"{network}-{dataset}": merge(tree["common"], data, options)
        for network, options in tree["networks"].items()
        for dataset, data in tree["datasets"].items()
    }


def _parse(text: str, name: str) -> Tree:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{name} must hold a mapping such as 'model: {{name: resnet20}}'")
    return tree
