"""Trained networks at work: tested again, or asked about new images."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from PIL import Image

from phnn.conversion.specs import LayerSpec, install_layers
from phnn.io import load
from phnn.lab.recipe import Recipe, Tree, build_recipe, merge
from phnn.lab.tasks.images import CorruptImageError, preprocess, read_image
from phnn.lab.tasks.images.decode import Corrupt, check_corrupt
from phnn.lab.tasks.task import TASKS, Task
from phnn.lab.training.build import LEARNERS, Data, build_data
from phnn.lab.training.folder import CONFIG, LAST, MODEL
from phnn.lab.training.run import calm_lightning, make_trainer, test
from phnn.models import Network, create_model

logger = logging.getLogger(__name__)

BATCH = 64  # images predicted at once


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        model: In evaluation mode.
        metadata: Its classes, and how its inputs are made from files.
        recipe: What it was trained by, as far as it is known.
    """

    model: Network
    metadata: dict[str, Any]
    recipe: Recipe

    @property
    def task(self) -> Task:
        """What it was trained for."""
        return TASKS[self.recipe.task]


class Prediction(NamedTuple):
    """What a network says of an image."""

    image: str
    label: str
    probability: float


def load_trained(path: str | Path) -> Trained:
    """Loads a trained network.

    Args:
        path: The folder of a run that has ended, a checkpoint `*.ckpt` of a run, or what
            `phnn.save` wrote.
    """
    path = Path(path)
    if path.suffix == ".ckpt":
        return _load_checkpoint(path)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}; give the folder of a run, a checkpoint (.ckpt) or a model "
            "(.safetensors)"
        )
    if (path / LAST).exists() and not (path / MODEL).exists():
        raise ValueError(
            f"the run in {path} has not ended; go on with it by phnn train, or give {path / LAST}"
        )
    model = load(path)
    assert isinstance(model, Network)  # load builds networks of the zoo when it is given no model
    metadata: dict[str, Any] = model.phnn_metadata  # type: ignore[assignment]
    config = path / CONFIG
    if config.is_file():
        recipe = yaml.safe_load(config.read_text(encoding="utf-8"))
    else:  # users may have written other things by these names
        kinds = {"task": str, "data": dict, "seed": int}
        recipe = {k: metadata[k] for k, kind in kinds.items() if isinstance(metadata.get(k), kind)}
        if recipe.get("task") not in TASKS:
            recipe.pop("task", None)
    return Trained(model, metadata, build_recipe(recipe))


def _load_checkpoint(path: Path) -> Trained:
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        ours = checkpoint["phnn"]
    except (RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"{path} is damaged, or not a checkpoint of phnn train: {error}"
        ) from error
    recipe = build_recipe(ours["recipe"])
    layers = {name: spec and LayerSpec(**spec) for name, spec in ours["layers"].items()}
    model = install_layers(create_model(**ours["config"]), layers)
    assert isinstance(model, Network)
    learner = LEARNERS[recipe.task](model, recipe, ours["metadata"])
    learner.load_weights(checkpoint)
    metadata = {**ours["metadata"], **recipe.describe()}
    return Trained(learner.model.eval(), metadata, recipe)


def evaluate(
    trained: Trained, overrides: Tree | None = None, *, progress: bool = True
) -> dict[str, float]:
    """Tests a trained network on the test part of its data, or of others of their kind.

    Others are standardized by what was measured in training, as `predict` does it.

    Args:
        trained: The network.
        overrides: Parts of its recipe to replace, such as where the data are.
        progress: Show a progress bar.

    Returns:
        The scores, and the seconds that it took.
    """
    recipe = build_recipe(merge(trained.recipe.to_dict(), overrides or {}))
    with calm_lightning():
        if recipe.trainer.threads is not None:
            torch.set_num_threads(recipe.trainer.threads)
        data = build_data(recipe)
        fit_data(data, trained)
        learner = LEARNERS[recipe.task](trained.model, recipe, trained.metadata)
        trainer = make_trainer(recipe.trainer, callbacks=[], progress=progress, logger=False)
        return test(learner, data, trainer)


def fit_data(data: Data, trained: Trained) -> None:
    """Makes data ready for a network: they are standardized as those of its training were.

    Args:
        data: Which are read.
        trained: The network.

    Raises:
        ValueError: The network was not trained for such data.
    """
    missing = [name for name in ("classes", "mean", "std") if name not in trained.metadata]
    if missing:
        raise ValueError(
            f"the network was saved without {' and '.join(missing)} of its data; save it with "
            f"metadata={type(data).__name__}.metadata(), or give the folder of its run"
        )
    known = list(trained.metadata["classes"])
    if list(data.classes) != known:
        raise ValueError(
            f"the network knows the classes {', '.join(known[:5])}…, the data have "
            f"{', '.join(data.classes[:5])}…; give the data it was trained for"
        )
    if data.in_channels != trained.model.config["in_channels"]:
        raise ValueError(
            f"the network takes {trained.model.config['in_channels']} channels, the data have "
            f"{data.in_channels}; leave the options of the data as they were in training"
        )
    data.standardize_as(trained.metadata)


def predict(
    trained: Trained, images: Sequence[str | Path], *, corrupt: Corrupt = "raise"
) -> Iterator[Prediction]:
    """Yields the class of each image, with its probability.

    Args:
        trained: The network.
        images: Files, or folders of files.
        corrupt: "raise" stops at an image that cannot be read, "skip" leaves it out and says so.
    """
    check_corrupt(corrupt)
    opened = _open_images(_find_images(images), corrupt)
    while batch := list(islice(opened, BATCH)):
        inputs = preprocess([image for _, image in batch], trained.metadata)
        with torch.inference_mode():
            probabilities, labels = trained.model(inputs).softmax(1).max(1)
        names = [trained.metadata["classes"][label] for label in labels.tolist()]
        for (file, _), name, probability in zip(batch, names, probabilities.tolist(), strict=True):
            yield Prediction(str(file), name, probability)


def _find_images(paths: Sequence[str | Path]) -> list[Path]:
    suffixes = Image.registered_extensions()
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no image {path}")
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in suffixes)
        if path.is_dir() and not inside:
            raise ValueError(f"the folder {path} holds no image files")
        found += inside if path.is_dir() else [path]
    return found


def _open_images(files: Sequence[Path], corrupt: Corrupt) -> Iterator[tuple[Path, Image.Image]]:
    for file in files:
        try:
            yield file, read_image(file)
        except CorruptImageError as error:
            if corrupt == "raise":
                raise
            logger.warning("left out: %s", error)
