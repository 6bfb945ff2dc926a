"""Networks that trainings of `worth.py` start from: smaller versions of real ones."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import phnn
from phnn.lab.recipe import Recipe
from phnn.lab.tasks.images import ImageData
from phnn.lab.trained import load_trained
from phnn.lab.training.build import build_data, build_learner
from phnn.models import Network
from phnn.nn import PHConv2d

CALIBRATION = 1024  # training images, without labels


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_ph(model: Network, n: int = 4) -> int:
    """Return how many parameters the network has with PH layers of one n."""
    with torch.device("meta"):
        return count(phnn.create_model(**{**model.config, "n": n}))


def low_rank(path: Path, recipe: Recipe, source: Path | None) -> None:
    """Write a new network of low rank, with at most as many parameters as n = 4 has."""
    data = build_data(recipe)
    learner = build_learner(recipe, data)
    model = learner.model
    for name, conv in list(model.named_modules()):
        if isinstance(conv, nn.Conv2d):
            outputs, columns = conv.weight.flatten(1).shape
            quarter = conv.weight.numel() // 4 + 4**3  # the parameters of a layer with n = 4
            rank = max(1, quarter // (outputs + columns))
            layer = PHConv2d.like(conv, n=(outputs, 1), terms=rank)
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)
    phnn.save(model, path, metadata={**learner.metadata, **recipe.describe()})


def shrunk(path: Path, recipe: Recipe, source: Path | None) -> None:
    """Write the trained network, shrunk by `phnn.convert` to the size of n = 4."""
    assert source is not None
    trained, data = load_trained(source), build_data(recipe)
    model = trained.model
    assert isinstance(data, ImageData)
    budget = count_ph(model) / count(model)
    small = phnn.convert(model, budget=budget, calibration=data.sample(CALIBRATION))
    phnn.save(small, path, metadata=trained.metadata)


def pruned(path: Path, recipe: Recipe, source: Path | None) -> None:
    """Write the trained network with its largest weights, as many as n = 4 has parameters.

    The positions of the weights that are left are not counted.
    """
    assert source is not None
    trained = load_trained(source)
    model = trained.model
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    drop = count(model) - count_ph(model)
    sizes = torch.cat([layer.weight.detach().abs().flatten() for layer in layers])
    least = sizes.sort().values[drop]
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(layer.weight.abs() >= least)
    phnn.save(model, path, metadata=trained.metadata)
