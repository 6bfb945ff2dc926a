"""The model zoo: every count of the oracle, every behaviour that a PyTorch user expects."""

import copy
import csv
import functools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from phnn import algebra
from phnn.conversion import to_dense
from phnn.models import VGG, CifarNet, Network, ResNet, SEDnet, create_model, list_models
from phnn.nn import PHConv2d, PHLinear
from phnn.testing import assert_close, assert_every_parameter_learns

ORACLE = Path(__file__).parents[1] / "data" / "params.csv"
VERSIONS: dict[str, dict[str, Any]] = {
    "real": {},
    "complex": {"algebra": algebra.complex},
    "quaternion": {"algebra": algebra.quaternion},
    "n=2": {"n": 2},
    "n=3": {"n": 3},
    "n=4": {"n": 4},
}
# one network of each family, small enough to train in a test
SMALL: dict[str, dict[str, Any]] = {
    "resnet20": {"widths": (12, 24, 24)},
    "vgg11": {"widths": (12, 12, 24, 24, 24, 24)},
    "cifarnet": {"widths": (12, 24, 24)},
    "sednet": {"widths": (12, 12, 24, 24), "in_channels": 4, "bins": 128},
    "vit_tiny": {"widths": (24,), "blocks": 2},
}
SMALL_CASES = [
    pytest.param(name, options | version, id=f"{name}-{label}")
    for name, options in SMALL.items()
    for label, version in VERSIONS.items()
]


def has_width_for(name: str, n: int | None) -> bool:
    """Whether n divides the paper's widths of that network."""
    return n != 3 or name not in {"resnet20", "resnet56", "vgg13", "vgg16", "sednet"}


ALL_CASES = [
    pytest.param(name, version, id=f"{name}-{label}")
    for name in list_models()
    if name not in ("fusion", "multiview")  # test_views.py has theirs
    for label, version in VERSIONS.items()
    if has_width_for(name, version.get("n"))
]


def make_input(model: Network, batch: int = 2) -> torch.Tensor:
    config = model.config
    if config["name"] == "sednet":
        return torch.rand(batch, config["in_channels"], config["bins"], 16)
    return torch.rand(batch, config["in_channels"], 32, 32)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def oracle() -> list[Any]:
    with ORACLE.open() as file:
        return [pytest.param(row, id="-".join([*row.values()][:5])) for row in csv.DictReader(file)]


def arguments(row: dict[str, str]) -> dict[str, Any]:
    """The arguments of `create_model`, but for the classes, for a row of the oracle."""
    *prefix, name = row["model"].removesuffix(" (s)").split()
    learned = name.startswith("PH")
    options: dict[str, Any] = {"name": name.removeprefix("PH").lower()}
    if learned:
        options["n"] = int(row["n"])
    elif prefix:
        options["algebra"] = prefix[0].lower()
    if options["name"] == "sednet":
        options["in_channels"] = int(row["in_channels"])  # elsewhere PadChannels adds the fourth
    if options["name"] == "resnet152" and not learned:
        options["block"] = "basic"  # as the paper's figures demand
    if "VGG" in name and row["table"].startswith("tab:img_class_app"):
        options["classifier"] = "real"
    if row["model"].endswith("(s)"):
        options["width_multiplier"] = 0.5
    if row["table"] == "tab:img_img":
        options["stem"] = "imagenet"  # the paper names none
    return options


@functools.cache  # rows that differ in the number of classes share a network
def build_on_meta(**options: Any) -> Network:
    with torch.device("meta"):
        return create_model(**options)


@pytest.mark.parametrize("row", oracle())
def test_oracle_to_the_integer(row: dict[str, str]) -> None:
    model = build_on_meta(**arguments(row))
    model.reset_classifier(int(row["classes"]))
    counted = model.cnn if isinstance(model, SEDnet) else model
    assert count(counted) == int(row["without_conv_b"])
    assert count(model) == int(row["whole_network"])
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d | PHConv2d)]
    assert convs[0].in_channels == int(row["in_channels"])
    if int(row["conv_b"]):
        assert int(row["official"]) - count(counted) == sum(conv.out_channels for conv in convs)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"widths": "standard", "stem": "imagenet"}, 25_557_032),  # torchvision's resnet50
        ({"widths": "standard"}, 25_549_352),
        ({"stem": "imagenet"}, 24_589_636),
        ({"stem": "imagenet", "n": 3}, 9_608_899),
    ],
)
def test_imagenet_variants(options: dict[str, Any], expected: int) -> None:
    with torch.device("meta"):
        assert count(create_model("resnet50", num_classes=1000, **options)) == expected


