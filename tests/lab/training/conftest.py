import numpy as np
import pytest
from PIL import Image

from helpers.training import run

CLASSES, IMAGES, SIZE = ("dark", "light"), 12, 32


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PHNN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder of two classes that a network can tell apart."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for level, name in enumerate(CLASSES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(IMAGES):
                pixels = rng.integers(90 * level, 90 * level + 120, (SIZE, SIZE, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


@pytest.fixture
def tiny(images):
    """A recipe with dropout, augmentation and a validation split: 4 steps an epoch, 3 epochs."""
    return {
        "model": {"name": "vgg11", "n": 2, "widths": [4] * 6},
        "data": {
            "name": "mine",
            "root": str(images),
            "batch_size": 5,
            "augment": ["crop", "flip"],
            "validation": 0.2,
        },
        "optimizer": {"lr": 0.01},
        "schedule": {"name": "onecycle"},
        "trainer": {
            "max_epochs": 3,
            "threads": 1,
            "energy": False,
            "accelerator": "cpu",
            "checkpoint_steps": 1,
        },
    }


@pytest.fixture(scope="session")
def cache_of_references():
    return {}


@pytest.fixture
def reference(tiny, tmp_path_factory, cache_of_references):
    """The folder of an unbroken run of the tiny recipe."""
    if "out" not in cache_of_references:
        out = tmp_path_factory.mktemp("reference")
        run(tiny, out)
        cache_of_references["out"] = out
    return cache_of_references["out"]
