"""Forward passes that wait at a layer until it has its new weight."""

import threading

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from phnn.conversion import fitting
from phnn.conversion.calibration import Calibration
from phnn.conversion.converting import convert
from phnn.conversion.walking import Walk


class Branches(nn.Module):
    """Layers in an order that depends on the data, one of them used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.left, self.right, self.twice = (nn.Linear(6, 6) for _ in range(4))
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        x = torch.relu(self.first(x))
        order = [self.left, self.right] if x.sum() > self.threshold else [self.right, self.left]
        for layer in order:
            x = x + torch.tanh(layer(x))
        return self.twice(torch.relu(self.twice(x)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Branches().eval()
    model.threshold = 0.0
    return model


@pytest.fixture
def data(model):
    calls = [torch.randn(4, 6) for _ in range(6)]
    model.threshold = torch.stack([model.first(x).relu().sum() for x in calls]).median()
    return Calibration(model, calls)


@pytest.mark.parametrize("has_room", [True, False])
def test_each_layer_is_seen_with_the_weights_before_it(model, data, has_room):
    threads = threading.active_count()
    modules = [model.first, model.left, model.right, model.twice]
    with Walk(model, modules, data) as walk:
        for module in modules:
            once = module is not model.twice
            expected = list(data.inputs(model, module, once))
            found = list(walk.inputs(module, once, has_room))
            assert len(found) == len(data.fitting)
            for some, others in zip(found, expected, strict=True):
                assert_close(some, others)
            with torch.no_grad():
                module.weight.mul_(0.5)
    assert threading.active_count() == threads


def test_a_walk_costs_one_pass(data):
    layers = [nn.Linear(6, 6) for _ in range(5)]
    model = nn.Sequential(*layers).eval()
    calls = []
    layers[0].register_forward_hook(lambda *args: calls.append(1))
    with Walk(model, layers, data) as walk:
        for layer in layers:
            list(walk.inputs(layer, True, True))
    assert len(calls) == len(data.fitting)


def test_what_fails_inside_is_raised_outside(model, data):
    threads = threading.active_count()
    model.left.register_forward_hook(lambda *args: 1 / 0)
    with Walk(model, [model.first, model.twice], data) as walk:
        list(walk.inputs(model.first, True, True))
        with pytest.raises(ValueError, match="does not run on the calibration data"):
            list(walk.inputs(model.twice, True, True))
        assert threading.active_count() > threads
    assert threading.active_count() == threads


def test_passes_keep_autocast_and_torchs_fused_layers_off(data):
    seen = []

    class Watch(nn.Linear):
        def forward(self, x):
            fused = torch.backends.mha.get_fastpath_enabled()
            seen.append((torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), fused))
            return super().forward(x)

    model = nn.Sequential(nn.Linear(6, 6), Watch(6, 6)).eval()
    with torch.autocast("cpu"), Walk(model, list(model), data) as walk:
        list(walk.inputs(model[1], True, True))
    assert seen == []  # they wait before it
    with torch.autocast("cpu"), Walk(model, [model[0], Watch(6, 6)], data) as walk:
        list(walk.inputs(walk.modules[1], True, True))
    assert set(seen) == {(True, False, False)}
    assert torch.backends.mha.get_fastpath_enabled()


def test_fits_do_not_depend_on_the_room(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten()).eval()
    x = torch.randn(20, 3, 8, 8)
    roomy = convert(model, budget=0.6, calibration=x, refine=0)
    monkeypatch.setattr(fitting, "HELD", 0)
    narrow = convert(model, budget=0.6, calibration=x, refine=0)
    assert_close(roomy.state_dict(), narrow.state_dict(), rtol=0, atol=0)
