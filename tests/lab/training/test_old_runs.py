"""Folders written by the version before format 1.0 of run folders."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from helpers.comparisons import run_in_process
from helpers.training import rows
from phnn import cli
from phnn.lab.reports.results import read_results
from phnn.lab.runs import Run
from phnn.lab.trained import load_trained

OLD = Path(__file__).parents[2] / "data" / "old-runs"


@pytest.fixture
def old(images, tmp_path, monkeypatch):
    """A folder with an old comparison, and the images that it was trained on."""
    shutil.copytree(OLD, tmp_path / "old")
    shutil.copytree(images, tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "old"


def test_they_load(old):
    run = Run.open(old / "runs" / "tiny-real-seed0")
    assert (run.status, run.seed, run.is_real, run.has_model) == ("finished", 0, True, True)
    assert run.name == "mine vgg11 real, seed 0"
    stopped = Run.open(old / "runs" / "tiny-n=2-seed0")
    assert (stopped.status, stopped.error) == ("waiting", None)
    trained = load_trained(run.folder)
    assert trained.recipe.optimizer.lr == 0.01
    assert load_trained(stopped.folder / "checkpoints/last.ckpt").model.config["n"] == 2


def test_they_are_reported(old):
    results = read_results(old)
    assert [run.status for run in results.runs] == ["finished", "waiting"]
    assert results.runs[0].recipe["model"]["name"] == "vgg11"
    alone = read_results(old / "runs" / "tiny-real-seed0")
    assert alone.summaries[0].parameters == results.summaries[0].parameters == 1230


def test_they_continue(old, monkeypatch, capsys):
    started = run_in_process(monkeypatch)
    argv = ["compare", "old/mine.yaml", "--out", "old", "--jobs", "1"]
    assert cli.main(argv) == 0
    assert started == ["tiny-n=2-seed0"]
    folder = old / "runs" / "tiny-n=2-seed0"
    result = json.loads((folder / "result.json").read_text())
    assert result["resumed"]
    assert [float(row["val_loss"]) for row in rows(folder)] == pytest.approx(
        [float(row["val_loss"]) for row in rows(OLD / "expected")]
    )
    ours, theirs = (load_file(each / "model.safetensors") for each in (folder, OLD / "expected"))
    torch.testing.assert_close(ours, theirs)
    assert yaml.safe_load((folder / "config.yaml").read_text())["run"] == {
        "format": "1.0",
        "comparison": "mine",
        "family": "tiny",
        "variant": "n=2",
    }


def test_a_run_that_went_on_with_other_options(old, monkeypatch, capsys):
    """The comparison asked for 32 bits; somebody finished the run with clipped gradients."""
    folder = old / "runs" / "tiny-real-seed0"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["trainer"]["gradient_clip_val"] = 1.0
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run_in_process(monkeypatch)
    argv = ["compare", "old/mine.yaml", "--out", "old", "--jobs", "1"]
    assert cli.main(argv) == 0
    assert cli.main([*argv, "--trainer.precision", "bf16-mixed"]) == cli.USER_ERROR
    assert "precision: 32-true → bf16-mixed" in capsys.readouterr().err
    (folder / "recipe.yaml").write_text("")  # as by a full disk
    assert cli.main(argv) == cli.USER_ERROR
    assert "recipe.yaml is not a recipe" in capsys.readouterr().err
