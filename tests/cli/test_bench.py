"""The command that times a network, and what it is made of."""

import csv

import pytest
import torch
from torch import nn

import phnn
from phnn.acceleration.contest import compete, make_forms
from phnn.runtimes.timing import count_multiplications, interleave, median_ratio


def test_bench(here, call):
    table = here / "bench.csv"
    argv = ["bench", "mynetworks:make", "--shape", "2,4,4,4", "--n", "2", "--rounds", "1"]
    code, out, _ = call(*argv, "-o", table)
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


def test_bench_without_training(here, call):
    argv = ["bench", "mynetworks:make", "--shape", "1,4,4,4", "--n", "2", "--rounds", "1"]
    code, out, _ = call(*argv, "--no-training")
    assert code == 0
    assert len(out.splitlines()[1].split()) == 5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["mynetworks:make", "--out", "."], ". is a folder; name a file"),
        (["mynetworks:make", "--rounds", "0"], "--rounds: '0' is not a whole number"),
        (["mynetworks:make", "--threads", "0"], "--threads: '0' is not a whole number"),
        (["mynetworks:make"], "does not take an input of shape 16,3,32,32"),
    ],
)
def test_bench_bad_input(here, refuse, argv, message):
    assert message in refuse("bench", *argv)


def test_a_model_that_has_ph_layers_is_the_assembled_form():
    model = nn.Sequential(phnn.PHLinear(8, 8, algebra=phnn.algebra.complex))
    forms = make_forms(model, torch.randn(2, 8), n=2, rounds=1)
    assert forms["assembled"] is model
    assert isinstance(forms["real"][0], nn.Linear)


def test_training_leaves_the_mode_and_no_gradients():
    model = nn.Linear(2, 2).eval()
    (result,) = compete({"a": model}, torch.randn(3, 2), ["a"], rounds=1)
    assert result.training > 0
    assert (result.parameters, result.multiplications) == (6, 12)
    assert not model.training
    assert model.weight.grad is None


def test_bench_compiled(here, call, monkeypatch):
    compiled = []
    compile = torch.compile

    def keep(model, **options):
        compiled.append(model)
        return compile(model, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", keep)
    argv = ["bench", "mynetworks:make", "--shape", "2,4,4,4", "--n", "2", "--rounds", "1"]
    code, out, _ = call(*argv, "--compile")
    assert code == 0
    assert "input 2,4,4,4, compiled, " in out
    assert len(compiled) == 5


@pytest.mark.slow
def test_compiled_models_compete():
    activations = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU)
    models = {kind.__name__: nn.Sequential(nn.Linear(2, 2), kind()) for kind in activations}
    config = torch._dynamo.config
    if not hasattr(config, "fail_on_recompile_limit_hit"):
        pytest.skip("this torch does not tell that it leaves models uncompiled")
    with config.patch(fail_on_recompile_limit_hit=True):
        results = compete(models, torch.randn(3, 2), models, rounds=1, compiled=True)
    assert [result.multiplications for result in results] == [12] * 5
    assert all(result.training for result in results)


def test_contenders_take_turns():
    order = []
    times = interleave({name: lambda name=name: order.append(name) for name in "ab"}, 2, warmup=1)
    assert order == list("ababab")
    assert times.keys() == {"a", "b"}


def test_short_calls_are_repeated(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    calls = []
    interleave({"a": lambda: calls.append(1)}, rounds=2, warmup=0, seconds=5)
    assert len(calls) == 5


def test_a_ratio_is_that_of_neighbours(monkeypatch):
    clock = iter([0, 2, 2, 3, 3, 9, 9, 11, 11, 13, 13, 14])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert median_ratio(lambda: None, lambda: None, rounds=3) == 2


def test_multiplications():
    assert count_multiplications(nn.Linear(4, 3), torch.randn(2, 4), torch.randn(4)) == 24 + 12
