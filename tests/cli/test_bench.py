"""The command that times a network."""

import csv

import pytest
import torch

from phnn import cli

NETWORK = """
from torch import nn

def make():
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )

def nothing():
    return None
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mynetworks.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys, *argv):
    code = cli.main([str(argument) for argument in argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_bench(here, capsys):
    table = here / "bench.csv"
    argv = ["bench", "mynetworks:make", "--shape", "2,4,4,4", "--n", "2", "--rounds", "1"]
    code, out, _ = call(capsys, *argv, "-o", table)
    assert code == 0
    head, *rows = out.splitlines()[:6]
    assert head.split()[:3] == ["form", "parameters", "multiplications"]
    forms = ["real", "real, accelerated", "assembled", "folded", "accelerated"]
    assert [row.partition("  ")[0] for row in rows] == forms
    with table.open() as file:
        found = {row["form"]: row for row in csv.DictReader(file)}
    assert list(found) == forms
    assert found["real"]["inference_ratio"] == "1.0"
    # 4 · 8 · 9 · 16 positions and 128 · 4, for two images
    assert found["real"]["multiplications"] == found["folded"]["multiplications"] == "10240"
    assert int(found["assembled"]["parameters"]) < int(found["real"]["parameters"])
    assert float(found["assembled"]["training_ratio"]) > 0
    assert found["folded"]["training_seconds"] == ""


def test_bench_without_training(here, capsys):
    argv = ["bench", "mynetworks:make", "--shape", "1,4,4,4", "--n", "2", "--rounds", "1"]
    code, out, _ = call(capsys, *argv, "--no-training")
    assert code == 0
    assert len(out.splitlines()[1].split()) == 5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["resnet21"], "unknown model 'resnet21'"),
        (["mynetworks:none"], "mynetworks:none does not name a function"),
        (["nowhere:make"], "nowhere:make does not name a function: No module named 'nowhere'"),
        (["mynetworks:nothing"], "mynetworks:nothing returns NoneType"),
        (["mynetworks:make", "--shape", "2,x"], "shape='2,x' must be sizes"),
        (["mynetworks:make", "--out", "."], ". is a folder; name a file for the table"),
        (["mynetworks:make", "--shape", "1,4,4,4", "--rounds", "0"], "rounds is at least 1"),
    ],
)
def test_bench_bad_input(here, capsys, argv, message):
    code, _, err = call(capsys, "bench", *argv)
    assert code == cli.USER_ERROR
    assert message in err


def test_bench_compiled(here, capsys, monkeypatch):
    compiled = []
    compile = torch.compile

    def keep(function, **options):
        compiled.append(function)
        return compile(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", keep)
    argv = ["bench", "mynetworks:make", "--shape", "2,4,4,4", "--n", "2", "--rounds", "1"]
    code, out, _ = call(capsys, *argv, "--compile")
    assert code == 0
    assert "input 2,4,4,4, compiled, " in out
    assert len(compiled) > 5  # the models, and the layers before they are chosen