def check_behaviour(model: Network) -> None:
    """Forward, backward, deepcopy, pickle, channels_last and float64."""
    input = make_input(model)
    output = model(input)
    output.square().mean().backward()
    learned = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    missing = [name for name, p in learned if p.grad is None]
    assert not missing
    model.eval()
    with torch.no_grad():
        expected = model(input)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(twin(input), expected)
        double = copy.deepcopy(model).double()(input.double())
        assert double.dtype == torch.float64
        torch.testing.assert_close(double.float(), expected, rtol=1e-3, atol=1e-4)
        last = model.to(memory_format=torch.channels_last)
        channels_last = last(input.to(memory_format=torch.channels_last))
        torch.testing.assert_close(channels_last, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "options"), SMALL_CASES)
def test_behaviour(name: str, options: dict[str, Any]) -> None:
    check_behaviour(create_model(name, **options))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), ALL_CASES)
def test_behaviour_of_all(name: str, options: dict[str, Any]) -> None:
    check_behaviour(create_model(name, **options))


@pytest.mark.parametrize(("name", "options"), SMALL_CASES)
def test_config_builds_the_model_again(name: str, options: dict[str, Any]) -> None:
    model = create_model(name, **options, num_classes=5)
    config = json.loads(json.dumps(model.config))
    assert config == model.config
    with torch.device("meta"):
        twin = create_model(**config)
    assert twin.config == model.config
    assert str(twin) == str(model)
    assert twin.state_dict().keys() == model.state_dict().keys()
    assert all(p.is_meta for p in twin.parameters())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.filterwarnings("ignore:.*_flat_weights.*:UserWarning")  # torch's own GRU
def test_export(name: str) -> None:
    model = create_model(name, n=4, **SMALL[name]).eval()
    input = make_input(model)
    program = torch.export.export(model, (input,))
    torch.testing.assert_close(program.module()(input), model(input))


@pytest.mark.parametrize("name", SMALL)
def test_compile(name: str) -> None:
    model = create_model(name, n=4, **SMALL[name]).eval()
    input = make_input(model)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(input), model(input))


def test_names() -> None:
    assert list_models("resnet*") == [f"resnet{d}" for d in (18, 20, 34, 50, 56, 101, 110, 152)]
    assert list_models("vgg*") == ["vgg11", "vgg13", "vgg16", "vgg19"]
    assert list_models("no such") == []
    assert "sednet" in list_models()


@pytest.mark.parametrize("name", SMALL)
def test_classifier(name: str) -> None:
    model = create_model(name, n=4, num_classes=0, **SMALL[name]).eval()
    input = make_input(model)
    features = model(input)
    assert features.shape[-1] == model.num_features
    torch.testing.assert_close(model.forward_head(model.forward_features(input)), features)
    model.double().reset_classifier(7)
    outputs = 7 * model.config.get("overlaps", 1)
    assert model(input.double()).shape == (*features.shape[:-1], outputs)
    assert model.config["num_classes"] == 7
    model.reset_classifier(0)
    assert isinstance(model.fc, nn.Identity)
    with pytest.raises(ValueError, match="num_classes=-1"):
        model.reset_classifier(-1)


@pytest.mark.parametrize("version", VERSIONS)
def test_zeros_in_front(version: str) -> None:
    model = ResNet(20, widths=(12, 24, 24), **VERSIONS[version])
    padded = version not in ("real", "n=3")
    assert ("PadChannels(in_channels=3, out_channels=4)" in repr(model)) is padded
    image = torch.rand(1, 3, 8, 8)
    out = model.pad(image)
    assert torch.equal(out[:, -3:], image)
    assert out.shape[1] == 3 + padded
    assert not out[:, :-3].any()


def test_padded_spectrogram() -> None:
    model = SEDnet(n=4, in_channels=3, bins=128)
    assert "PadChannels(in_channels=3, out_channels=4)" in repr(model)
    with pytest.raises(
        ValueError, match=r"expected 3 channels, got input of shape \(1, 4, 128, 8\)"
    ):
        model(torch.rand(1, 4, 128, 8))


def test_no_bias_before_a_batch_norm() -> None:
    for name, options in SMALL.items():
        for version in VERSIONS.values():
            model = create_model(name, **options, **version)
            convs = [m for m in model.modules() if isinstance(m, nn.Conv2d | PHConv2d)]
            assert convs
            assert all(conv.bias is None for conv in convs)


@pytest.mark.parametrize("size", [17, 32, 64])
@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_resnet_takes_any_size(size: int, stem: str) -> None:
    model = ResNet(18, n=2, widths=(8, 8, 8, 8), stem=stem).eval()
    assert model(torch.rand(1, 3, size, size)).shape == (1, 10)


