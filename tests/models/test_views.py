"""Networks for views and signals, the vision transformer, and the recurrent option of SEDnet."""

from typing import Any

import pytest
import torch
from torch import nn

import phnn
from phnn.models import FusionNet, MultiViewNet, SEDnet, ViT, create_model
from phnn.nn import PHGRU, PHConv1d, PHConv2d, PHLinear, PHMultiheadAttention
from phnn.testing import assert_close, assert_round_trips

NARROW = {"widths": (8, 8, 16, 16, 16, 16)}
LITTLE: dict[str, Any] = {"signals": (4, 1, 3), "widths": (8, 5, 9), "hidden": 16}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def all_n(model: nn.Module, kind: type) -> list[Any]:
    return [m.n for m in model.modules() if isinstance(m, kind)]


@pytest.mark.parametrize("encoder", ["shared", "separate"])
@pytest.mark.parametrize("trunk", ["shared", "separate", "joint"])
def test_views_are_components(encoder: str, trunk: str) -> None:
    model = MultiViewNet(n=2, encoder=encoder, trunk=trunk, num_classes=3, **NARROW).eval()
    x = torch.rand(3, 4, 32, 32)
    assert model(x).shape == (3, 2, 3)
    assert len(model.encoders) == (1 if encoder == "shared" else 2)
    assert set(all_n(model.encoders, PHConv2d)) == {2}
    assert set(all_n(model.trunks, PHConv2d)) == {4 if trunk == "joint" else 2}
    first = model.encoders[0][1]
    assert (first.in_channels, first.F.shape) == (2, (8, 1, 3, 3))
    other = torch.cat([x[:, :2], torch.rand(3, 2, 32, 32)], 1)
    moved = (model(other) != model(x)).any(dim=(0, 2))
    assert moved[1]
    assert moved[0] == (trunk == "joint")  # one side does not see the other in its own trunk
    config = create_model(**model.config).config
    assert config == model.config
    assert_round_trips(model, x)


def test_shapes_of_the_breast_networks() -> None:
    with torch.device("meta"):
        shared = MultiViewNet(n=2)
        joint = MultiViewNet(n=2, trunk="joint")
        encoder = MultiViewNet(n=2, encoder="shared", trunk="separate", encoder_stages=4)
        alone = MultiViewNet(n=2, sides=1)
        x = torch.rand(2, 4, 64, 64)
        for model in (shared, joint, encoder):
            assert model(x).shape == (2, 2, 1)
            assert model.num_features == 1024
        assert shared.trunks[0][0].conv1.in_channels == 128
        assert joint.trunks[0][0].conv1.in_channels == 256
        assert encoder.trunks[1][0].conv1.in_channels == 512
        assert alone(x[:, :2]).shape == (2, 1)
        real = MultiViewNet()
        # PHResNet18 with n = 2 is the zoo's ResNet, without the two stages of bottlenecks
        resnet = create_model("resnet18", n=2, in_channels=2, widths="standard", num_classes=1)
    assert count(shared) < 0.52 * count(real)
    body = sum(count(stage) for stage in alone.trunks[0][:4]) + count(alone.encoders)
    assert body == count(resnet) - count(resnet.fc)


def test_a_multi_view_network_starts_with_its_shortcuts() -> None:
    model = MultiViewNet(n=2, zero_init_residual=True, **NARROW).eval()
    block, x = model.encoders[0][-3], torch.rand(1, 8, 8, 8)
    assert torch.equal(block(x), x)


def test_channels_of_signals_are_components() -> None:
    model = FusionNet(n=4, **LITTLE)
    signals = [torch.randn(5, 4, 50), torch.randn(5, 1, 80), torch.randn(5, 3, 60)]
    assert model(*signals).shape == (5, 3)
    assert all_n(model.encoders, PHConv1d) == [4, 4, 1, 1, 3, 3]
    assert all_n(model.head, PHLinear) == [4, 4, 4]
    model(*signals).square().sum().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert not missing
    assert_round_trips(model.eval(), *signals)
    real = FusionNet(**LITTLE)
    assert not all_n(real, PHLinear | PHConv1d)
    fixed = FusionNet(algebra="quaternion", **LITTLE)
    assert {layer.algebra.name for layer in fixed.head if isinstance(layer, PHLinear)} == {
        "quaternion"
    }
    features = model(*signals)
    model.reset_classifier(0)
    assert features.shape == (5, 3)
    assert model(*signals).shape == (5, 4)


def test_shapes_of_the_emotion_network() -> None:
    with torch.device("meta"):
        model = FusionNet(n=4)
        signals = [torch.rand(2, c, t) for c, t in ((4, 600), (1, 1280), (10, 1280), (3, 1280))]
        assert model.forward_features(*signals).shape == (2, 3452)
        assert model(*signals).shape == (2, 3)
        assert create_model(**model.config).config == model.config
        assert count(model) < 0.3 * count(FusionNet())


@pytest.mark.parametrize(
    ("size", "patch", "tokens"), [(32, None, 64), (224, None, 196), (64, 16, 16)]
)
def test_vision_transformer(size: int, patch: int | None, tokens: int) -> None:
    versions = ({}, {"n": 4}, {"algebra": "quaternion"}, {"n": 3})
    with torch.device("meta"):
        models = [ViT(image_size=size, patch_size=patch, **version) for version in versions]
        for model in models:
            assert model.positions[0, 0].numel() == tokens
            assert model(torch.rand(2, 3, size, size)).shape == (2, 10)
    real, learned, fixed, third = (count(model) for model in models)
    assert real / 4 < learned < 0.30 * real
    assert fixed < learned < third < real
    attention = [m for m in models[1].modules() if isinstance(m, PHMultiheadAttention)]
    assert len(attention) == 12


