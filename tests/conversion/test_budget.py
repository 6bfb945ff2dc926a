"""Budgets, bad input and the report."""

import math

import pytest
import torch
from torch import nn

from helpers.converting import (
    assert_untouched,
    decaying,
    parameters,
    sizes,
    small_network,
    snapshot,
)
from phnn.algebra import quaternion
from phnn.conversion import convert, to_dense


@pytest.mark.parametrize("budget", [0.2, 0.3, 0.5, 0.8])
def test_a_budget_is_kept_and_used(budget):
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32, 10)
    )
    small = convert(model, budget=budget)
    assert (budget - 0.05) * parameters(model) < parameters(small) <= budget * parameters(model)
    assert small.phnn_report.parameters_after == parameters(small)


def passed(report):
    """−log of the energy that passes all layers: what the budget's choice minimizes."""
    return -sum(math.log(1 - (entry.error or 0.0) ** 2) for entry in report.entries)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_budget_beats_uniform_n_of_the_same_size(n):
    model = nn.Sequential(
        decaying(nn.Conv2d(16, 32, 3), 0.5),
        decaying(nn.Conv2d(32, 64, 3), 1.0),
        decaying(nn.Conv2d(64, 64, 1), 2.0),
        decaying(nn.Linear(64, 32), 0.2),
    )
    uniform = convert(model, n=n)
    chosen = convert(model, budget=uniform.phnn_report.parameters_after / parameters(model))
    assert parameters(chosen) <= parameters(uniform)
    assert passed(chosen.phnn_report) < 0.9 * passed(uniform.phnn_report)
    squares = [
        sum((entry.error or 0.0) ** 2 for entry in converted.phnn_report.entries)
        for converted in (chosen, uniform)
    ]
    assert squares[0] < squares[1]


def test_a_budget_leaves_dense_what_is_worth_its_place():
    hard, easy = nn.Linear(16, 16), nn.Linear(128, 128)
    with torch.no_grad():
        easy.weight.copy_(torch.kron(torch.randn(8, 8), torch.randn(16, 16)))
    small = convert(nn.Sequential(hard, easy), budget=0.5)
    assert [entry.changed for entry in small.phnn_report.entries] == [False, True]
    assert small.phnn_report.entries[0].note.startswith("kept")
    assert small.phnn_report.entries[1].error < 1e-6


def test_a_budget_with_zero_weights_and_equal_offers():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        nn.init.zeros_(layer.weight)
    small = convert(model, budget=0.6)
    assert parameters(small) <= 0.6 * parameters(model)
    assert all(entry.error == 0 for entry in small.phnn_report.entries)


