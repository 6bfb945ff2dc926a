"""Where models run and are timed."""

import pytest
import torch
from torch import nn

from phnn.analysis.counting import count_multiplications
from phnn.runtimes import RUNTIMES, Eager, find_runtime
from phnn.runtimes.timing import interleave, median_ratio


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


def test_no_rounds():
    with pytest.raises(ValueError, match="rounds must be at least 1, got rounds=0"):
        interleave({"a": list}, rounds=0)


def test_a_ratio_is_that_of_neighbours(monkeypatch):
    clock = iter([0, 2, 2, 3, 3, 9, 9, 11, 11, 13, 13, 14])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert median_ratio(lambda: None, lambda: None, rounds=3) == 2


def test_multiplications():
    assert count_multiplications(nn.Linear(4, 3), torch.randn(2, 4), torch.randn(4)) == 24 + 12


def test_runtimes_by_name():
    assert {name: find_runtime(name).name for name in RUNTIMES} == {n: n for n in RUNTIMES}
    own = Eager()
    assert find_runtime(own) is own
    with pytest.raises(
        ValueError, match=r"one of torch, compile, onnxruntime, openvino; got 'onnx'"
    ):
        find_runtime("onnx")


class Spy(nn.Module):
    """Notes what it is called with, and whether it is recorded."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(2, 2), []

    def forward(self, x, scale=1.0):
        self.seen.append((len(x), scale, torch.is_grad_enabled()))
        return {"y": scale * self.layer(x), "label": x.argmax(-1)}


def test_eager():
    spy, runtime = Spy(), find_runtime("torch")
    run = runtime.prepare(spy, [((torch.ones(3, 2),), {}), ((), {"x": torch.ones(1, 2)})])
    assert spy.seen == []
    run()
    assert spy.seen == [(3, 1.0, False), (1, 1.0, False)]
    step = runtime.prepare_step(spy, ((torch.ones(3, 2),), {"scale": 2.0}))
    step()
    assert spy.seen[-1] == (3, 2.0, True)
    assert spy.layer.weight.grad.any()
    assert runtime.time({1: run, "two": step}, rounds=1).keys() == {1, "two"}


def test_compiled(monkeypatch):
    compile, graphs = torch.compile, []

    def keep(function, **options):
        def backend(graph, _):
            graphs.append(graph)
            return graph

        return compile(function, backend=backend, **options)

    monkeypatch.setattr(torch, "compile", keep)
    runtime = find_runtime("compile")
    models = [nn.Linear(2, 2) for _ in range(12)]
    runs = [runtime.prepare(model, [((torch.ones(3, 2),), {})]) for model in models]
    assert len(graphs) == 12  # all of them, and before they are timed
    runtime.time(dict(enumerate(runs)), rounds=1)
    assert len(graphs) == 12
    models[0].train()
    runtime.prepare_step(models[0], ((torch.ones(3, 2),), {}))()
    assert models[0].weight.grad.any()
