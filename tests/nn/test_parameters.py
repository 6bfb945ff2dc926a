"""Optimizer groups, and state dicts of the authors' layers."""

import pytest
import torch
from torch import nn

import phnn
from phnn import algebra
from phnn.nn import balance_rates, from_authors
from phnn.testing import assert_close


@pytest.fixture
def model():
    return nn.Sequential(
        phnn.PHConv2d(4, 8, 3, n=2),
        nn.BatchNorm2d(8),
        phnn.PHConv2d(8, 8, 3, algebra=algebra.quaternion, bias=False),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def test_every_parameter_is_in_exactly_one_group(model):
    groups = phnn.param_groups(
        model, weight_decay=5e-4, algebra_lr=0.01, algebra_decay=0.0, vector_decay=1e-5
    )
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    options = {group["name"]: group for group in groups}
    assert [id(p) for p in options["algebra"]["params"]] == [id(model[0].A)]
    assert options["algebra"]["lr"] == 0.01
    assert options["algebra"]["weight_decay"] == 0.0
    assert options["weight"]["weight_decay"] == 5e-4
    assert options["vector"]["weight_decay"] == 1e-5
    assert all(p.dim() <= 1 for p in options["vector"]["params"])
    assert "lr" not in options["weight"]
    torch.optim.SGD(groups, lr=0.1, momentum=0.9).step()


def test_by_default_everything_decays(model):
    groups = phnn.param_groups(model, weight_decay=5e-4)
    assert {group["weight_decay"] for group in groups} == {5e-4}
    assert all("lr" not in group for group in groups)


def test_scales_multiply_the_rate(model):
    groups = phnn.param_groups(
        model, lr=0.1, filter_scale=0.5, algebra_scale=16, norm_bias_scale=64, weight_decay=1e-3
    )
    rates = {group["name"]: group["lr"] for group in groups}
    assert rates == {"norm_bias": 6.4, "algebra": 1.6, "filter": 0.05, "weight": 0.1, "vector": 0.1}
    members = {group["name"]: [id(p) for p in group["params"]] for group in groups}
    assert members["norm_bias"] == [id(model[1].bias)]
    assert members["filter"] == [id(model[0].F), id(model[2].F)]
    assert members["weight"] == [id(model[4].weight)]
    grouped = [name for names in members.values() for name in names]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    torch.optim.SGD(groups, lr=0.1, momentum=0.9).step()


@pytest.mark.parametrize("options", [{"filter_scale": 0.5}, {"balance": "sgd"}])
def test_scales_need_a_rate(model, options):
    with pytest.raises(ValueError, match="give lr=, the learning rate that balance and the scales"):
        phnn.param_groups(model, **options)


def test_balanced_rates_reach_the_groups(model):
    groups = phnn.param_groups(model, lr=0.1, balance="sgd", algebra_scale=2)
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert len(rates) == len(list(model.parameters()))
    first, fixed = balance_rates(model[0]), balance_rates(model[2])
    assert rates[id(model[0].A)] == pytest.approx(0.2 * first["A"])
    assert rates[id(model[0].F)] == pytest.approx(0.1 * first["F"])
    assert rates[id(model[2].F)] == pytest.approx(0.1 * fixed["F"])
    assert "A" not in fixed
    assert rates[id(model[4].weight)] == 0.1
    torch.optim.SGD(groups, lr=0.1).step()


CASES = {
    "n=4": (phnn.PHConv2d, (48, 96, 3), {"n": 4}),
    "n=2, transposed": (phnn.PHConvTranspose2d, (96, 48, 3), {"n": 2}),
    "groups": (phnn.PHConv2d, (96, 96, 3), {"n": 4, "groups": 2}),
    "quaternion": (phnn.PHLinear, (256, 128), {"algebra": "quaternion"}),
    "terms": (phnn.PHLinear, (128, 128), {"n": 4, "terms": 9}),
    "low rank": (phnn.PHConv2d, (64, 64, 3), {"n": (64, 1), "terms": 12}),
    "rank 7": (phnn.PHConv2d, (96, 96, 3), {"n": 4, "rank": 7}),
    "rank 4": (phnn.PHConv2d, (96, 96, 3), {"n": 4, "rank": 4}),
}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("case", CASES)
def test_balanced_steps_change_everything_by_the_same_fraction(case, optimizer):
    torch.manual_seed(0)
    kind, sizes, options = CASES[case]
    layer = kind(*sizes, bias=False, **options)
    rates = balance_rates(layer, optimizer)
    assert sorted(rates) == sorted(name for name, _ in layer.named_parameters())
    squares = dict.fromkeys(("weight", *rates), 0.0)
    for _ in range(20):  # A has few entries
        weight = layer.weight.detach().requires_grad_()
        noise = torch.randn_like(weight)
        layer.zero_grad()
        (layer.weight * noise).sum().backward()
        for name, size, step in [
            ("weight", weight, noise),
            *((name, p, rates[name] * p.grad) for name, p in layer.named_parameters()),
        ]:
            step = step if optimizer == "sgd" else step.sign() * rates.get(name, 1.0)
            squares[name] += (step.norm() / size.norm()).item() ** 2 / 20
    for name, square in squares.items():
        assert square**0.5 == pytest.approx(squares["weight"] ** 0.5, rel=0.15), name


def test_unknown_optimizers_cannot_be_balanced():
    with pytest.raises(ValueError, match='optimizer must be "sgd" or "adam", got \'muon\''):
        balance_rates(phnn.PHLinear(4, 4, n=2), "muon")


def test_frozen_parameters_and_empty_groups_are_left_out():
    plain = nn.Linear(2, 2, bias=False)
    assert [group["name"] for group in phnn.param_groups(plain)] == ["weight"]
    layer = phnn.PHLinear(4, 4, n=2)
    layer.A.requires_grad_(False)
    assert [group["name"] for group in phnn.param_groups(layer)] == ["weight", "vector"]


def test_the_factors_of_an_algebra_are_its_group():
    layer = phnn.PHLinear(8, 8, n=4, rank=7)
    options = {group["name"]: group["params"] for group in phnn.param_groups(layer)}
    assert [id(p) for p in options["algebra"]] == [id(p) for p in (layer.U, layer.V, layer.W)]
    assert [id(p) for p in options["weight"]] == [id(layer.F)]


def authors_conv(x, A, F):
    """The textbook forward: one Kronecker product per term, no bias."""
    n, out, inn = F.shape[:3]
    H = torch.zeros(n * out, n * inn, *F.shape[3:])
    for i in range(n):
        for k in range(F.shape[3]):
            for m in range(F.shape[4]):
                H[:, :, k, m] += torch.kron(A[i], F[i, :, :, k, m].contiguous())
    return nn.functional.conv2d(x, H, padding=1)


@pytest.mark.parametrize("names", [("A", "F"), ("a", "s")])
def test_their_convolution_computes_the_same_here(names):
    A, F = torch.randn(3, 3, 3), torch.randn(3, 4, 2, 3, 3)
    theirs = {f"net.0.{names[0]}": A, f"net.0.{names[1]}": F, "net.0.bias": torch.full((12,), 9.0)}
    layer = nn.Module()
    layer.net = nn.Sequential(phnn.PHConv2d(6, 12, 3, padding=1, bias=False, n=3))
    layer.load_state_dict(from_authors(theirs))
    x = torch.randn(2, 6, 5, 5)
    assert_close(layer.net(x), authors_conv(x, A, F))


@pytest.mark.parametrize("names", [("A", "S"), ("a", "s")])
def test_their_linear_layer_keeps_its_bias(names):
    A, S, bias = torch.randn(2, 2, 2), torch.randn(2, 3, 4), torch.randn(6)
    layer = phnn.PHLinear(8, 6, n=2)
    layer.load_state_dict(from_authors({names[0]: A, names[1]: S, "bias": bias}))
    x = torch.randn(5, 8)
    H = sum(torch.kron(A[i], S[i]) for i in range(2))
    assert_close(layer(x), x @ H.T + bias)


def test_other_entries_pass_unchanged():
    theirs = {"fc.a": torch.ones(1, 1, 1), "fc.s": torch.ones(1, 2, 2), "bn.weight": torch.ones(3)}
    assert set(from_authors(theirs)) == {"fc.A", "fc.F", "bn.weight"}
