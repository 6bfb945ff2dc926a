"""The folder of a run: its name, when it goes on, and when there is none."""

import json

import pytest

from helpers.pictures import write_folders
from phnn import cli
from phnn.cli.folders import choose_folder, name_comparison, name_variant
from phnn.lab.packaged import read_recipe
from phnn.lab.recipe import build_recipe, merge
from phnn.lab.runs import Run, describe_network

TINY = """
model: {name: resnet20, widths: [4, 4, 4]}
data: {name: mine, root: images, image_size: 32, batch_size: 8, validation: 0, seed: 0}
trainer: {max_epochs: 1, threads: 1, energy: false, accelerator: cpu, logger: none}
"""


def name(recipe, tmp_path, **overrides):
    tree = read_recipe(recipe)
    built = build_recipe(merge(tree, overrides))
    return choose_folder(tmp_path, recipe, build_recipe(tree), built).name


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, "digits-real-seed0"),
        ({"model": {"n": 4}, "seed": 3}, "digits-n=4-seed3"),
        ({"model": {"algebra": "clifford(0, 2)"}}, "digits-clifford-0-2--seed0"),
        ({"data": {"name": "flowers", "root": "a/flowers"}}, "digits-real-flowers-seed0"),
        ({"data": {"root": "a/photos"}}, "digits-real-photos-seed0"),
        ({"optimizer": {"lr": 0.01}}, "digits-real-lr=0.01-seed0"),
        ({"data": {"augment": ["crop", "flip"]}}, "digits-real-augment=crop+flip-seed0"),
        ({"trainer": {"max_epochs": 7}}, "digits-real-seed0"),  # goes on where the shorter ended
        ({"trainer": {"threads": 1}}, "digits-real-seed0"),  # changes nothing that is computed
        ({"start": "small.safetensors"}, "digits-from-small-seed0"),
        ({"start": "a.safetensors", "model": {"n": 2}}, "digits-n=2-from-a-seed0"),
        ({"start": "a.safetensors", "distill": "runs/b"}, "digits-from-a-distilled-seed0"),
    ],
)
def test_names_tell_what_differs(tmp_path, overrides, expected):
    assert name("digits", tmp_path, **overrides) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, "digits"),
        ({"data": {"root": "a/photos"}}, "digits"),  # where the data are changes nothing
        ({"data": {"name": "flowers", "root": "a/flowers"}}, "digits-flowers"),
        ({"trainer": {"max_epochs": 7, "threads": 1}}, "digits-max_epochs=7"),
    ],
)
def test_names_of_comparisons(overrides, expected):
    tree = read_recipe("digits")
    built = build_recipe(merge(tree, overrides))
    assert name_comparison("digits", build_recipe(tree), built) == expected


def test_a_long_name_ends_in_a_hash(tmp_path):
    found = {
        name("digits", tmp_path, data={"name": f"{'x' * 200}{i}", "root": "."}) for i in (1, 2)
    }
    assert len(found) == 2
    assert all(len(each) < 140 for each in found)


def test_a_converted_network_is_not_called_real():
    recipe = build_recipe({"model": {"name": "resnet20"}, "start": "small.safetensors"})
    assert name_variant(recipe) == "from-small"
    assert describe_network(recipe) == "resnet20 from small"


@pytest.fixture
def train(tmp_path, monkeypatch, capfd):
    """Trains in the current folder; returns exit code, stdout and stderr."""
    monkeypatch.setenv("PHNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    write_folders(tmp_path / "images", count=4)

    def run(*argv):
        code = cli.main(["train", "tiny.yaml", *map(str, argv)])
        return code, *capfd.readouterr()

    return run


def test_a_run_shows_itself_and_goes_on(train, tmp_path):
    code, out, err = train()
    assert code == 0
    lines = err.splitlines()
    assert lines[0].startswith("network  resnet20 real, ")
    assert lines[1].startswith("data     mine: 8 training, ")
    assert lines[2] == "folder   runs/tiny-real-seed0"
    assert any(line.startswith("epoch 1/1  loss ") for line in lines)
    assert out.startswith("test accuracy ")
    assert "trained 1 epoch in " in out
    assert ", tested in " in out
    folder = tmp_path / "runs" / "tiny-real-seed0"
    first = json.loads((folder / "result.json").read_text())

    code, out, err = train("--trainer.max_epochs", 2)
    assert code == 0
    assert "resumed from epoch 1" in err
    assert "epoch 2/2" in err
    assert "epoch 1/2" not in err
    longer = json.loads((folder / "result.json").read_text())
    assert (first["epochs"], longer["epochs"]) == (1, 2)
    assert Run.open(folder).began == {"trainer": {"max_epochs": 1}}
    assert len((folder / "metrics.csv").read_text().splitlines()) == 3

    code, out, _ = train("--trainer.max_epochs", 2)
    assert "this run had ended before" in out
    code, _, err = train("--trainer.max_epochs", 1)  # shorter: a run of its own
    assert code == 0
    assert "folder   runs/tiny-real-seed0-epochs=1" in err

    (folder / "checkpoints" / "last.ckpt").unlink()
    code, _, err = train("--trainer.max_epochs", 3)
    assert code == cli.USER_ERROR
    assert "cannot go on for more epochs" in err
    assert json.loads((folder / "result.json").read_text()) == longer


def test_what_fails_before_training_leaves_no_folder(train, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = train("--data.root", "empty", "--data.name", "mine")
    assert code == cli.USER_ERROR
    assert "Traceback" not in err
    assert not list(tmp_path.glob("runs/*"))
