"""What conversion asks of a trained network: inputs to fit it to, and its validation score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from phnn.lab.recipe import build_recipe, merge
from phnn.lab.seeds import permutation_of
from phnn.lab.tasks.data import Data
from phnn.lab.tasks.task import resolve
from phnn.lab.trained import Trained, fit_data
from phnn.lab.training.build import build_data


class Validation(NamedTuple):
    """The score of a task on its validation split.

    Attributes:
        name: What people call it.
        evaluate: A function of a network that returns the score.
        lower_is_better: Whether a lower score is better.
    """

    name: str
    evaluate: Callable[[nn.Module], float]
    lower_is_better: bool


def read_inputs(
    trained: Trained, paths: Sequence[str | Path], samples: int, seed: int = 0
) -> list[Tensor]:
    """Return batches of inputs, made from files as in the network's own predictions.

    Args:
        trained: The network, whose metadata say how.
        paths: Files, or folders of files.
        samples: Most samples; files are drawn at random if there are more.
        seed: Of the draw.
    """
    task = trained.task
    if task.inputs is None or task.find_files is None:
        raise ValueError(f"the task {task.name} reads no files; give arrays (.npy or .npz)")
    files = resolve(task.find_files)(paths)
    drawn = [files[i] for i in permutation_of(len(files), seed)[:samples].tolist()]
    return _take(resolve(task.inputs)(trained.metadata, drawn), samples)


def read_training_inputs(trained: Trained, samples: int) -> list[Tensor]:
    """Return batches of the inputs that a network was trained on, without augmentation.

    Args:
        trained: The network, with the recipe of its run.
        samples: Most samples, the first in the order of the run's first epoch.
    """
    data = _open_data(trained)
    batches = data.train_dataloader()
    return _take((data.on_after_batch_transfer(batch, 0)[0] for batch in batches), samples)


def validate(trained: Trained) -> Validation:
    """Return the validation score of the task that a network was trained for.

    The test split is not touched: what is chosen by a score may not be judged by it.

    Args:
        trained: The network, with the recipe of its run.
    """
    data = _open_data(trained)
    if not data.val_dataloader():
        raise ValueError(
            "the run has no validation split (data.validation=0), and the test split is not used "
            "to choose a size; give --evaluate package.module:function"
        )
    make = resolve(trained.task.learner)
    criterion = trained.task.criterion or trained.task.primary

    @torch.no_grad()
    def evaluate(model: nn.Module) -> float:
        learner = make(model, trained.recipe, trained.metadata)
        loaders = data.val_dataloader()
        for loader in loaders if isinstance(loaders, list) else [loaders]:
            for number, batch in enumerate(loader):
                learner.validation_step(data.on_after_batch_transfer(batch, 0), number)
        return float(learner.val_scores.take()[f"val_{criterion.name}"])

    return Validation(f"validation {criterion.name}", evaluate, not criterion.higher)


def _open_data(trained: Trained) -> Data:
    """Return the data of a network's training, standardized as they were."""
    recipe = trained.recipe
    if not recipe.data:
        raise ValueError(
            "nothing says which data the network was trained on; give the folder of its run"
        )
    changes: dict[str, object] = {"augment": []} if "augment" in recipe.data else {}
    data = build_data(build_recipe(merge(recipe.to_dict(), {"data": changes})))
    fit_data(data, trained)
    return data


def _take(batches: Iterable[Tensor], samples: int) -> list[Tensor]:
    taken: list[Tensor] = []
    count = 0
    for batch in islice(batches, samples):
        taken.append(batch[: samples - count])
        count += len(taken[-1])
        if count >= samples:
            break
    if not taken:
        raise ValueError("there are no inputs to fit the network to")
    return taken