def test_sednet_shapes() -> None:
    model = SEDnet(n=16, in_channels=16, num_classes=5, overlaps=2, widths=(16, 16, 16, 16)).eval()
    probabilities = model(torch.rand(1, 16, 256, 24))
    assert probabilities.shape == (1, 3, 10)
    assert ((probabilities > 0) & (probabilities < 1)).all()
    logits = SEDnet(**{k: v for k, v in model.config.items() if k != "name"} | {"logits": True})
    logits.load_state_dict(model.state_dict())
    input = torch.rand(1, 16, 256, 24)
    torch.testing.assert_close(logits.eval()(input).sigmoid(), model(input))


def test_vgg_classifier() -> None:
    kinds = {
        kind: [type(m) for m in VGG(11, n=4, classifier=kind, **SMALL["vgg11"]).classifier]
        for kind in ("ph", "real")
    }
    assert PHLinear in kinds["ph"]
    assert nn.Linear not in kinds["ph"]
    assert nn.Linear in kinds["real"]
    assert PHLinear not in kinds["real"]


def test_whitened_patches_are_uncorrelated() -> None:
    torch.manual_seed(0)
    smooth = nn.functional.avg_pool2d(torch.randn(64, 3, 20, 20), 5, stride=1)  # neighbours agree
    images = torch.einsum("cd,bdhw->bchw", torch.randn(3, 3), smooth) + 0.5
    model = CifarNet(widths=(8, 8, 8))
    model.whiten(images)
    assert not list(model.whitening.parameters())
    values = model.whitening(images).movedim(1, -1).flatten(0, -2)
    assert_close(values[:, 12:], -values[:, :12])
    covariance = values[:, :12].T.cov()
    assert (covariance - covariance.diag().diag()).abs().max() < 1e-3
    # directions of less variance than the floor are left small
    assert covariance.diag().max() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("version", VERSIONS)
def test_identity_init_passes_channels_on(version: str) -> None:
    convs = [
        module
        for module in CifarNet(widths=(48, 48, 24), init="identity", **VERSIONS[version]).modules()
        if isinstance(module, nn.Conv2d | PHConv2d)
    ]
    n = 1 if version == "real" else getattr(convs[0], "n")  # noqa: B009
    for conv, channels in zip(convs, (24, 48, 48, 48, 24, 24), strict=True):
        input = torch.randn(2, conv.in_channels, 4, 4)
        kept, wanted = (each.unflatten(1, (n, -1)) for each in (conv(input), input))
        assert_close(kept[:, :, : channels // n], wanted[:, :, : channels // n])


def test_zero_init_residual() -> None:
    model = ResNet(50, n=2, widths=(4, 4, 4, 4), zero_init_residual=True)
    block = model.get_submodule("layer1.1").eval()
    input = torch.rand(1, 16, 4, 4)
    torch.testing.assert_close(block(input), input)


def test_terms_reach_the_layers() -> None:
    model = ResNet(20, n=4, terms=2)
    assert {m.terms for m in model.modules() if isinstance(m, PHConv2d)} == {2}


@pytest.mark.parametrize("name", ["resnet20", "vgg11", "sednet"])
def test_rank_reaches_the_layers(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name, n=4, rank=4)
        again = create_model(**model.config)
    layers = [m for m in again.modules() if isinstance(m, PHConv2d | PHLinear)]
    assert {(m.rank, m.terms) for m in layers} == {(4, 4)}
    assert any(isinstance(m, PHLinear) for m in layers) == (name == "vgg11")
    assert not any(key.endswith(".A") for key in again.state_dict())


def test_a_network_of_limited_rank_learns_and_folds() -> None:
    model = create_model("vgg16", n=4, rank=4, width_multiplier=1 / 8)
    input = torch.rand(2, 3, 32, 32)
    assert_every_parameter_learns(model, input)
    model.eval()
    assert_close(to_dense(model)(input), model(input))


@pytest.mark.parametrize("multiplier", [math.inf, math.nan, 0.0, -1.0, 1e-3, 1e300])
@pytest.mark.parametrize("name", ["vgg11", "fusion"])
def test_widths_without_a_meaning(name: str, multiplier: float) -> None:
    with pytest.raises(ValueError, match=r"width_multiplier=.* must be|channels; they must be"):
        create_model(name, width_multiplier=multiplier)


def test_authors_init() -> None:
    torch.manual_seed(0)
    conv = VGG(11, init="authors").features[1]
    assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 24)), rel=0.1)
    conv = ResNet(20, init="authors").get_submodule("layer3.0.conv2")
    assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 64)), rel=0.05)
    learned = VGG(11, n=4, init="authors").features[-4]
    assert learned.A.abs().max().item() <= math.sqrt(3) / 4
    bound = math.sqrt(6 / (9 * (648 / 4) ** 2 + 9 * 648))
    assert learned.F.abs().max().item() == pytest.approx(bound, rel=0.01)
    for init in ("authors", "polar"):  # a quaternion's components: n s² = 2 / (fan_in + fan_out)
        fixed = ResNet(20, algebra="quaternion", init=init).get_submodule("layer3.0.conv2")
        assert fixed.F.std().item() == pytest.approx(math.sqrt(2 / (4 * 9 * 32)), rel=0.1)


