"""The command that times a network."""

import csv

import pytest
import torch


def test_bench(here, call):
    table = here / "bench.csv"
    argv = ["bench", "mynetworks:make", "--shape", "2,4,4,4", "--n", "2", "--rounds", "1"]
    code, out, _ = call(*argv, "-o", table)
    assert code == 0
    head, *rows = out.splitlines()[:6]
    assert head.split()[:4] == ["form", "ms", "/", "real"]
    assert all(len(line) <= 80 for line in (head, *rows))
    forms = ["real", "real, accelerated", "assembled", "folded", "accelerated"]
    assert [row.removeprefix("torch").strip().partition("  ")[0] for row in rows] == forms
    assert "fastest here: " in out
    with table.open() as file:
        found = {row["form"]: row for row in csv.DictReader(file)}
    assert list(found) == forms
    assert found["real"]["inference_ratio"] == "1.0"
    # 4 · 8 · 9 · 16 positions and 128 · 4, for two images
    assert found["real"]["multiplications"] == found["folded"]["multiplications"] == "10240"
    assert int(found["assembled"]["parameters"]) < int(found["real"]["parameters"])
    assert float(found["assembled"]["training_ratio"]) > 0
    assert found["folded"]["training_seconds"] == ""


def test_bench_without_training(here, call):
    argv = ["bench", "mynetworks:make", "--shape", "1,4,4,4", "--n", "2", "--rounds", "1"]
    code, out, _ = call(*argv, "--no-training")
    assert code == 0
    assert len(out.splitlines()[1].split()) == 7


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["mynetworks:make", "--out", "."], ". is a folder; name a file"),
        (["mynetworks:make", "--rounds", "0"], "--rounds: '0' is not a whole number"),
        (["mynetworks:make", "--threads", "0"], "--threads: '0' is not a whole number"),
        (["mynetworks:make"], "does not take an input of shape 16,3,32,32"),
        (["mynetworks:make", "--runtime", "torch,tpu"], "runtime must be one of torch, compile, "),
        (["mynetworks:make", "--device", "tpu"], "device must be cpu or cuda; got 'tpu'"),
    ],
)
def test_bench_bad_input(here, refuse, argv, message):
    assert message in refuse("bench", *argv)


@pytest.mark.slow
def test_bench_compiled(here, call, monkeypatch):
    compiled = []
    compile = torch.compile

    def keep(function, **options):
        compiled.append(function)
        return compile(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", keep)
    argv = ["bench", "mynetworks:make", "--shape", "2,4,4,4", "--n", "2", "--rounds", "1"]
    code, out, _ = call(*argv, "--runtime", "compile")
    assert code == 0
    assert f"input 2,4,4,4, compile {torch.__version__}, " in out
    assert len(compiled) > 5  # the models, and the layers before they are chosen


@pytest.mark.slow
def test_bench_in_several_runtimes(here, call):
    pytest.importorskip("onnxruntime")
    table = here / "bench.csv"
    argv = ["bench", "mynetworks:make", "--shape", "2,4,4,4", "--n", "2", "--rounds", "1"]
    code, out, _ = call(*argv, "--runtime", "torch,onnxruntime", "-o", table)
    assert code == 0
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["runtime"] for row in rows] == 5 * ["torch"] + 5 * ["onnxruntime"]
    real, *_, fast = rows[5:]
    assert real["inference_ratio"] == "1.0"
    assert real["training_seconds"] == ""  # there is no training
    assert int(fast["bytes"]) < 0.7 * int(real["bytes"])
    assert "onnxruntime" in out.splitlines()[-2]


def test_bench_without_a_gpu(here, refuse, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "--device cuda: torch finds no GPU here" in refuse(
        "bench", "mynetworks:make", "--device", "cuda"
    )
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    argv = ["bench", "mynetworks:make", "--device", "cuda", "--runtime", "torch,onnxruntime"]
    assert "is for torch and compile; onnxruntime run on the CPU" in refuse(*argv)
