import json

import pytest
import torch
from torch import nn

from phnn import algebra
from phnn.algebra import Algebra
from phnn.conversion import convert
from phnn.conversion.specs import LayerSpec, describe_layers, find_changes, install_layers
from phnn.nn import PHConv2d, PHConvTranspose1d, PHLinear

CROSS = Algebra(
    "cross",
    [
        [[0, 0, 0], [0, 0, -1], [0, 1, 0]],
        [[0, 0, 1], [0, 0, 0], [-1, 0, 0]],
        [[0, -1, 0], [1, 0, 0], [0, 0, 0]],
    ],
    labels=("i", "j", "k"),
)


def build():
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding="valid", padding_mode="reflect"),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(72, 6),
        nn.ConvTranspose1d(6, 6, 2, bias=False),
    )


def as_text(model):
    return {name: str(spec) for name, spec in describe_layers(model).items()}


def shapes(model):
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (PHLinear(8, 8, n=4), "PHLinear n=4"),
        (PHLinear(8, 8, n=4, terms=7), "PHLinear n=4 terms=7"),
        (PHLinear(8, 8, n=4, rank=7), "PHLinear n=4 rank=7"),
        (PHConv2d(8, 8, 1, n=4, rank=3), "PHConv2d n=4 terms=3 rank=3"),
        (
            PHLinear(4, 4, algebra=algebra.complex, learn_algebra=True, rank=3),
            "PHLinear complex rank=3 learned",
        ),
        (PHConv2d(8, 8, 1, algebra=algebra.quaternion), "PHConv2d quaternion"),
        (PHLinear(4, 4, algebra=algebra.dual, learn_algebra=True), "PHLinear dual learned"),
        (PHLinear(8, 8, algebra=algebra.clifford(2)), "PHLinear clifford(2, 0, 0)"),
        (PHConvTranspose1d(6, 6, 2, algebra=CROSS), "PHConvTranspose1d cross"),
    ],
)
def test_a_layer_survives_json(layer, text):
    spec = LayerSpec.of(layer)
    assert str(spec) == text
    read = LayerSpec(**json.loads(json.dumps(spec.to_dict())))
    made = read.make(type(layer), layer.to_dense())
    assert repr(made) == repr(layer)
    assert made.algebra == layer.algebra
    assert made.learns_algebra == layer.learns_algebra
    assert shapes(made) == shapes(layer)


def test_an_unknown_algebra_keeps_its_labels():
    spec = LayerSpec.of(PHLinear(6, 6, algebra=CROSS))
    made = LayerSpec(**json.loads(json.dumps(spec.to_dict()))).make(PHLinear, nn.Linear(6, 6))
    assert made.algebra.labels == ("i", "j", "k")


def test_a_name_that_means_another_algebra_is_not_enough():
    mine = Algebra("complex", algebra.dual.constants)
    spec = LayerSpec.of(PHLinear(4, 4, algebra=mine))
    assert spec.make(PHLinear, nn.Linear(4, 4)).algebra == algebra.dual


def test_trainability_and_mode_are_those_of_the_torch_layer():
    dense = nn.Linear(8, 8).eval()
    dense.weight.requires_grad_(False)
    made = LayerSpec.of(PHLinear(8, 8, n=2)).make(PHLinear, dense)
    flags = {name: parameter.requires_grad for name, parameter in made.named_parameters()}
    assert flags == {"A": False, "F": False, "bias": True}
    assert not made.training


class TestInstalling:
    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_the_original_gets_the_layers_of_the_converted_model(self, device):
        converted = convert(build(), n={"0": 4, "3": 6, "4": 2}, start="random")
        with torch.device(device):
            model = build()
        assert install_layers(model, describe_layers(converted)) is model
        assert as_text(model) == {
            "0": "PHConv2d n=4",
            "3": "PHLinear n=6",
            "4": "PHConvTranspose1d n=2",
        }
        assert repr(model) == repr(converted)
        assert shapes(model) == shapes(converted)
        assert model[0].F.device.type == device

    def test_changes_lead_from_one_model_to_the_other(self):
        old = convert(build(), n={"0": 4, "3": 6}, start="random")
        new = convert(build(), n={"0": 2, "4": 3}, start="random")
        changes = find_changes(old, new)
        assert {name: spec and spec.n for name, spec in changes.items()} == {
            "0": 2,
            "3": None,
            "4": 3,
        }
        install_layers(old, changes)
        assert repr(old) == repr(new)
        assert find_changes(old, new) == {}

    def test_a_folded_layer_keeps_its_weight(self):
        model = nn.Sequential(PHLinear(8, 8, n=4))
        x = torch.randn(2, 8)
        before = model(x)
        install_layers(model, {"0": None})
        assert type(model[0]) is nn.Linear
        assert torch.allclose(model(x), before, atol=1e-6)

    def test_none_leaves_a_torch_layer_alone(self):
        model = build()
        first = model[0]
        assert install_layers(model, {"0": None})[0] is first

    def test_a_shared_module_stays_shared(self):
        def build():
            shared = nn.Linear(4, 4)
            return nn.Sequential(shared, nn.ReLU(), shared)

        layers = describe_layers(convert(build(), n=2))
        assert layers.keys() == {"0", "2"}
        model = install_layers(build(), layers)
        assert model[0] is model[2]
        assert isinstance(model[0], PHLinear)

    def test_a_model_that_is_itself_the_layer(self):
        made = install_layers(nn.Linear(8, 4), describe_layers(PHLinear(8, 4, n=4)))
        assert repr(made) == "PHLinear(in_features=8, out_features=4, bias=True, n=4)"

    def test_subclasses_are_left_to_their_constructor(self):
        class Mine(PHLinear):
            pass

        assert describe_layers(nn.Sequential(Mine(4, 4, n=2))) == {}


class TestBadInput:
    def test_no_such_layer(self):
        with pytest.raises(ValueError, match="no layer '1' with a PH twin"):
            install_layers(build(), {"1": LayerSpec.of(PHLinear(4, 4, n=2))})

    def test_another_kind_of_layer(self):
        with pytest.raises(ValueError, match=r"0: PHLinear cannot replace Conv2d; .* is PHConv2d"):
            install_layers(build(), {"0": LayerSpec.of(PHLinear(4, 4, n=2))})

    def test_a_layer_without_a_twin(self):
        class Mine(nn.Linear):
            pass

        with pytest.raises(ValueError, match=r"0: PHLinear cannot replace Mine; .* subclass"):
            install_layers(nn.Sequential(Mine(4, 4)), {"0": LayerSpec.of(PHLinear(4, 4, n=2))})

    def test_nothing_changes_when_one_layer_does_not_fit(self):
        model = build()
        before = list(model)
        layers = {"0": LayerSpec.of(PHConv2d(4, 4, 1, n=2)), "3": LayerSpec.of(PHLinear(5, 5, n=5))}
        with pytest.raises(ValueError, match="3: n=5 must divide in_features=72"):
            install_layers(model, layers)
        assert list(model) == before