@pytest.mark.parametrize("init", ["default", "authors", "polar", "identity"])
@pytest.mark.parametrize("version", [{"n": 4}, {"algebra": "quaternion"}])
def test_init_on_meta(init: str, version: dict[str, Any]) -> None:
    with torch.device("meta"):
        assert create_model("vgg11", init=init, **version).fc.weight.is_meta


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("resnt20", {}, ValueError, r"unknown model 'resnt20'; did you mean resnet20"),
        (
            "resnet20",
            {"widht": 1},
            TypeError,
            r"resnet20 has no option 'widht'; did you mean widths",
        ),
        ("resnet18", {"n": 8}, ValueError, r"n=8 must divide the width 60 of layer1.* 56 and 64"),
        ("resnet20", {"n": 32}, ValueError, r"width 16 of layer1; the nearest width is 32"),
        ("vgg16", {"n": 3}, ValueError, r"n=3 must divide the width 64 of stage 1.* 63 and 66"),
        (
            "vgg16",
            {"n": 2, "widths": (2, 2, 2, 2, 2, 5)},
            ValueError,
            r"width 5 of the classifier; the nearest widths are 4 and 6",
        ),
        ("sednet", {"n": 3}, ValueError, r"width 64 of convolution 1.* 63 and 66"),
        (
            "resnet18",
            {"block": "bottelneck"},
            ValueError,
            r"unknown block 'bottelneck'.* bottleneck\?",
        ),
        (
            "resnet18",
            {"stem": "large"},
            ValueError,
            r"unknown stem 'large'; known are small, imagenet",
        ),
        ("resnet18", {"widths": (8, 8)}, ValueError, r"widths=\(8, 8\) must hold 4 numbers"),
        (
            "resnet18",
            {"widths": "papr"},
            ValueError,
            r"unknown widths 'papr'; did you mean paper",
        ),
        ("vgg11", {"classifier": "PH"}, ValueError, r"unknown classifier 'PH'.* ph, real"),
        (
            "resnet18",
            {"init": "author"},
            ValueError,
            r"unknown init 'author'; did you mean authors",
        ),
        ("resnet18", {"init": "polar"}, ValueError, r"give n= or algebra="),
        ("resnet18", {"terms": 2}, ValueError, r"terms=2.* give n= as well"),
        ("resnet18", {"rank": 2}, ValueError, r"rank=2.* give n= as well"),
        ("resnet18", {"algebra": "quaternion", "rank": 8}, ValueError, r"quaternion is fixed"),
        ("resnet18", {"n": 4, "rank": 4, "init": "authors"}, ValueError, r"got rank=4"),
        ("resnet18", {"n": 0}, ValueError, r"n=0 must be an integer of at least 1"),
        ("resnet18", {"n": 2, "algebra": "quaternion"}, ValueError, r"quaternion has n=4"),
        ("resnet18", {"algebra": "quaternoin"}, ValueError, r"did you mean quaternion"),
        ("resnet18", {"num_classes": -1}, ValueError, r"num_classes=-1 must be at least 0"),
        ("resnet18", {"in_channels": 0}, ValueError, r"in_channels=0 must be at least 1"),
        ("sednet", {"bins": 100}, ValueError, r"bins=100 must be at least 128"),
    ],
)
def test_bad_input(
    name: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with torch.device("meta"), pytest.raises(error, match=message):
        create_model(name, **options)


def test_bad_depth() -> None:
    with pytest.raises(ValueError, match=r"unknown depth 19; did you mean 18\? known are 18, 34"):
        ResNet(19)


def test_the_tail_of_a_sednet_starts_without_fading():
    torch.manual_seed(0)
    ours = SEDnet(in_channels=4, hidden=16, dense=64, logits=True).eval()
    theirs = SEDnet(in_channels=4, hidden=16, dense=64, logits=True, init="authors").eval()
    states = torch.randn(1, 50, 32)
    assert ours.tail(states).std() > 5 * theirs.tail(states).std()
    for gate in ours.gru.weight_hh_l0.chunk(3):
        torch.testing.assert_close(gate @ gate.mT, torch.eye(16))