def test_a_recurrent_network_can_be_hypercomplex() -> None:
    options: dict[str, Any] = {"widths": (8, 8, 16, 16), "in_channels": 4, "hidden": 16}
    real, hyper = SEDnet(n=4, **options), SEDnet(n=4, recurrent="ph", **options)
    assert isinstance(real.gru, nn.GRU)
    assert isinstance(hyper.gru, PHGRU)
    assert hyper.gru.structure.n == 4
    assert count(hyper.gru) < 0.4 * count(real.gru)
    x = torch.rand(2, 4, 256, 32)
    assert hyper(x).shape == real(x).shape
    for gate in hyper.gru.weight_hh_l0.chunk(3):
        assert (torch.linalg.svdvals(gate) - 1).abs().max() < 0.3
    assert not hyper.gru.bias_ih_l0.any()
    ratio = hyper.gru.weight_ih_l0.std() / real.gru.weight_ih_l0.std()
    assert abs(ratio.item() - 1) < 0.2
    assert create_model(**hyper.config).config["recurrent"] == "ph"
    old = {key: value for key, value in real.config.items() if key != "recurrent"}
    assert create_model(**old).config == real.config  # files from before have no such option


def test_networks_are_saved_and_loaded(tmp_path: Any) -> None:
    signals = [torch.randn(5, 4, 50), torch.randn(5, 1, 80), torch.randn(5, 3, 60)]
    cases = [
        (MultiViewNet(n=2, trunk="joint", **NARROW), [torch.rand(2, 4, 32, 32)]),
        (FusionNet(n=4, **LITTLE), signals),
        (ViT(n=4, widths=(24,), blocks=1), [torch.rand(2, 3, 32, 32)]),
        (
            SEDnet(n=4, recurrent="ph", widths=(8, 8, 8, 8), hidden=8, dense=8, bins=128),
            [torch.rand(1, 8, 128, 16)],
        ),
    ]
    for model, inputs in cases:
        path = phnn.save(model.eval(), tmp_path / f"{model.config['name']}.safetensors")
        assert torch.equal(phnn.load(path)(*inputs), model(*inputs))


def test_a_residual_starts_as_its_shortcut() -> None:
    branch = nn.Sequential(PHConv2d(8, 8, 3, padding=1, n=4), nn.ReLU())
    block = phnn.ZeroResidual(branch)
    x = torch.randn(2, 8, 5, 5)
    assert torch.equal(block(x), x)
    optimizer = torch.optim.SGD(phnn.param_groups(block), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        block(x).square().sum().backward()
        optimizer.step()
    assert all(p.grad.any() for p in block.parameters())
    assert_close(block(x), x + block.alpha * branch(x))
    changed = phnn.ZeroResidual(PHLinear(8, 4, n=4), PHLinear(8, 4, n=2))
    assert torch.equal(changed(x[:, :, 0, 0]), changed.shortcut(x[:, :, 0, 0]))
    assert_round_trips(changed, x[:, :, 0, 0])
    changed.reset_parameters()
    assert changed.alpha == 0
    half = phnn.ZeroResidual(nn.Identity(), dtype=torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: MultiViewNet(n=2, encoder="twice"), ValueError, "encoder.*shared.*separate"),
        (lambda: MultiViewNet(n=2, sides=0), ValueError, "sides=0 must be at least 1"),
        (lambda: MultiViewNet(n=2, encoder_stages=6), ValueError, "encoder_stages=6 .* 1 to 5"),
        (
            lambda: MultiViewNet(algebra="complex", trunk="joint"),
            ValueError,
            "2 · 2 components, for which the algebra complex does not serve; give n=",
        ),
        (
            lambda: MultiViewNet(n=2, trunk="joint", widths=(8, 8, 18, 16, 16, 16)),
            ValueError,
            "n=4 must divide the width 18 of stage 3",
        ),
        (
            lambda: MultiViewNet(n=2, **NARROW)(torch.rand(1, 2, 32, 32)),
            ValueError,
            r"2 sides · 2 channels.*got input of shape \(1, 2, 32, 32\)",
        ),
        (lambda: FusionNet(n=4, signals=(4, 3)), ValueError, r"one number for each signal"),
        (
            lambda: FusionNet(n=4, signals=(4, 3), widths=(8, 8)),
            ValueError,
            "n=3 must divide the width 8 of signal 2",
        ),
        (
            lambda: FusionNet(n=4, signals=(4, 3), widths=(8, 9)),
            ValueError,
            "n=4 must divide the width 34 of the joined features",
        ),
        (
            lambda: FusionNet(n=4, **LITTLE)(torch.rand(1, 4, 50)),
            ValueError,
            r"expected 3 signals .* of \[4, 1, 3\] channels, got shapes \[\(1, 4, 50\)\]",
        ),
        (
            lambda: create_model("fusion", in_channels=3),
            TypeError,
            "fusion has no option 'in_channels'",
        ),
        (lambda: ViT(n=5), ValueError, "n=5 must divide the width 192 of the tokens"),
        (lambda: ViT(heads=5), ValueError, "heads=5 must divide the width 192"),
        (lambda: ViT(image_size=30), ValueError, "patch_size=4 must divide image_size=30"),
        (
            lambda: ViT(blocks=1)(torch.rand(1, 3, 64, 64)),
            ValueError,
            r"images of 32×32 pixels, got input of shape \(1, 3, 64, 64\)",
        ),
        (lambda: SEDnet(recurrent="ph"), ValueError, "for hypercomplex networks; give n="),
        (
            lambda: SEDnet(n=4, recurrent="ph", hidden=18),
            ValueError,
            "n=4 must divide the width 18 of the GRU",
        ),
        (lambda: SEDnet(n=4, recurrent="lstm"), ValueError, "recurrent.*real.*ph"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
