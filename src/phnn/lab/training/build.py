"""What a recipe describes: its data and its learner, checked and built."""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from phnn._functions import call_function, find_function
from phnn._names import check_choices, check_types
from phnn.io import load
from phnn.lab.recipe import Recipe
from phnn.lab.seeds import derive_seed
from phnn.lab.tasks.data import Data
from phnn.lab.tasks.networks import is_own, make_network
from phnn.lab.tasks.registry import find_task
from phnn.lab.tasks.task import Task, resolve
from phnn.models import Network, create_model

if TYPE_CHECKING:
    from phnn.lab.tasks.learner import Learner

logger = logging.getLogger(__name__)

# what a network may differ in from the one whose weights it starts from
_NEW_AT_START = {"num_classes", "init"}


def check_recipe(recipe: Recipe) -> None:
    """Raise an error for options that cannot work, without reading data or importing Lightning."""
    task = find_task(recipe.task)
    data = resolve(task.data)
    check_choices("data option", recipe.data, inspect.signature(data).parameters)
    check_types("data", recipe.data, data)
    _make_data(recipe)
    _check_learner(task, recipe)
    if "name" not in recipe.model:
        raise ValueError("the recipe names no network; give --model.name, such as resnet20")
    _check_network(task, recipe)
    if recipe.start is not None and not Path(recipe.start).exists():
        raise FileNotFoundError(f"there is no file {recipe.start} to start from")
    teacher = recipe.distill
    if teacher is not None and not _is_function(teacher) and not Path(teacher).exists():
        raise FileNotFoundError(
            f"there is no file or folder {teacher} to distill from; a function is written "
            "package.module:function"
        )
    package = recipe.trainer.logger
    if package in ("wandb", "mlflow") and importlib.util.find_spec(package) is None:
        raise ValueError(f"trainer.logger={package} needs a package: pip install {package}")


def _check_network(task: Task, recipe: Recipe) -> None:
    if is_own(recipe.model["name"]):
        find_function(recipe.model["name"])
        if recipe.start is not None:
            raise ValueError(
                f"start={recipe.start} is for networks of the zoo; {recipe.model['name']} can load "
                "weights itself"
            )
        return
    with torch.device("meta"):
        model = create_model(**recipe.model)
    if task.check_network is not None:
        resolve(task.check_network)(model)


def _check_learner(task: Task, recipe: Recipe) -> None:
    if task.learner_options is None:
        if recipe.learner:
            given = ", ".join(recipe.learner)
            raise ValueError(f"the task {task.name} has no learner options; leave out {given}")
        return
    options = resolve(task.learner_options)
    check_choices("learner option", recipe.learner, inspect.signature(options).parameters)
    check_types("learner", recipe.learner, options)
    options(**recipe.learner)


def build_data(recipe: Recipe) -> Data:
    """Return the data of a recipe, read."""
    data = _make_data(recipe)
    data.setup()
    return data


def _make_data(recipe: Recipe) -> Data:
    """Return the data, not read; their seed is that of the run unless they have their own."""
    data: Data = resolve(find_task(recipe.task).data)(**{"seed": recipe.seed, **recipe.data})
    return data


def build_learner(recipe: Recipe, data: Data) -> Learner:
    """Return the learner of a recipe, with a new network.

    Args:
        recipe: What to build.
        data: The data, from which options of the network follow.
    """
    torch.manual_seed(derive_seed(recipe.seed))
    task = find_task(recipe.task)
    model = make_network(resolve(task.network_options)(data), recipe.model)
    if task.prepare_network is not None:
        resolve(task.prepare_network)(model, data)
    if recipe.start is not None:
        model = _start_from(recipe.start, model)
        _compare_seeds(recipe, model.phnn_metadata)  # type: ignore[arg-type]
    learner: Learner = resolve(task.learner)(model, recipe, data.metadata())
    if recipe.distill is not None:
        learner.learn_from(_load_teacher(recipe.distill, data))
    return learner


def _is_function(text: str) -> bool:
    return ":" in text and not Path(text).exists()


def _load_teacher(text: str, data: Data) -> nn.Module:
    """Return the network to learn from.

    Raises:
        ValueError: It knows other classes than the data have.
    """
    if _is_function(text):
        return call_function(text)
    model = load(text)
    known: Mapping[str, Any] = model.phnn_metadata  # type: ignore[assignment]
    ours, theirs = data.metadata().get("classes"), known.get("classes")
    if None not in (ours, theirs) and list(ours) != list(theirs):  # type: ignore[arg-type]
        raise ValueError(
            f"the teacher {text} was trained on {len(theirs)} classes, which differ from the "  # type: ignore[arg-type]
            f"{len(ours)} of the data; give the original of the network, and its data set"  # type: ignore[arg-type]
        )
    return model


def _compare_seeds(recipe: Recipe, saved: Mapping[str, Any]) -> None:
    """Warn when a network may be tested on its own training data."""
    data = saved.get("data")
    if not isinstance(data, Mapping):
        return
    before = data.get("seed", saved.get("seed"))
    now = recipe.data.get("seed", recipe.seed)
    if data.get("name") == recipe.data.get("name") and before not in (None, now):
        logger.warning(
            "%s was trained with seed=%s, this run has seed=%s: if the seed draws the test split, "
            "it may hold images that the network was trained on; give --data.seed %s to avoid it",
            recipe.start,
            before,
            now,
            before,
        )


def _start_from(start: str, model: Network) -> Network:
    """Return a saved network, with a new last layer when the number of classes differs."""
    saved = load(start)
    assert isinstance(saved, Network)  # load builds networks of the zoo when it is given no model
    for key, value in model.config.items():
        if key not in _NEW_AT_START and saved.config[key] != value:
            own = saved.config[key]
            hint = f"leave --model.{key} out" if own is None else f"give --model.{key} {own}"
            shown = "none" if own is None else own
            raise ValueError(
                f"{start} holds another network than the recipe: its {key} is {shown}, not "
                f"{value}; {hint}"
            )
    if saved.config["num_classes"] != model.config["num_classes"]:
        saved.reset_classifier(model.config["num_classes"])
    return saved.train()
