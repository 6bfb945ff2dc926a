"""From a recipe to what Lightning trains: the data, and a network with its task."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from phnn._names import check_choices
from phnn.io import load
from phnn.lab.recipe import Recipe
from phnn.lab.seeds import derive_seed
from phnn.lab.tasks.images import ImageData
from phnn.lab.tasks.sound import SoundData
from phnn.lab.training.classifier import Classifier
from phnn.lab.training.detector import Detector
from phnn.models import Network, create_model
from phnn.models.sednet import SEDnet

logger = logging.getLogger(__name__)

Data = ImageData | SoundData
DATA: dict[str, type[Data]] = {"images": ImageData, "sound": SoundData}
LEARNERS: dict[str, type[Classifier | Detector]] = {"images": Classifier, "sound": Detector}
# what a network may differ in from the one whose weights it begins with
_NEW_AT_START = {"num_classes", "init"}


def check_recipe(recipe: Recipe) -> None:
    """Raises an error for options of the network or the data that cannot work, before any work."""
    check_choices("data option", recipe.data, inspect.signature(DATA[recipe.task]).parameters)
    if "name" not in recipe.model:
        raise ValueError("the recipe names no network; give --model.name, such as resnet20")
    with torch.device("meta"):
        model = create_model(**recipe.model)
    if isinstance(model, SEDnet) != (recipe.task == "sound"):
        raise ValueError(
            f"the network {recipe.model['name']} is not for task={recipe.task}: sednet is for "
            "sound, the others are for images"
        )
    if recipe.start is not None and not Path(recipe.start).exists():
        raise FileNotFoundError(f"there is no file {recipe.start} to start from")


def build_data(recipe: Recipe) -> Data:
    """Returns the data of a recipe, read; their seed is the run's unless they have their own."""
    data = DATA[recipe.task](**{"seed": recipe.seed, **recipe.data})
    data.prepare_data()
    data.setup()
    return data


def build_learner(recipe: Recipe, data: Data) -> Classifier | Detector:
    """Returns the network of a recipe with its task.

    Args:
        recipe: What to build.
        data: Tell the number of channels and classes.
    """
    torch.manual_seed(derive_seed(recipe.seed))
    learner, metadata = LEARNERS[recipe.task], data.metadata()
    sizes = {"in_channels": data.in_channels, "num_classes": data.num_classes}
    model = create_model(**{**sizes, **learner.network_options(metadata), **recipe.model})
    if recipe.start is not None:
        model = _begin_from(recipe.start, model)
        _compare_seeds(recipe, model.phnn_metadata)  # type: ignore[arg-type]
    return learner(model, recipe, metadata)


def _compare_seeds(recipe: Recipe, saved: Mapping[str, Any]) -> None:
    """Warns where a network may be tested on what it was trained on before."""
    data = saved.get("data")
    if not isinstance(data, Mapping):
        return
    before = data.get("seed", saved.get("seed"))
    now = recipe.data.get("seed", recipe.seed)
    if data.get("name") == recipe.data.get("name") and before not in (None, now):
        logger.warning(
            "%s was trained with seed=%s, this run has seed=%s: where the test part is drawn by "
            "the seed, it holds what the network knows already; give --data.seed %s to avoid it",
            recipe.start,
            before,
            now,
            before,
        )


def _begin_from(start: str, model: Network) -> Network:
    """Returns a saved network, with a new last layer when the classes are others."""
    saved = load(start)
    assert isinstance(saved, Network)  # load builds networks of the zoo when it is given no model
    for key, value in model.config.items():
        if key not in _NEW_AT_START and saved.config[key] != value:
            raise ValueError(
                f"{start} holds a network with {key}={saved.config[key]}, the recipe has "
                f"{key}={value}; give --model.{key} {saved.config[key]}"
            )
    if saved.config["num_classes"] != model.config["num_classes"]:
        saved.reset_classifier(model.config["num_classes"])
    return saved.train()