class SeesFewChannels(nn.Module):
    """Its linear layers have like weights, but the second one's input lives in one component."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, x, y=None):
        mask = torch.zeros(16)
        mask[:1] = 1
        return self.first(x) + self.second(input=x * mask)


def output_error(model, small, x):
    return (model(x) - small(x)).norm().item()


def test_calibration_measures_errors_on_the_outputs():
    model = SeesFewChannels().train()
    x = torch.randn(64, 16)
    before = snapshot(model)
    by_weight = convert(model, budget=0.5)
    by_output = convert(model, budget=0.5, calibration=x)
    assert_untouched(model, before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert parameters(by_output) <= 0.5 * parameters(model)
    assert output_error(model, by_output, x) < output_error(model, by_weight, x)
    several = convert(model, budget=0.5, calibration=(x, x))
    assert sizes(several) == sizes(by_output)


def test_calibration_that_fails_or_misses_a_layer_leaves_the_model_alone():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.used(x)

    model = Unused()
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"does not run on the calibration data \(\(2, 7\)\)"):
        convert(model, budget=0.5, calibration=torch.randn(2, 7), inplace=True)
    with pytest.raises(TypeError, match=r"holds a ndarray without tensors; torch.from_numpy"):
        convert(model, budget=0.5, calibration=torch.randn(2, 8).numpy(), inplace=True)
    with pytest.raises(ValueError, match=r"\(2, 8\) are on the meta device"):
        convert(model, budget=0.5, calibration=torch.randn(2, 8, device="meta"), inplace=True)
    assert_untouched(model, before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    small = convert(model, budget=0.6, calibration=torch.randn(8, 8))
    entries = {entry.name: entry for entry in small.phnn_report.entries}
    assert "not reached by the calibration data: fitted to its weight" in entries["unused"].note
    weight = model.unused.weight.detach()
    missed = (to_dense(small).unused.weight.detach() - weight).norm()
    assert entries["unused"].error == pytest.approx(float(missed / weight.norm()), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "give n=, algebra=, budget="),
        ({"n": 0}, ValueError, "0: n must be an integer of at least 1, got n=0"),
        ({"n": 2.0}, ValueError, "0: n must be an integer of at least 1, got n=2.0"),
        ({"n": {"5": -1}}, ValueError, "5: n must be an integer of at least 1, got n=-1"),
        ({"n": 7}, ValueError, "no layer can be converted: 0: n=7 does not divide the 8 and 4"),
        ({"n": 2, "terms": 5}, ValueError, "0: terms must be between 1 and n²=4, got terms=5"),
        ({"n": 2, "algebra": quaternion}, ValueError, "quaternion has n=4, .* n=2"),
        ({"algebra": quaternion, "terms": 2}, ValueError, "4 terms; leave terms=2 out"),
        ({"algebra": quaternion, "indivisible": "shrink"}, ValueError, "only a learned algebra"),
        ({"n": 2, "learn_algebra": False}, ValueError, "needs an algebra="),
        ({"budget": 0.5, "n": 2}, ValueError, "budget=0.5 chooses n and terms itself"),
        ({"budget": 0.5, "terms": 2}, ValueError, "budget=0.5 chooses n and terms itself"),
        ({"budget": 0.5, "algebra": quaternion}, ValueError, "leave n, terms and algebra out"),
        ({"budget": 0}, ValueError, r"in \(0, 1\), got 0"),
        ({"budget": 1.5}, ValueError, r"in \(0, 1\), got 1.5"),
        (
            {"budget": 0.01},
            ValueError,
            r"budget=0.01 of 1,764 parameters cannot be met: .* leave \d+, \d+\.\d%",
        ),
        ({"budget": 0.5, "exclude": "*"}, ValueError, "no layer can be converted: 0: excluded"),
        ({"compute": 0.5}, ValueError, "compute counts .* give calibration= as well"),
        ({"n": 2, "tolerance": 0.1}, ValueError, "tolerance=0.1 limits the score of evaluate="),
        ({"n": 2, "start": "best"}, ValueError, "start must be one of nearest, random; got 'best'"),
        ({"n": 2, "indivisible": "pad"}, ValueError, "skip, raise, shrink; got 'pad'"),
        ({"n": 2, "include": "conv*"}, ValueError, r"include: 'conv\*' matches none .* 0, 3, 5"),
        ({"n": 2, "include": ["0", "9"]}, ValueError, "include: '9' matches none of the layers"),
        ({"n": 2, "exclude": "layer4"}, ValueError, "exclude: 'layer4' matches none"),
        ({"n": {"0": 2, "x": 4}}, ValueError, "n: 'x' matches none of the layers 0, 3, 5"),
        ({"n": 2, "include": lambda *_: False}, ValueError, "no layer .*: 0: not included"),
        ({"n": lambda *_: None}, ValueError, "no layer can be converted: 0: no n was given"),
    ],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_message_and_the_model_is_untouched(options, error, message, inplace):
    model = small_network()
    before = snapshot(model)
    with pytest.raises(error, match=message):
        convert(model, **options, inplace=inplace)
    assert_untouched(model, before)


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential(), nn.LayerNorm(4)])
def test_a_model_without_layers(model):
    with pytest.raises(ValueError, match="the model has no layer with a PH twin"):
        convert(model, n=2)


@pytest.mark.parametrize("options", [{"n": 2}, {"budget": 0.5}, {"budget": 0.5, "start": "random"}])
def test_weights_without_numbers(options):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, device="meta"))
    with pytest.raises(ValueError, match=r"1 is on the meta device.*start='random'"):
        convert(model, **options, inplace=True)
    assert type(model[0]) is nn.Linear
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    nn.init.constant_(model[1].weight, math.nan)
    with pytest.raises(ValueError, match="the weight of 1 holds values that are NaN or infinite"):
        convert(model, **options, inplace=True)
    assert type(model[0]) is nn.Linear


def test_the_report_prints_as_a_table():
    model = nn.Sequential(nn.Linear(8, 4), nn.Conv1d(3, 8, 3), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.copy_(torch.kron(torch.ones(2, 2), torch.ones(2, 4)))
        model[2].weight.copy_(torch.tensor([4.0, 0, 0, 3]).diag())  # two terms, of norms 4 and 3
    report = convert(model, n=2, terms=1).phnn_report
    assert len(report.changed) == 2
    lines = [line.split("  ") for line in str(report).splitlines()]
    table = [[cell.strip() for cell in line if cell] for line in lines]
    assert table == [
        ["136 → 108 parameters (79.4%); file 0.000544 → 0.000432 MB"],
        ["2 of 3 layers replaced"],
        ["58.8% of the parameters untouched: 1.weight 72, 1.bias 8"],
        ["layer", "before", "after", "parameters", "error", "note"],
        ["0", "Linear", "PHLinear n=2 terms=1", "36 → 16", "0.000"],
        ["1", "Conv1d", "80", "n=2 does not divide the 8 and 3 channels"],
        ["2", "Linear", "PHLinear n=2 terms=1", "20 → 12", "0.600"],
    ]
    starts = [line.find("0.") for line in str(report).splitlines()[2:]]
    assert starts[2] == starts[4]  # the columns are aligned
