"""What `worth.py` trains, the most decisive first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import worth_starts as starts
from phnn.lab.recipe import Recipe, merge

SEEDS = range(5)
LR = 0.75
NARROW = {"n=4": [12, 48, 48], "n=2": [16, 68, 68]}  # real networks with as many parameters


@dataclass(frozen=True)
class Setting:
    """One line of a table.

    Attributes:
        name: What it is called. Names that begin with "sweep" have a validation split.
        options: What differs from the recipe cifar10-fast.
        start: A function of (file to write, recipe, model of the setting that it needs): writes the
            network that training starts from.
        needs: The setting whose trained network `start` takes.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    start: Callable[[Path, Recipe, Path | None], None] | None = None
    needs: str | None = None


# What the validation splits of the sweeps favour, over two seeds
LEARNED: dict[str, Any] = {"balanced": True, "algebra_scale": 0.25}
NARROW_RATE: dict[str, Any] = {"lr": 2 * LR}


def table(
    name: str, optimizer: dict[str, Any] | None = None, *, epochs: int = 5, **model: Any
) -> Setting:
    """Train on all training images, and test the last epoch."""
    options = {"model": model, "optimizer": optimizer or {}, "trainer": {"max_epochs": epochs}}
    return Setting(name, options)


def fine_tuned(name: str, start: Any, optimizer: dict[str, Any] | None = None) -> Setting:
    """Train the network of the setting "real" for two more epochs, once it is smaller."""
    options = {"trainer": {"max_epochs": 2}, "optimizer": {"lr": 0.2 * LR, **(optimizer or {})}}
    return Setting(name, options, start, needs="real")


# Images of 16 × 16 pixels: a fifth of the multiplications of the recipe
SWEEP: dict[str, Any] = {
    "data": {"validation": 0.1, "image_size": 16},
    "learner": {"test_flips": False},
    "trainer": {"max_epochs": 3},
}


def sweep(name: str, model: dict[str, Any], **optimizer: Any) -> Setting:
    """Train on small images; a tenth of the training images tells which rates are best."""
    label = " ".join(f"{key}={value:g}" for key, value in optimizer.items())
    return Setting(f"sweep {name} {label}", merge(SWEEP, {"model": model, "optimizer": optimizer}))


def list_first_sweeps() -> Iterator[Setting]:
    """Rates and starting values that decide the most."""
    n4, narrow = {"n": 4}, {"widths": NARROW["n=4"]}
    yield sweep("n=4", n4, lr=LR)
    yield sweep("n=4", n4, lr=LR, balanced=True)
    yield sweep("n=4", n4, lr=LR, balanced=True, algebra_scale=0.25)
    yield sweep("real", {}, lr=LR)
    yield sweep("narrow", narrow, lr=LR)
    yield sweep("n=4", n4, lr=2 * LR, balanced=True)
    yield sweep("real", {}, lr=2 * LR)
    yield sweep("narrow", narrow, lr=2 * LR)
    yield sweep("n=4 default start", {"n": 4, "init": "default"}, lr=LR, balanced=True)
    yield sweep("quaternion", {"algebra": "quaternion"}, lr=LR)
    yield sweep("quaternion", {"algebra": "quaternion"}, lr=LR, balanced=True)
    yield sweep("n=2", {"n": 2}, lr=LR)
    yield sweep("n=2", {"n": 2}, lr=LR, balanced=True)


