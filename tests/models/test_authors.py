"""Checkpoints of the authors' networks, written here as their code names things."""

import re

import pytest
import torch
from torch import nn

from phnn.models import create_model, load_authors
from phnn.testing import assert_close


def theirs(model, learned):
    """Return the state of a network as the authors' code would hold it, from ours."""
    state = {}
    for key, value in model.state_dict().items():
        prefix, _, name = key.rpartition(".")
        layer = model.get_submodule(prefix)
        if name == "A" and learned:
            state[f"{prefix}.a"] = value
        elif name == "F" and learned:
            state[f"{prefix}.s"] = value.unflatten(0, (layer.A.shape[0], -1))
            if value.dim() == 4:
                state[f"{prefix}.bias"] = torch.randn(layer.out_channels)  # never applied
        elif name == "F":
            for part, letter in zip(value.chunk(4), "rijk", strict=True):
                state[f"{prefix}.{letter}_weight"] = part.mT if part.dim() == 2 else part
        elif name != "A":
            state[key] = value
    return state


def rename(state, pairs):
    for pattern, new in pairs:
        state = {re.sub(pattern, new, key): value for key, value in state.items()}
    return state


def shake(model):
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
    return model.eval()


RESNET = [(r"downsample", "shortcut"), (r"^fc\.", "linear.")]


@pytest.mark.parametrize("version", [{}, {"n": 3}, {"algebra": "quaternion"}], ids=str)
def test_resnets(version):
    options = {"widths": [12, 12, 12, 12], **version}
    model = shake(create_model("resnet18", **options))
    state = rename(theirs(model, "n" in version), RESNET)
    empty = create_model("resnet18", **options).eval()
    taken = load_authors(empty, {"state_dict": {f"module.{k}": v for k, v in state.items()}})
    x = torch.randn(2, 3, 32, 32)
    assert_close(empty(x), model(x))
    convolutions = 20
    assert taken.unapplied == (convolutions if "n" in version else 0)
    assert taken.left == ()
    assert taken.taken + taken.unapplied == len(state)
    assert str(taken).startswith(f"took {taken.taken} of {len(state)} entries")


@pytest.mark.parametrize("version", [{}, {"n": 2}, {"algebra": "quaternion"}], ids=str)
def test_vggs_with_their_biases(version):
    options = {"widths": [8] * 6, **version}
    model = shake(create_model("vgg11", **options))
    state = rename(
        theirs(model, "n" in version),
        [(r"^fc\.", "classifier.6."), (r"^features\.(\d+)", lambda m: f"features.{int(m[1]) - 1}")],
    )
    count = 0
    if "n" not in version:  # real and quaternion convolutions apply theirs
        for key in list(state):
            if key.endswith("running_mean"):
                conv = f"features.{int(key.split('.')[1]) - 1}"
                bias = torch.randn(8)
                state[f"{conv}.bias"], state[key] = bias, state[key] + bias
                count += 1
    empty = create_model("vgg11", **options).eval()
    taken = load_authors(empty, state)
    x = torch.randn(2, 3, 32, 32)
    assert_close(empty(x), model(x))
    assert taken.folded == count
    assert taken.taken + taken.folded + taken.unapplied == len(state)


def test_sednet():
    options = {"in_channels": 4, "n": 4, "widths": [8] * 4, "hidden": 4, "dense": 8}
    model = shake(create_model("sednet", **options))
    state = rename(
        theirs(model, learned=True),
        [
            (r"^cnn\.(\d+)", lambda m: f"cnn.{(int(m[1]) - 1) // 5}.{(int(m[1]) - 1) % 5}"),
            (r"^gru\.", "rnn."),
            (r"^tail\.", "sed."),
            (r"^fc\.", "sed.7."),
        ],
    )
    empty = create_model("sednet", **options).eval()
    taken = load_authors(empty, {**state, "doa.0.weight": torch.ones(1)})
    assert taken.left == ("doa.0.weight",)
    assert taken.unapplied == 4
    x = torch.randn(1, 4, 256, 16)
    assert_close(empty(x), model(x))


def test_a_convolution_of_theirs_with_its_bias_and_norm():
    """An independent network: the bias moves into the norm, and nothing else changes."""
    convolution, norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8).eval()
    norm.running_mean.normal_()
    model = create_model("vgg11", widths=[8] * 6).eval()
    state = rename(
        theirs(model, learned=False),
        [(r"^fc\.", "classifier.6."), (r"^features\.(\d+)", lambda m: f"features.{int(m[1]) - 1}")],
    )
    state |= {f"features.0.{k}": v for k, v in convolution.state_dict().items()}
    state |= {f"features.1.{k}": v for k, v in norm.state_dict().items()}
    load_authors(model, state)
    x = torch.randn(2, 3, 8, 8)
    assert_close(model.features[:3](x), norm(convolution(x)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"linear.weight": torch.ones(100, 12), "linear.bias": torch.ones(100)}, "num_classes=100"),
        ({"layer1.0.conv1.s": torch.ones(2, 3, 3, 3, 3)}, r"layer1.0.conv1.F has the shape"),
        ({"layer1.0.bn1.weight": None}, "lacks 1 entries of resnet18, the first is layer1.0.bn1.w"),
        ({"epoch": 3}, "epoch is no tensor"),
        ({"bn1.weight": torch.full((12,), torch.nan)}, "not finite"),
    ],
)
def test_other_networks_are_refused(change, message):
    model = create_model("resnet18", n=2, widths=[12, 12, 12, 12])
    state = rename(theirs(model, learned=True), RESNET)
    state = {k: v for k, v in {**state, **change}.items() if v is not None}
    before = model.fc.weight.clone()
    with pytest.raises(ValueError, match=message):
        load_authors(model, state)
    assert torch.equal(model.fc.weight, before)


def test_networks_that_they_do_not_have():
    with pytest.raises(ValueError, match="the authors have no CifarNet; they have ResNet, VGG"):
        load_authors(create_model("cifarnet"), {"a": torch.ones(1)})
