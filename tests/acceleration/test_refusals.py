"""What acceleration refuses, and how outputs are compared."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import phnn
from helpers.accelerating import PLAN, X, entry_of, network
from phnn import PHConv2d, PHLinear
from phnn.acceleration import candidates
from phnn.decompose import bilinear


def _with_mixing(found, U):
    return replace(found, factors=found.factors._replace(U=U))


def test_wrong_factors_are_refused(monkeypatch):
    def wrong(algebras, rank, seconds):
        return [_with_mixing(found, 2 * found.factors.U) for found in map(bilinear, algebras)]

    model = network()
    monkeypatch.setattr(candidates, "bilinear_many", wrong)
    with pytest.raises(RuntimeError, match=r"differs from the model by [\d.]+ in outputs of up to"):
        phnn.accelerate(model, X, plan=PLAN)
    phnn.accelerate(model, X, plan=PLAN, tol=1e3)


@torch.no_grad()
def test_a_layer_of_zeros_has_no_error():
    model = nn.Sequential(PHConv2d(8, 8, 3, n=1, bias=False), nn.Sigmoid()).eval()
    model[0].F.zero_()
    fast = phnn.accelerate(model, torch.randn(1, 8, 6, 6), plan={"0": entry_of("winograd_2")})
    assert fast.phnn_report.entries[0].error == 0.0


def test_the_tolerance_is_the_users():
    model = network()
    with pytest.raises(RuntimeError, match="more than tol=1e-20 allows"):
        phnn.accelerate(model, X, plan=PLAN, tol=1e-20)


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = PHLinear(8, 16, n=2), nn.BatchNorm1d(16)

    def forward(self, x):
        return torch.fft.rfft(self.norm(self.layer(x)))


class Labels(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)

    def forward(self, x):
        return self.layer(x).argmax(-1)


@torch.no_grad()
def test_complex_outputs_are_compared():
    model = Spectrum()
    model(torch.randn(20, 16, 8))
    with pytest.raises(RuntimeError, match="fuse=False"):  # as many positions as features
        phnn.accelerate(model.eval(), torch.randn(3, 16, 8), rounds=1)
    fast = phnn.accelerate(model, torch.randn(3, 8), rounds=1)
    assert 0 <= fast.phnn_report.difference < 1e-5


def test_labels_alone_are_compared(monkeypatch):
    def wrong(algebras, rank, seconds):
        found = [bilinear(algebra) for algebra in algebras]
        return [_with_mixing(one, torch.randn_like(one.factors.U)) for one in found]

    torch.manual_seed(0)
    model, x = Labels().eval(), torch.randn(100, 8)
    rank = bilinear(model.layer.A.detach()).rank
    plan = {"layer": entry_of("cp_rows", rank)}
    assert phnn.accelerate(model, x, plan=plan).phnn_report.difference <= 0.01
    monkeypatch.setattr(candidates, "bilinear_many", wrong)
    with pytest.raises(RuntimeError, match=r"returns other labels than the model for \d+%"):
        phnn.accelerate(model, x, plan=plan)


@dataclass
class Pair:
    features: torch.Tensor
    logits: torch.Tensor


class ReturnsPair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)

    def forward(self, x):
        return Pair(x, self.layer(x))


def test_outputs_may_be_dataclasses():
    fast = phnn.accelerate(ReturnsPair().eval(), torch.randn(4, 8), rounds=1)
    assert fast.phnn_report.difference < 1e-5


def test_no_rounds():
    with pytest.raises(ValueError, match="rounds must be at least 1, got rounds=0"):
        phnn.accelerate(network(), X, rounds=0)


def test_training_mode():
    model = network().train()
    with pytest.raises(ValueError, match=r"the model is in training mode; call model\.eval\(\)"):
        phnn.accelerate(model, X)
    model.eval()
    model[1].train()
    with pytest.raises(ValueError, match="its module '1' is in training mode"):
        phnn.accelerate(model, X)


def test_no_ph_layers():
    with pytest.raises(ValueError, match="Linear has no PH layers to accelerate"):
        phnn.accelerate(nn.Linear(2, 2).eval(), torch.randn(1, 2))


def test_no_example():
    with pytest.raises(TypeError, match=r"example_input must be a tensor, a tuple .* got str"):
        phnn.accelerate(network(), "image")


class ReturnsNothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)

    def forward(self, x):
        self.layer(x)


def test_outputs_that_cannot_be_compared(monkeypatch):
    monkeypatch.setattr(
        "phnn.acceleration.accelerating.decompose_algebras", None
    )  # before any work
    with pytest.raises(ValueError, match="returns NoneType, which holds no tensors"):
        phnn.accelerate(ReturnsNothing().eval(), torch.randn(1, 8), rounds=1)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)

    def forward(self, x):
        return self.layer(x).masked_fill(x > 0, -torch.inf)


def test_outputs_may_be_infinite_in_the_same_positions():
    fast = phnn.accelerate(Masked().eval(), torch.randn(4, 8), rounds=1)
    assert fast.phnn_report.difference < 1e-5


def test_what_cannot_be_copied_is_told_before_the_work(monkeypatch):
    model = nn.Sequential(PHLinear(8, 8, n=2)).eval()
    model.extra = torch.ones(2, requires_grad=True) * 2  # torch copies no such tensor
    monkeypatch.setattr("phnn.acceleration.accelerating.decompose_algebras", None)
    with pytest.raises(ValueError, match=r"cannot be copied.*to_dense can change it in place"):
        phnn.accelerate(model, torch.randn(3, 8))


def test_compiled_models_are_refused():
    compiled = torch.compile(network(), backend="eager")
    with pytest.raises(ValueError, match=r"is compiled.*accelerate it first"):
        phnn.accelerate(compiled, X)
    model = network()
    model.compile(backend="eager")
    with pytest.raises(ValueError, match=r"is compiled.*accelerate it first"):
        phnn.accelerate(model, X)
