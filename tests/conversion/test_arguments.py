"""What convert, to_dense and accelerate say of things that are no model to convert."""

import pytest
import torch
from torch import nn

import phnn
from phnn.acceleration import Acceleration
from phnn.conversion import Report


@pytest.mark.parametrize(
    "function",
    [lambda x: phnn.convert(x, n=2), phnn.to_dense, lambda x: phnn.accelerate(x, torch.ones(1, 4))],
)
def test_a_string_is_not_a_model(function):
    with pytest.raises(TypeError, match=r"the string 'resnet18'; build a network with phnn"):
        function("resnet18")
    with pytest.raises(TypeError, match="the class ReLU; make an object of it first"):
        function(nn.ReLU)


def test_a_model_that_is_all_ph():
    model = nn.Sequential(phnn.PHLinear(32, 32, n=2), nn.ReLU(), phnn.PHLinear(32, 32, n=2))
    message = r"2 layers are PH layers already \(0, 2\).*phnn.to_dense\(model\)"
    with pytest.raises(ValueError, match=message):
        phnn.convert(model, n=4)
    assert isinstance(phnn.convert(phnn.to_dense(model), n=4)[0], phnn.PHLinear)


def test_reports_with_their_types():
    model = nn.Sequential(nn.Linear(16, 16)).eval()
    small = phnn.convert(model, n=2)
    assert Report.of(small).parameters_after < Report.of(small).parameters_before
    fast = phnn.accelerate(small, torch.ones(1, 16), rounds=1)
    assert type(fast) is nn.Sequential
    assert Acceleration.of(fast).runtime == "torch"
    with pytest.raises(TypeError, match="the Sequential has no report of convert"):
        Report.of(fast)
    with pytest.raises(TypeError, match="no report of accelerate; its phnn_report is NoneType"):
        Acceleration.of(model)
