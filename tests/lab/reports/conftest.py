import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import phnn
from phnn.lab import reports
from phnn.lab.comparison import load_comparison, plan
from phnn.lab.recipe import build_recipe
from phnn.lab.runs import write_json

CLASSES = ["<a>", "b & c"]
METRICS = "epoch,step,lr,train_loss,train_accuracy,val_loss,val_accuracy,seconds\n" + "".join(
    f"{i},{i},0.1,{1 / (i + 1)},{0.5 + i / 10},{1.2 / (i + 1)},{0.4 + i / 10},1\n" for i in range(3)
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PHNN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def make_images():
    """A function that writes a folder of images."""

    def make(root, seed=0):
        rng = np.random.default_rng(seed)
        for split in ("train", "test"):
            for name in CLASSES:
                folder = root / split / name
                folder.mkdir(parents=True)
                for i in range(4):
                    pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{i}.png")

    return make


def make_run(run, accuracy=0.75):
    """Write the folder of a run that has ended, without the training."""
    recipe = build_recipe(run.recipe)
    torch.manual_seed(run.seed)
    model = phnn.create_model(**{"num_classes": 2, "in_channels": 3, **recipe.model})
    run.folder.mkdir(parents=True)
    metadata = {"classes": CLASSES, "mean": [0.5] * 3, "std": [0.25] * 3}
    phnn.save(model, run.folder / "model.safetensors", metadata=metadata)
    (run.folder / "config.yaml").write_text(json.dumps(recipe.to_dict()))  # JSON is YAML
    (run.folder / "metrics.csv").write_text(METRICS)
    result = {
        "model": model.config, **recipe.describe(), "parameters": 10, "storage_bytes": 4,
        "test_accuracy": accuracy, "test_seconds": 1.0, "train_seconds": 1.0,
        "train_seconds_per_100": 1.0, "train_seconds_per_100_std": 0.1, "energy_kwh": None,
        "co2_kg": None, "ended": "2026-01-01T00:00:00+00:00", "device": "cpu", "devices": 1,
        "precision": "32-true", "threads": 1, "machine": "a machine", "selected": "last",
        "versions": {"torch": "2.13"}, "command": "phnn train tiny.yaml",
    }  # fmt: skip
    write_json(run.folder / "result.json", result)
    return result


@pytest.fixture
def results(tmp_path, make_images):
    """The results of a comparison: real and n=2 have ended, quaternion failed, n=4 waits."""
    make_images(tmp_path / "images")
    (tmp_path / "tiny.yaml").write_text(
        f"""
        model: {{name: resnet20, widths: [4, 4, 4]}}
        data: {{name: mine, root: {tmp_path / "images"}, batch_size: 4, validation: 0}}
        """
    )
    (tmp_path / "mine.yaml").write_text(
        "{title: A <b>title</b>, families: {tiny.yaml: {real: , n=2: , quaternion: , n=4: }}}"
    )
    comparison = load_comparison(tmp_path / "mine.yaml")
    out = tmp_path / "out"
    real, two, quaternion, four = plan(comparison, out, {})
    runs = [
        replace(real, result=make_run(real)),
        replace(two, result=make_run(two)),
        replace(quaternion, error="ValueError: <script>alert(1)</script>"),
        four,
    ]
    reports.write_tables(comparison, runs, out, 300.0, "phnn compare mine.yaml --out 'a b'")
    return out
