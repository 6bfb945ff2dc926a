"""What errors of layers cost, and all layers refined together."""

import copy

import pytest
import torch
from torch import nn

import phnn
from phnn.conversion.calibration import Calibration
from phnn.conversion.refining import refine
from phnn.conversion.sensitivity import DAMPING, measure_sensitivities
from phnn.conversion.sites import find_sites
from phnn.testing import assert_close


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


class Frozen(Net):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


@pytest.fixture
def x():
    return torch.randn(200, 6) @ torch.randn(6, 12)


def distance(model, other, x):
    with torch.no_grad():
        expected, actual = model(x), other(x)
    return float((actual - expected).square().sum() / (expected - expected.mean(0)).square().sum())


def test_the_metric_of_a_linear_model_is_its_jacobian(x):
    model = nn.Sequential(nn.Linear(12, 6), nn.Linear(6, 3)).eval()
    data = Calibration(model, x.repeat(20, 1))
    found = measure_sensitivities(model, find_sites(model), data)
    W = model[1].weight.detach().double()
    expected = W.mT @ W
    expected = expected / expected.diagonal().mean()
    damped = (expected + DAMPING * torch.eye(6)) / (1 + DAMPING)
    assert (found["0"].metric[0] - damped).abs().max() < 0.3
    # without its outputs the model returns a constant, and loses all of its variation
    assert 0.7 < found["0"].weight < 1.3
    assert 0.7 < found["1"].weight < 1.3


def test_an_output_that_nothing_uses_costs_nothing(x):
    model = nn.Sequential(nn.Linear(12, 6), nn.Linear(6, 3)).eval()
    with torch.no_grad():
        model[1].weight[:, :3] = 0
    metric = measure_sensitivities(model, find_sites(model), Calibration(model, x))["0"].metric[0]
    used = metric.diagonal()
    assert used[:3].max() < 0.2 * used[3:].min()


def test_a_model_without_gradients_has_no_sensitivities(x):
    model = Frozen().eval()
    assert measure_sensitivities(model, find_sites(model), Calibration(model, x)) == {}
    small = phnn.convert(model, budget=0.5, calibration=x)
    assert not any("refined" in text for text in small.phnn_report.done)


def test_refining_comes_nearer_and_says_so(x):
    model = Net().eval()
    rough = phnn.convert(model, budget=0.5, calibration=x, refine=0)
    fine = phnn.convert(model, budget=0.5, calibration=x, refine=20)
    assert distance(model, fine, x) < distance(model, rough, x)
    assert any("refined" in text for text in fine.phnn_report.done)
    assert not any("refined" in text for text in rough.phnn_report.done)
    assert fine.phnn_report.distance < rough.phnn_report.distance


def test_in_place_gives_the_same_model(x):
    model = Net().eval()
    copied = phnn.convert(model, budget=0.5, calibration=x, refine=5)
    changed = phnn.convert(model, budget=0.5, calibration=x, refine=5, inplace=True)
    assert changed is model
    assert_close(changed(x), copied(x))


def test_only_layers_and_norms_change_and_flags_return(x):
    model = Net().eval()
    model.extra = nn.Parameter(torch.ones(3))
    model.requires_grad_(False)
    model.second.requires_grad_(True)
    original = copy.deepcopy(model)
    with torch.no_grad():
        model.second.weight.mul_(0.5)
    data = Calibration(model, x)
    before = model.first.weight.clone()
    found = refine(model, original, ["second"], data, 10)
    assert found is not None
    assert torch.equal(model.first.weight, before)
    assert torch.equal(model.extra, torch.ones(3))
    assert [n for n, p in model.named_parameters() if p.requires_grad] == [
        "second.weight",
        "second.bias",
    ]
    assert all(p.grad is None for p in model.parameters())
    assert not model.training


def test_refining_a_perfect_model_keeps_it(x):
    model = Net().eval()
    same = copy.deepcopy(model)
    assert refine(same, model, ["first", "second"], Calibration(model, x), 2) is None
    assert torch.equal(same(x), model(x))


@pytest.mark.parametrize("passes", [-1, 1.5, "4"])
def test_passes_are_counted(x, passes):
    with pytest.raises((TypeError, ValueError), match="refine"):
        phnn.convert(Net(), budget=0.5, calibration=x, refine=passes)


@pytest.mark.parametrize("step", [0.02, -0.02])
def test_a_refinement_stays_if_the_score_does_not_fall(x, step):
    torch.manual_seed(0)
    model = Net().eval()

    def search(refine):
        scores = [1.0]

        def evaluate(network):  # the refined model is scored just before the other one
            scores.append(scores[-1] + step)
            return scores[-1]

        options = {"evaluate": evaluate, "tolerance": 0.5, "calibration": x}
        return phnn.convert(model, refine=refine, **options)

    refined, plain = search(20), search(0)
    is_refined = any("refined" in text for text in refined.phnn_report.done)
    assert is_refined == (step < 0)
    assert torch.allclose(refined(x), plain(x)) != is_refined