def list_sweeps() -> Iterator[Setting]:
    """Further rates and structures."""
    n4, narrow = {"n": 4}, {"widths": NARROW["n=4"]}
    yield sweep("n=4", n4, lr=2 * LR, balanced=True, algebra_scale=0.25)
    yield sweep("n=4", n4, lr=LR / 2, balanced=True)
    yield sweep("n=4", n4, lr=LR, balanced=True, algebra_scale=4)
    yield sweep("n=4", n4, lr=LR, balanced=True, filter_scale=2)
    yield sweep("n=4", n4, lr=LR, balanced=True, algebra_decay=0)
    yield sweep("n=4", n4, lr=LR, algebra_scale=0)
    yield sweep("n=4", n4, lr=LR / 2)
    yield sweep("n=4 default start", {"n": 4, "init": "default"}, lr=LR)
    yield sweep("n=8, 16 terms", {"n": 8, "terms": 16}, lr=LR, balanced=True)
    yield sweep("real default start", {"init": "default"}, lr=LR)
    yield sweep("real", {}, lr=LR / 2)
    yield sweep("narrow", narrow, lr=LR / 2)
    yield sweep("quaternion", {"algebra": "quaternion"}, lr=2 * LR)
    yield sweep("n=2", {"n": 2}, lr=2 * LR, balanced=True)


def list_rivals() -> Iterator[Setting]:
    """The table of rivals, the most decisive first."""
    yield table("real")
    yield table("n=4", LEARNED, n=4)
    yield table("narrow n=4", NARROW_RATE, widths=NARROW["n=4"])
    yield table("quaternion", algebra="quaternion")
    yield table("n=2", LEARNED, n=2)
    yield fine_tuned("shrunk n=4", starts.shrunk)
    yield Setting("low rank n=4", start=starts.low_rank)
    yield table("narrow n=2", NARROW_RATE, widths=NARROW["n=2"])
    yield table("narrow n=4, 10 epochs", NARROW_RATE, epochs=10, widths=NARROW["n=4"])
    yield table("n=8", LEARNED, n=8)
    yield table("n=3", LEARNED, n=3)
    yield table("rank 4", LEARNED, n=4, rank=4)
    yield table("rank 7", LEARNED, n=4, rank=7)
    yield fine_tuned("pruned n=4", starts.pruned, {"keep_zeros": True})
    yield table("n=4 widened", LEARNED, n=4, widths=[48, 192, 192])


def list_small_data() -> Iterator[Setting]:
    """As many steps with fewer images, with and without augmentation."""
    rivals: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "real": ({}, {}),
        "n=4": ({"n": 4}, LEARNED),
        "narrow": ({"widths": NARROW["n=4"]}, NARROW_RATE),
        "quaternion": ({"algebra": "quaternion"}, {}),
    }
    for images, epochs in ((1000, 40), (5000, 16)):
        for augment in (["shift", "alternating_flip"], []):
            for name, (model, rates) in rivals.items():
                data = {"limit": images, "batch_size": 128, "augment": augment}
                label = f"{name}, {images} images" + ("" if augment else ", not augmented")
                optimizer = {**rates, "lr": rates.get("lr", LR) / 4}
                trainer = {"max_epochs": epochs}
                yield Setting(
                    f"small {label}",
                    {"model": model, "data": data, "optimizer": optimizer, "trainer": trainer},
                )


def list_harder() -> Iterator[Setting]:
    """The core rivals on the 40 classes of cifar10-rotated."""
    rotated = {"data": {"rotations": True, "augment": ["shift"]}, "learner": {"test_flips": False}}
    for rival in list_rivals():
        if rival.name in ("real", "narrow n=4", "n=4", "n=2", "quaternion", "low rank n=4"):
            yield replace(
                rival, name=f"rotated {rival.name}", options=merge(rival.options, rotated)
            )


def _list_all() -> Iterator[tuple[Setting, int]]:
    for seed in SEEDS[:2]:
        for setting in list_first_sweeps():
            yield setting, seed
    rivals = [(setting, seed) for seed in SEEDS for setting in list_rivals()]
    yield from rivals[:5]
    yield from ((setting, 0) for setting in list_sweeps())
    yield from rivals[5:]
    for seed in SEEDS[:3]:
        for setting in [*list_harder(), *list_small_data()]:
            yield setting, seed


SETTINGS = list(_list_all())
