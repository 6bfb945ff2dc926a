"""Trained networks: loaded, tested again, or asked about new inputs."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from phnn._names import suggest
from phnn._screen import Screen
from phnn.conversion.specs import LayerSpec, install_layers
from phnn.io import load
from phnn.io.header import check_algebras
from phnn.lab.recipe import Recipe, Tree, build_recipe, merge
from phnn.lab.runs import CONFIG, LAST, MODEL, Run
from phnn.lab.sealing import check
from phnn.lab.tasks.data import Data
from phnn.lab.tasks.networks import is_own
from phnn.lab.tasks.registry import find_task, list_tasks
from phnn.lab.tasks.task import Answer, Task, resolve
from phnn.lab.training.build import build_data
from phnn.models import Network, create_model


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        model: The network, in evaluation mode.
        metadata: Its classes, and how its inputs are made from files.
        recipe: The recipe of its training, as far as it is known.
    """

    model: Network
    metadata: dict[str, Any]
    recipe: Recipe

    @property
    def task(self) -> Task:
        """The task it was trained for."""
        return find_task(self.recipe.task)


def load_trained(path: str | Path) -> Trained:
    """Load a trained network.

    Args:
        path: The folder of a run that has ended, a checkpoint `*.ckpt` of a run, or a file that
            `phnn.save` wrote.
    """
    path = Path(path)
    if path.suffix == ".ckpt":
        return _load_checkpoint(path)
    if not path.exists():
        near = suggest(path, path.parent.iterdir() if path.parent.is_dir() else [])
        raise FileNotFoundError(
            f"there is no {path}; {near}give the folder of a run, a checkpoint (.ckpt) or a model "
            "(.safetensors)"
        )
    if (path / LAST).exists() and not (path / MODEL).exists():
        raise ValueError(
            f"the run in {path} has not ended; continue it with phnn train, or give {path / LAST}"
        )
    model = load(path)
    assert isinstance(model, Network)  # load builds networks of the zoo when it is given no model
    metadata: dict[str, Any] = model.phnn_metadata  # type: ignore[assignment]
    if (path / CONFIG).is_file():
        recipe = Run.open(path).recipe or {}
    else:  # users may have written other things by these names
        kinds = {"task": str, "data": dict, "seed": int}
        recipe = {k: metadata[k] for k, kind in kinds.items() if isinstance(metadata.get(k), kind)}
        if recipe.get("task") not in list_tasks():
            recipe.pop("task", None)
    return Trained(model, metadata, build_recipe(recipe))


def _load_checkpoint(path: Path) -> Trained:
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    check(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        ours = dict(checkpoint)["phnn"]
        name = dict(ours["config"]).get("name")
    except (
        RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError
    ) as error:  # fmt: skip
        raise ValueError(
            f"{path} is damaged, or not a checkpoint of phnn train: {error!r}"
        ) from error
    if is_own(name):
        raise ValueError(
            f"{path} was built by {name}, which phnn does not call for you; load the "
            f"{MODEL} of its run with phnn.load(file, model=...)"
        )
    try:
        recipe = build_recipe(ours["recipe"])
        layers = {name: spec and LayerSpec(**spec) for name, spec in ours["layers"].items()}
        held = _count(checkpoint["state_dict"].values())
        check_algebras(ours["config"], layers.values(), held)
        with torch.device("meta"):  # before memory is used
            outline = install_layers(create_model(**ours["config"]), layers)
        if (needed := _count(outline.state_dict().values())) > held:
            raise ValueError(f"{path} describes {needed:,} numbers, and holds {held:,}")
        model = install_layers(create_model(**ours["config"]), layers)
        assert isinstance(model, Network)
        learner = resolve(find_task(recipe.task).learner)(model, recipe, ours["metadata"])
        learner.load_weights(checkpoint)
        metadata = {**ours["metadata"], **recipe.describe()}
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} does not hold the network it describes: {error!r}") from error
    return Trained(learner.model.eval(), metadata, recipe)


def _count(tensors: Iterable[object]) -> int:
    """Return the number of numbers in all tensors."""
    return sum(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))


def evaluate(
    trained: Trained, overrides: Tree | None = None, *, progress: bool = True
) -> dict[str, float]:
    """Test a trained network on the test split of its data, or of other data of the same kind.

    Other data are standardized with the statistics of the training data, as in `predict`.

    Args:
        trained: The network.
        overrides: Options of its recipe to replace, such as where the data are.
        progress: Whether to show how far it is, on stderr.

    Returns:
        The scores, and the seconds that it took.
    """
    from phnn.lab.training.fitting import test
    from phnn.lab.training.progress import RunProgress
    from phnn.lab.training.trainer import calm_lightning, make_trainer

    recipe = build_recipe(merge(trained.recipe.to_dict(), overrides or {}))
    with calm_lightning():
        if recipe.trainer.threads is not None:
            torch.set_num_threads(recipe.trainer.threads)
        data = build_data(recipe)
        fit_data(data, trained)
        learner = resolve(find_task(recipe.task).learner)(trained.model, recipe, trained.metadata)
        screen = Screen() if progress else None
        watching = [] if screen is None else [RunProgress(screen)]
        trainer = make_trainer(recipe.trainer, callbacks=[*watching], logger=False)
        with screen or nullcontext():
            return test(learner, data, trainer)


def fit_data(data: Data, trained: Trained) -> None:
    """Prepare data for a network: standardize them as the data of its training.

    Args:
        data: The data, read.
        trained: The network.

    Raises:
        ValueError: The network was not trained for such data.
    """
    ours, known = data.metadata(), trained.metadata
    missing = [name for name in ("classes", "mean", "std") if name in ours and name not in known]
    if missing:
        raise ValueError(
            f"the network was saved without {' and '.join(missing)} of its data; save it with "
            f"metadata={type(data).__name__}.metadata(), or give the folder of its run"
        )
    if "classes" in ours and list(ours["classes"]) != list(known["classes"]):
        raise ValueError(
            f"the network knows the classes {', '.join(known['classes'][:5])}…, the data have "
            f"{', '.join(ours['classes'][:5])}…; give the data it was trained for"
        )
    channels = resolve(trained.task.network_options)(data).get("in_channels")
    if channels not in (None, trained.model.config["in_channels"]):
        raise ValueError(
            f"the network takes {trained.model.config['in_channels']} channels, the data have "
            f"{channels}; leave the options of the data as they were in training"
        )
    data.standardize_as(known)


def predict(trained: Trained, inputs: Sequence[str | Path], **options: Any) -> Iterator[Answer]:
    """Return the answers of a network for new inputs, one after the other.

    Args:
        trained: The network.
        inputs: Files, or folders of files.
        options: Options that only some tasks have.

    Raises:
        ValueError: The task has no such option, or makes no predictions.
    """
    task = trained.task
    if task.predict is None:
        raise ValueError(f"the task {task.name} makes no predictions")
    function = resolve(task.predict)
    known = inspect.signature(function).parameters
    for option in options:
        if option not in known:
            raise ValueError(f"the task {task.name} has no option --{option}")
    answers: Iterator[Answer] = function(trained.model, trained.metadata, inputs, **options)
    return answers
