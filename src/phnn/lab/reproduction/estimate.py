"""How long the runs of the paper take on the authors' hardware."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch

from phnn.lab.paper.emissions import estimate_co2
from phnn.lab.paper.sizes import count_multiplications
from phnn.lab.reproduction.datasets import SIZES
from phnn.lab.runs import Run
from phnn.models import create_model

# The paper's VGG16 on CIFAR-10, one V100: seconds for 100 iterations of 128 images. Learned and
# fixed algebras take longer in the authors' code.
VGG16_SECONDS = {"real": 2.2, "learned": 3.2, "fixed": 5.2}
VGG16_IMAGES = 100 * 128
BACKWARD = 3  # a training step has about the multiplications of three forward passes
# the paper: 20 hours for 1000 epochs of the real SEDnet, and its seconds for an iteration
SEDNET_HOURS = 20.0
SEDNET_SECONDS = {"real": 1.242, "fixed": 1.308, "learned": 1.091}


class Estimate(NamedTuple):
    """Hours of one V100, and the CO2 that the paper's rule gives for them."""

    runs: int
    hours: float

    @property
    def co2_kg(self) -> float:
        """The paper's estimate of CO2 in kg."""
        return estimate_co2(3600 * self.hours)


def estimate_hours(runs: Iterable[Run]) -> Estimate:
    """Estimate how long runs take, by what the paper prints about VGG16 and SEDnet.

    Images are counted by the multiplications of their networks, at the rate of the paper's VGG16 on
    a Tesla V100. A modern GPU is several times faster.

    Args:
        runs: Runs that have not ended yet; those that have count as nothing.
    """
    waiting = [run for run in runs if run.result is None]
    return Estimate(len(waiting), sum(_hours(run.recipe or {}) for run in waiting))


def _hours(recipe: Mapping[str, Any]) -> float:
    model = recipe["model"]
    kind = "fixed" if model.get("algebra") else "learned" if model.get("n") else "real"
    trainer, data = recipe["trainer"], recipe["data"]
    if recipe["task"] == "sound":
        share: float = trainer["max_epochs"] / 1000
        return SEDNET_HOURS * share * SEDNET_SECONDS[kind] / SEDNET_SECONDS["real"]
    name = data.get("name")
    images: float = SIZES.get(name, 0) * trainer["max_epochs"]
    if trainer.get("max_steps"):
        images = min(images or math.inf, trainer["max_steps"] * data.get("batch_size", 128))
    drop = {"n", "algebra", "init", "terms", "rank"}
    plain = tuple(sorted((k, str(v)) for k, v in model.items() if k not in drop and v is not None))
    size = 160 if name == "imagenet" else 32
    rate = VGG16_IMAGES * BACKWARD * _count((("name", "vgg16"),), 32) / VGG16_SECONDS["real"]
    slower = VGG16_SECONDS[kind] / VGG16_SECONDS["real"]
    return images * BACKWARD * _count(plain, size) * slower / rate / 3600


@cache
def _count(options: tuple[tuple[str, str], ...], size: int) -> int:
    """Return the multiplications of a real network for one image; n changes almost nothing."""
    given: dict[str, Any] = dict(options)
    if "width_multiplier" in given:
        given["width_multiplier"] = float(given["width_multiplier"])
    given.pop("widths", None)
    with torch.device("meta"):
        network = create_model(**given).eval()
        return count_multiplications(network, torch.empty(1, 3, size, size))
