"""What conversion asks of a trained network."""

import csv
from dataclasses import replace

import pytest
import torch

import phnn
from helpers.training import rows, run
from phnn import cli
from phnn.lab.conversion import read_inputs, read_training_inputs, validate
from phnn.lab.trained import load_trained


def test_training_inputs(reference, images):
    trained = load_trained(reference)
    batches = read_training_inputs(trained, 7)
    assert sum(map(len, batches)) == 7
    from_files = torch.cat(read_inputs(trained, [images / "train"], 100))
    assert len(from_files) == 24
    for image in torch.cat(batches):  # not augmented: the same numbers as those of the files
        assert (from_files - image).abs().flatten(1).max(1).values.min() < 1e-5
    again, other = (read_inputs(trained, [images / "train"], 3, seed) for seed in (0, 1))
    assert torch.equal(again[0], read_inputs(trained, [images / "train"], 3, 0)[0])
    assert not torch.equal(again[0], other[0])


def test_the_validation_score_is_that_of_the_run(reference):
    trained = load_trained(reference)
    score = validate(trained)
    assert score.name == "validation accuracy"
    assert not score.lower_is_better
    best = max(float(row["val_accuracy"]) for row in rows(reference))
    assert score.evaluate(trained.model) == pytest.approx(best)
    assert score.evaluate(trained.model) == pytest.approx(best)  # nothing is left of the first time
    no_split = replace(trained.recipe, data={**trained.recipe.data, "validation": 0.0})
    with pytest.raises(ValueError, match=r"no validation split .* the test split is not used"):
        validate(replace(trained, recipe=no_split))
    with pytest.raises(ValueError, match=r"nothing says which data .* the folder of its run"):
        validate(replace(trained, recipe=replace(trained.recipe, data={})))


def test_the_command_shrinks_a_run(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(tiny, tmp_path / "real", model={"n": None}, trainer={"max_epochs": 1})
    argv = ["convert", "real", "--calibration", "training", "--tolerance", "1"]
    assert cli.main([*argv, "-o", "small.safetensors", "--curve", "curve.csv"]) == 0
    assert "wrote small.safetensors" in capsys.readouterr().out
    with (tmp_path / "curve.csv").open() as file:
        points = list(csv.DictReader(file))
    assert points[0]["budget"] == "1.0"
    assert all(0 <= float(point["score"]) <= 1 for point in points)
    assert phnn.load("small.safetensors").phnn_metadata == phnn.load("real").phnn_metadata
    assert cli.main([*argv, "-o", "small.safetensors", "--lower-is-better"]) == cli.USER_ERROR
    assert "a higher validation accuracy is better" in capsys.readouterr().err
