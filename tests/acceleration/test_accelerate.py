"""Acceleration: equal outputs by fewer multiplications, in torch's own modules."""

import copy
import importlib.util
import io
import json
import pickle
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.flop_counter import FlopCounterMode

import phnn
from phnn import PHConv1d, PHConv2d, PHConv3d, PHConvTranspose1d, PHConvTranspose2d, PHLinear
from phnn.acceleration import places, trials
from phnn.acceleration.plans import FOLDED_TILES, WITHOUT_PRODUCTS, Way
from phnn.decompose import Declined, bilinear
from phnn.forms import layouts
from phnn.forms.winograd import toom_cook
from phnn.functional import Factors
from phnn.runtimes.timing import interleave

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason='ONNX comes with pip install "phnn[export]"',
)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
quaternion, complex_numbers = phnn.algebra.quaternion, phnn.algebra.complex

LAYERS = {
    "conv": (PHConv2d(16, 32, 3, padding=1, n=4), (2, 16, 8, 7)),
    "odd": (PHConv2d(8, 12, 3, padding=(2, 0), algebra=complex_numbers, bias=False), (3, 8, 5, 6)),
    "same": (PHConv2d(8, 4, 3, padding="same", n=2, dtype=torch.float64), (1, 8, 2, 3)),
    "valid": (PHConv2d(8, 4, 3, padding="valid", n=2), (1, 8, 4, 11)),
    "strided": (PHConv2d(16, 32, 3, stride=2, dilation=2, bias=False, n=4), (2, 16, 9, 9)),
    "grouped": (PHConv2d(16, 32, (3, 1), groups=2, n=4), (3, 16, 6, 5)),
    "circular": (PHConv2d(8, 8, 3, padding=1, padding_mode="circular", n=2), (2, 8, 5, 5)),
    "reflect same": (
        PHConv2d(8, 8, 3, padding="same", padding_mode="reflect", n=2),
        (2, 8, 5, 5),
    ),
    "terms": (PHConv2d(8, 12, 3, n=2, terms=3), (2, 8, 5, 5)),
    "one term": (PHConv2d(16, 16, 3, n=4, terms=1), (2, 16, 5, 5)),
    "quaternion": (PHConv2d(8, 8, 3, algebra=quaternion), (2, 8, 5, 5)),
    "pointwise": (PHConv2d(16, 32, 1, n=4), (3, 16, 4, 5)),
    "pointwise strided": (PHConv2d(16, 32, 1, stride=2, groups=2, bias=False, n=4), (3, 16, 5, 6)),
    "pointwise padded": (PHConv2d(8, 8, 1, padding=1, n=2), (2, 8, 3, 3)),
    "pointwise same": (PHConv2d(8, 8, 1, padding="same", n=2), (2, 8, 3, 3)),
    "one batch": (PHConv2d(8, 8, 1, n=2), (1, 8, 3, 3)),
    "1d": (PHConv1d(12, 6, 5, padding=2, n=3), (2, 12, 9)),
    "1d pointwise": (PHConv1d(8, 8, 1, n=2), (2, 8, 9)),
    "3d": (PHConv3d(8, 4, 3, n=2), (2, 8, 4, 4, 3)),
    "transposed": (
        PHConvTranspose2d(8, 16, 3, stride=2, output_padding=1, groups=2, n=2),
        (2, 8, 4, 5),
    ),
    "transposed 1d": (PHConvTranspose1d(8, 8, 1, n=2), (2, 8, 5)),
    "linear": (PHLinear(16, 32, n=4), (5, 16)),
    "linear, no batch": (PHLinear(16, 32, n=4), (16,)),
    "linear, sequence": (PHLinear(16, 8, bias=False, n=4), (2, 3, 16)),
}


def make_factors(layer):
    """Random factors, after which a learned algebra is changed: no search is needed."""
    if not layer.learns_algebra:
        found = bilinear(layer.A)
        return found.factors
    R = layer.terms + 1
    sizes = (layer.terms, layer.n, layer.n)
    found = Factors(*(torch.randn(size, R, dtype=layer.A.dtype) for size in sizes))
    layer.A.data.copy_(found.tensor())
    return found


def bilinear_way(layout):
    return {"choice": "bilinear", "layout": layout, "rank": 3}


FOLDED = {"choice": "folded"}
PLAN = {"2": bilinear_way("grouped"), "5": bilinear_way("samples"), "8": bilinear_way("rows")}


def network():
    """A network in evaluation mode whose norms are not those of a fresh one."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        PHConv2d(8, 16, 3, padding=1, bias=False, algebra=complex_numbers),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        PHConv2d(16, 16, 1, algebra=complex_numbers),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        PHLinear(64, 10, algebra=complex_numbers),
    )
    torch.manual_seed(0)
    model(torch.randn(8, 3, 8, 8))
    return model.eval()


X = torch.randn(2, 3, 8, 8)


def close(actual, expected):
    scale = expected.double().abs().max()
    return (actual.double() - expected.double()).abs().max() <= TOLERANCE[expected.dtype] * scale


# --- layouts --------------------------------------------------------------------------------------


CASES = [(case, is_last) for case in LAYERS for is_last in (False, len(LAYERS[case][1]) == 4)]


@pytest.mark.parametrize(("case", "is_last"), sorted(set(CASES)))
@torch.no_grad()
def test_every_layout_computes_the_layer(case, is_last):
    layer, shape = LAYERS[case]
    x = torch.randn(shape, dtype=layer.F.dtype)
    x = x.to(memory_format=torch.channels_last) if is_last else x
    factors = make_factors(layer)
    expected = layer(x)
    memory_format = torch.channels_last if is_last else torch.contiguous_format
    for layout in layouts.layouts_for(layer, is_last):
        module = layouts.build(layer, factors, layout, is_last)
        actual = module(x)
        assert close(actual, expected), layout
        if "tiles" in layout and is_last:  # there may be gaps where tiles reach beyond the edge
            assert actual.stride(1) == 1, layout
        else:
            assert actual.is_contiguous(memory_format=memory_format), layout
        assert close(module(x.contiguous()), expected), layout
        longer = torch.cat([x, x]) if x.dim() > 1 else x
        assert close(module(longer), layer(longer)), layout
        if x.dim() > 1:
            assert module(x[:0]).shape == layer(x[:0]).shape, layout


@pytest.mark.parametrize("layout", [*WITHOUT_PRODUCTS[1:], *layouts.PRODUCTS])
def test_a_layout_is_made_of_torch_alone(layout):
    cases = (layer for layer, _ in LAYERS.values() if layout in layouts.layouts_for(layer))
    layer = next(cases)
    module = layouts.build(layer, make_factors(layer), layout)
    assert not any("phnn" in type(part).__module__ for part in module.modules())
    assert b"phnn" not in pickle.dumps(module)


@pytest.mark.parametrize("layout", ["grouped", "tiles_4"])
@torch.no_grad()
def test_a_file_loads_where_the_library_is_missing(tmp_path, layout):
    layer, shape = LAYERS["quaternion"]
    x = torch.randn(shape)
    plan = {"0": {"choice": "bilinear", "layout": layout, "rank": 8}}
    fast = phnn.accelerate(nn.Sequential(layer).eval(), x, plan=plan)
    del fast.phnn_report
    torch.save((fast, x), tmp_path / "fast.pt")
    code = (
        "import sys; sys.modules['phnn'] = None\n"
        "import torch\n"
        "fast, x = torch.load('fast.pt', weights_only=False)\n"
        "torch.save(fast(x).detach(), 'output.pt')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert close(torch.load(tmp_path / "output.pt"), fast(x))


def multiplications(module, x):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("layout", ["grouped", "grouped_last"])
def test_multiplications_are_those_of_the_rank(layout):
    n, R, channels, places = 4, 7, 128, 4 * 4
    layer = PHConv2d(channels, channels, 3, padding=1, n=n).eval()
    factors = Factors(torch.randn(n, R), torch.randn(n, R), torch.randn(n, R))
    x = torch.randn(1, channels, 4, 4)
    fast = layouts.build(layer, factors, layout)
    folded = multiplications(layer.to_dense(), x)
    mixing = 2 * R * channels * places
    assert multiplications(fast, x) == folded * R // n**2 + mixing
    assert mixing < 0.02 * folded


@pytest.mark.parametrize("outputs", [2, 4])
def test_tiles_have_the_fewest_products(outputs):
    P, G, B = toom_cook(outputs)
    slid = torch.zeros(outputs, 3, outputs + 2, dtype=torch.float64)  # y_j = Σ_k g_k x_{j+k}
    for j, k in product(range(outputs), range(3)):
        slid[j, k, j + k] = 1
    assert P.shape[0] == outputs + 2
    assert torch.allclose(torch.einsum("pj,pk,px->jkx", P, G, B), slid, rtol=0, atol=1e-14)
    assert torch.equal(B, B.float().double())


@pytest.mark.parametrize("size", [2, 4])
def test_multiplications_in_tiles(size):
    n, R, channels, points = 4, 7, 512, (size + 2) ** 2
    layer = PHConv2d(channels, channels, 3, padding=1, n=n, bias=False).eval()
    factors = Factors(torch.randn(n, R), torch.randn(n, R), torch.randn(n, R))
    x = torch.randn(2, channels, 8, 8)
    plain = multiplications(layer.to_dense(), x)
    for layout, share in ((f"tiles_{size}", R / n**2), (f"folded_tiles_{size}", 1)):
        products = share * plain * points / (9 * size**2)
        count = multiplications(layouts.build(layer, factors, layout), x)
        assert products < count < 1.4 * products, layout


@torch.no_grad()
def test_tiles_round_about_as_plain_convolutions_do():
    layer = PHConv2d(128, 128, 3, padding=1, n=4, bias=False).eval()
    x = torch.randn(4, 128, 16, 16)
    exact = layer.double()(x.double())
    layer.float()
    plain = (layer.to_dense()(x) - exact).square().mean()
    for layout in FOLDED_TILES:
        error = (layouts.build(layer, None, layout)(x) - exact).square().mean()
        assert error.sqrt() < 4 * plain.sqrt(), layout


# --- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fuse", [True, False])
@torch.no_grad()
def test_outputs_are_equal_and_the_original_is_unchanged(fuse):
    model = network()
    before = copy.deepcopy(model.state_dict())
    modules = [id(module) for module in model.modules()]
    fast = phnn.accelerate(model, X, rounds=1, fuse=fuse)
    assert close(fast(X), model(X))
    assert not any(isinstance(module, phnn.nn.PHLayer) for module in fast.modules())
    assert [id(module) for module in model.modules()] == modules
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not hasattr(model, "phnn_report")


@torch.no_grad()
def test_all_layers_bilinear():
    model = network()
    fast = phnn.accelerate(model, X, plan=PLAN)
    assert close(fast(X), model(X))
    assert fast.phnn_report.plan == PLAN
    assert {type(fast[i]).__name__ for i in (2, 5, 8)} == {"BilinearConv2d", "BilinearLinear"}
    # the norm after a plain layer is fused, that after mixed components stays
    assert isinstance(fast[1], nn.Identity)
    assert isinstance(fast[3], nn.BatchNorm2d)
    assert fast.phnn_report.fused == 1
    note = fast.phnn_report.entries[0].note
    assert note == "batch norm kept"


@torch.no_grad()
def test_all_layers_folded_fuse_all_norms():
    model = network()
    plan = {name: {"choice": "folded"} for name in ("2", "5", "8")}
    fast = phnn.accelerate(model, X, plan=plan)
    assert close(fast(X), model(X))
    assert [type(fast[i]) for i in (1, 2, 3)] == [nn.Identity, nn.Conv2d, nn.Identity]
    assert fast.phnn_report.fused == 2
    unfused = phnn.accelerate(model, X, plan=plan, fuse=False)
    assert isinstance(unfused[3], nn.BatchNorm2d)
    assert unfused.phnn_report.fused == 0


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@torch.no_grad()
def test_types(dtype):
    model = network().to(dtype)
    x = X.to(dtype)
    fast = phnn.accelerate(model, x, plan=PLAN)
    assert fast(x).dtype == dtype
    assert close(fast(x), model(x))
    assert all(parameter.dtype == dtype for parameter in fast.parameters())


@torch.no_grad()
def test_channels_last():
    model = network().to(memory_format=torch.channels_last)
    x = X.to(memory_format=torch.channels_last)
    fast = phnn.accelerate(model, x, rounds=1)
    assert close(fast(x), model(x))
    assert all(entry.way.channels_last == (entry.name != "8") for entry in fast.phnn_report.entries)
    plan = {"2": {**FOLDED, "channels_last": True}, "5": FOLDED, "8": FOLDED}
    folded = phnn.accelerate(model, x, plan=plan)
    assert folded.phnn_report.plan == plan
    assert folded[2].weight.is_contiguous(memory_format=torch.channels_last)
    plan["2"] = {**bilinear_way("grouped_last"), "channels_last": True}
    assert phnn.accelerate(model, x, plan=plan)[2](model[:2](x)).is_contiguous(
        memory_format=torch.channels_last
    )


class Takes(nn.Module):
    """Two arguments, a dictionary as the result, and a layer that never runs."""

    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, algebra=complex_numbers)
        self.idle = PHLinear(8, 8, n=2)

    def forward(self, a, b=None):
        return {"sum": self.layer(a) + self.layer(b[:1]), "label": a.argmax(-1)}


@pytest.mark.parametrize(
    "example",
    [
        (torch.randn(2, 8), torch.randn(3, 8)),
        [torch.randn(2, 8), torch.randn(3, 8)],
        {"a": torch.randn(2, 8), "b": torch.randn(3, 8)},
    ],
    ids=["tuple", "list", "dict"],
)
@torch.no_grad()
def test_forms_of_the_example(example):
    model = Takes().eval()
    fast = phnn.accelerate(model, example, rounds=1)
    report = {entry.name: entry for entry in fast.phnn_report.entries}
    assert report["layer"].folded_multiplications == (2 + 1) * 64
    assert report["idle"].note == "does not run on the example"
    assert isinstance(fast.idle, nn.Linear)
    a, b = torch.randn(4, 8), torch.randn(4, 8)
    assert close(fast(a, b)["sum"], model(a, b)["sum"])


@torch.no_grad()
def test_the_model_may_be_the_layer():
    layer = PHConv2d(8, 8, 3, algebra=complex_numbers).eval()
    x = torch.randn(1, 8, 5, 5)
    plan = {"": bilinear_way("grouped")}
    fast = phnn.accelerate(layer, x, plan=plan)
    assert close(fast(x), layer(x))
    assert fast.phnn_report.plan == plan


@torch.no_grad()
def test_a_shared_layer_stays_shared():
    layer = PHLinear(8, 8, algebra=complex_numbers)
    model = nn.Sequential(layer, nn.ReLU(), layer).eval()
    x = torch.randn(3, 8)
    fast = phnn.accelerate(model, x, rounds=1)
    assert fast[0] is fast[2]
    assert close(fast(x), model(x))
    assert fast.phnn_report.entries[0].folded_multiplications == 2 * 3 * 64


class Subclass(PHLinear):
    pass


class Doubled(PHLinear):
    def forward(self, input):
        return 2 * super().forward(input)


@torch.no_grad()
def test_a_layer_with_a_forward_of_its_own_is_left_alone():
    model = nn.Sequential(PHLinear(8, 8, n=2), Doubled(8, 8, n=2)).eval()
    x = torch.randn(3, 8)
    fast = phnn.accelerate(model, x, rounds=1)
    assert close(fast(x), model(x))
    assert isinstance(fast[1], Doubled)
    assert "1 is left alone: Doubled has a forward of its own" in str(fast.phnn_report)
    with pytest.raises(ValueError, match=r"no PH layers to accelerate.*1 is left alone: Doubled"):
        phnn.accelerate(model[1:].eval(), x)


@torch.no_grad()
def test_filters_that_are_computed():
    model, x = nn.Sequential(PHLinear(8, 8, n=2), nn.ReLU()).eval(), torch.randn(3, 8)
    prune.l1_unstructured(model[0], "F", 0.5)
    fast = phnn.accelerate(model, x, rounds=1)
    assert close(fast(x), model(x))
    assert "hooks" not in fast.phnn_report.entries[0].note


@torch.no_grad()
def test_a_norm_of_places_is_not_fused_into_a_linear_layer():
    model = nn.Sequential(PHLinear(8, 16, n=2), nn.BatchNorm1d(5))
    model(torch.randn(20, 5, 8))
    x = torch.randn(3, 5, 8)
    assert close(phnn.accelerate(model.eval(), x, rounds=1)(x), model(x))
    square = nn.Sequential(PHLinear(8, 16, n=2), nn.BatchNorm1d(16))
    square(torch.randn(20, 16, 8))
    with pytest.raises(RuntimeError, match="fuse=False"):  # as many places as features
        phnn.accelerate(square.eval(), torch.randn(3, 16, 8), rounds=1)


def test_what_cannot_be_copied_is_told_before_the_work(monkeypatch):
    model = nn.Sequential(PHLinear(8, 8, n=2)).eval()
    model.extra = torch.ones(2, requires_grad=True) * 2  # torch copies no such tensor
    monkeypatch.setattr("phnn.acceleration.accelerating.find_factors", None)
    with pytest.raises(ValueError, match=r"cannot be copied.*to_dense can change it in place"):
        phnn.accelerate(model, torch.randn(3, 8))


def pruned(layer):
    return prune.l1_unstructured(layer, "weight", 0.5)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("compute", [nn.utils.weight_norm, nn.utils.spectral_norm, pruned])
@torch.no_grad()
def test_other_layers_may_have_weights_that_are_computed(compute):
    with torch.enable_grad():
        model = nn.Sequential(compute(nn.Linear(8, 8)), PHLinear(8, 8, n=2)).eval()
    x = torch.randn(3, 8)
    assert close(phnn.accelerate(model, x, rounds=1)(x), model(x))


class Flattens(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = PHConv2d(8, 16, 3, padding=1, n=4), PHLinear(16 * 16, 8, n=4)

    def forward(self, x):
        return self.head(self.conv(x).view(len(x), -1))  # which channels last do not allow


@torch.no_grad()
def test_formats_that_a_model_does_not_take_are_left_out():
    model, x = Flattens().eval(), torch.randn(2, 8, 4, 4)
    fast = phnn.accelerate(model, x, rounds=1)
    assert not fast.phnn_report.entries[0].way.channels_last
    assert close(fast(x), model(x))


class Reads(nn.Module):
    """Layers whose attributes the model reads, as some of Hugging Face's do."""

    def __init__(self):
        super().__init__()
        self.first, self.second = PHLinear(8, 8, n=2), PHLinear(8, 8, n=2)

    def forward(self, x):
        return self.second(self.first(x).to(self.second.weight.dtype))


@torch.no_grad()
def test_a_layer_that_the_model_reads_is_folded():
    model, x = Reads().eval(), torch.randn(3, 8)
    fast = phnn.accelerate(model, x, rounds=1)
    first, second = fast.phnn_report.entries
    assert "reads" not in first.note
    assert second.note == "the model reads its weight"
    assert isinstance(fast.second, nn.Linear)
    assert close(fast(x), model(x))


class Keeps(nn.Module):
    """Keeps what it computes, in attributes and in a dictionary."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = PHConv2d(4, 4, 1, n=2), nn.BatchNorm2d(4)
        self.mask, self.sizes, self.features = None, {}, None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.full_like(x, 0.5)
        self.sizes[len(self.sizes)] = x.sum()
        self.features = self.norm(self.layer(x))
        return self.features * self.mask + torch.tensor([1.0])


@torch.no_grad()
def test_tracing_leaves_nothing_in_the_model():
    model, x = Keeps().eval(), torch.randn(2, 4, 3, 3)
    attributes = vars(model).keys()
    fast = phnn.accelerate(model, x, rounds=1)
    assert fast.phnn_report.fused == 1
    assert vars(model).keys() == attributes
    for value in (model.mask, model.features, *model.sizes.values()):
        assert type(value) is torch.Tensor
    assert close(fast(x), model(x))
    untouched = Keeps().eval()
    folded = phnn.to_dense(untouched, fuse=True)
    assert untouched.mask is None
    assert close(folded(x), untouched(x))


class ChangesItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)

    def forward(self, x):
        x -= 1.0
        return self.layer(x)


@torch.no_grad()
def test_a_model_may_change_its_input_but_not_the_example():
    model, x = ChangesItsInput().eval(), torch.randn(3, 8)
    example = x.clone()
    fast = phnn.accelerate(model, example, rounds=1)
    assert torch.equal(example, x)
    assert close(fast(x.clone()), model(x.clone()))


class CalledByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = PHConvTranspose2d(4, 4, 3, stride=2, n=2)

    def forward(self, x):
        return self.up(output_size=(12, 12), input=x)


@torch.no_grad()
def test_inputs_that_are_named():
    model, x = CalledByName().eval(), torch.randn(2, 4, 5, 5)
    fast = phnn.accelerate(model, x, rounds=1)
    assert fast.phnn_report.entries[0].note == "called with more than its input"
    assert close(fast(x), model(x))


def test_compiled_models_are_refused():
    compiled = torch.compile(network(), backend="eager")
    with pytest.raises(ValueError, match=r"is compiled.*accelerate it first"):
        phnn.accelerate(compiled, X)
    model = network()
    model.compile(backend="eager")
    with pytest.raises(ValueError, match=r"is compiled.*accelerate it first"):
        phnn.accelerate(model, X)


def test_in_inference_mode():
    model, x = network(), X.clone()
    with torch.inference_mode():
        made = [phnn.accelerate(model, x, rounds=1), phnn.to_dense(model)]
    for fast in made:
        fast(x).sum().backward()
        assert not any(parameter.is_inference() for parameter in fast.parameters())


class Unbatched(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHConv1d(8, 8, 3, n=2)

    def forward(self, x):
        return self.layer(x[0])


class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHConvTranspose1d(8, 8, 2, stride=2, n=2)

    def forward(self, x):
        return self.layer(x, output_size=[11])


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(x.bfloat16()).float()


class ChannelsAtTheEnd(nn.Module):
    """A linear layer on an input whose strides look like those of an image with channels last."""

    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, algebra=complex_numbers)

    def forward(self, x):
        return self.layer(x.to(memory_format=torch.channels_last))


@torch.no_grad()
def test_a_linear_layer_has_no_format():
    model, x = ChannelsAtTheEnd().eval(), torch.randn(2, 3, 4, 8)
    fast = phnn.accelerate(model, x, rounds=1)
    assert not fast.phnn_report.entries[0].way.channels_last
    assert close(phnn.accelerate(model, x, plan={"layer": bilinear_way("rows")})(x), model(x))


class Zero(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)
        nn.init.zeros_(self.layer.A)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    ("model", "x", "reason"),
    [
        (nn.Sequential(PHLinear(8, 8, n=1)), torch.randn(2, 8), "n=1"),
        (nn.Sequential(Subclass(8, 8, n=2)), torch.randn(2, 8), "Subclass is a subclass"),
        (Unbatched(), torch.randn(1, 8, 5), r"has no batch"),
        (Sized(), torch.randn(1, 8, 5), "called with more than its input"),
        (Zero(), torch.randn(2, 8), "its algebra is zero"),
        (Autocast(), torch.randn(2, 8), "its input is torch.bfloat16, its weight torch.float32"),
        (nn.Sequential(PHLinear(8, 8, n=2, terms=4)), torch.randn(2, 8), "no fewer than n² = 4"),
        (
            nn.TransformerEncoderLayer(8, 2, 8, batch_first=True),
            torch.randn(2, 3, 8),
            "read by torch's attention",
        ),
    ],
    ids=["n=1", "subclass", "unbatched", "output_size", "zero", "autocast", "rank", "attention"],
)
@torch.no_grad()
def test_folded_with_the_reason(model, x, reason):
    if isinstance(model, nn.TransformerEncoderLayer):
        model = phnn.convert(model, n=2)
    model.eval()
    fast = phnn.accelerate(model, x, rounds=1)
    entry = fast.phnn_report.entries[0]
    assert entry.way.rank is None
    assert entry.way.is_folded or "no fewer" in reason
    assert reason in entry.note
    assert torch.allclose(fast(x), model(x), atol=1e-6)
    assert reason in str(fast.phnn_report)


def test_algebras_that_are_declined_have_no_products(monkeypatch):
    def decline(algebras, rank, seconds):
        return [Declined(f"too large for {seconds} s") for _ in algebras]

    monkeypatch.setattr(places, "bilinear_many", decline)
    fast = phnn.accelerate(network(), X, rounds=1, seconds=2.5)
    assert {entry.note for entry in fast.phnn_report.entries} == {"too large for 2.5 s"}
    assert all(entry.way.rank is None for entry in fast.phnn_report.entries)


def test_a_rank_for_all():
    fast = phnn.accelerate(network(), X, rank=3, rounds=1)
    ranks = {entry.way.rank for entry in fast.phnn_report.entries}
    assert ranks <= {None, 3}
    fast = phnn.accelerate(network(), X, rank=1, rounds=1)
    assert all(entry.way.rank is None and entry.note for entry in fast.phnn_report.entries)


@pytest.mark.parametrize("terms", [3, 2])
@torch.no_grad()
def test_factors_that_a_layer_has_are_taken(monkeypatch, terms):
    model = nn.Sequential(PHConv2d(8, 8, 3, n=2, terms=terms, rank=3)).eval()
    monkeypatch.setattr(places, "bilinear_many", None)  # must not be asked
    x = torch.randn(1, 8, 5, 5)
    fast = phnn.accelerate(model, x, plan={"0": bilinear_way("grouped")})
    assert torch.equal(fast[0].mix_in, model[0].V.mT)
    assert close(fast(x), model(x))


# --- plans ----------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_plan_repeats_the_choices_without_timing(tmp_path, monkeypatch):
    model = network()
    first = phnn.accelerate(model, X, rounds=1)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(first.phnn_report.plan))
    monkeypatch.setattr(trials, "interleave", None)  # must not be asked
    for plan in (first.phnn_report.plan, path, str(path)):
        again = phnn.accelerate(model, X, plan=plan)
        assert again.phnn_report.plan == first.phnn_report.plan
        assert again.phnn_report.seconds == {}
        assert torch.equal(again(X), first(X))
        assert again.state_dict().keys() == first.state_dict().keys()


def test_a_bilinear_plan_gives_the_same_numbers_each_time():
    model = nn.Sequential(PHLinear(8, 8, n=2), PHLinear(8, 8, n=2)).eval()
    x = torch.randn(1, 8)
    ranks = [bilinear(layer.A).rank for layer in model]
    plan = {str(i): {**bilinear_way("rows"), "rank": rank} for i, rank in enumerate(ranks)}
    states = [phnn.accelerate(model, x, plan=plan).state_dict() for _ in range(2)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"9": FOLDED}, "names layers that the model has not: '9'"),
        ({"2": None}, "the plan of '2' is None; a layer has"),
        ({"2": {"choice": "fast"}}, "the plan of '2' is"),
        ({"2": {"choice": "bilinear", "layout": "grouped", "rank": "3"}}, "the plan of '2' is"),
        ({"8": {"choice": "folded", "channels_last": True}}, "channels last for '8'"),
        ({"8": {"choice": "folded", "channels_last": 1}}, "the plan of '8' is"),
        (
            {"2": {"choice": "bilinear", "layout": "rows", "rank": 3}},
            "'rows' for '2'; PHConv2d has components, grouped, padded, grouped_last, padded_last",
        ),
        (
            {"2": {"choice": "bilinear", "layout": "grouped", "rank": 1}},
            "has 'grouped' for '2', which fails",
        ),
        ({"2": bilinear_way("components")}, "the plan of '2' is"),
    ],
)
def test_plans_that_do_not_fit(change, message):
    plan = {"2": FOLDED, "5": FOLDED, "8": FOLDED, **change}
    with pytest.raises(ValueError, match=message):
        phnn.accelerate(network(), X, plan=plan)


def test_plans_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="says nothing of layers of the model: '5', '8'"):
        phnn.accelerate(network(), X, plan={"2": FOLDED})
    with pytest.raises(TypeError, match="is a mapping from layers to choices, got list"):
        phnn.accelerate(network(), X, plan=[FOLDED])
    path = tmp_path / "plan.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"plan\.json' is not JSON"):
        phnn.accelerate(network(), X, plan=path)
    with pytest.raises(FileNotFoundError):
        phnn.accelerate(network(), X, plan=tmp_path / "none.json")


# --- choices --------------------------------------------------------------------------------------


def pretend(monkeypatch, seconds):
    """Gives each way the time that is told."""

    def times(contenders, rounds, **options):
        for call in contenders.values():
            call()
        return {name: seconds.get(name, 1.0) for name in contenders}

    monkeypatch.setattr(trials, "interleave", times)


@pytest.mark.parametrize("layout", ["folded", "components", "grouped", "grouped_last", "padded"])
def test_the_fastest_is_taken(monkeypatch, layout):
    pretend(monkeypatch, {layout: 0.5, "0": 0.5})
    fast = phnn.accelerate(network(), X)
    assert fast.phnn_report.entries[0].way.layout == layout
    assert fast.phnn_report.entries[0].seconds[layout] == 0.5


def test_the_whole_model_has_the_last_word(monkeypatch):
    layers = {"grouped": 0.5, "grouped_last": 0.6}
    # products, products with channels last, folded, folded with channels last
    pretend(monkeypatch, {**layers, "0": 2.0, "1": 3.0, "2": 4.0, "3": 5.0})
    report = phnn.accelerate(network(), X).phnn_report
    assert report.entries[0].way == Way("grouped", 3)
    assert report.seconds == {"assembled": 1.0, "folded": 4.0, "accelerated": 2.0}
    pretend(monkeypatch, {**layers, "0": 2.0, "1": 1.5, "2": 0.9})
    model = network()
    fast = phnn.accelerate(model, X)
    assert all(entry.way.is_folded for entry in fast.phnn_report.entries)
    assert isinstance(fast[3], nn.Identity)
    assert torch.allclose(fast(X), model(X), atol=1e-5)


def test_one_weight_for_each_layer_may_be_faster_than_products_in_a_whole_model(monkeypatch):
    pretend(monkeypatch, {"grouped": 0.5, "grouped_last": 0.6, "3": 0.9})
    model = network()
    fast = phnn.accelerate(model, X)
    ways = [entry.way for entry in fast.phnn_report.entries]
    assert ways == [Way(channels_last=True), Way(channels_last=True), Way()]
    assert torch.allclose(fast(X), model(X), atol=1e-5)


def test_channels_may_come_last_though_the_example_has_them_first(monkeypatch):
    pretend(monkeypatch, {"1": 0.5})
    model = network()
    fast = phnn.accelerate(model, X)
    assert [entry.way for entry in fast.phnn_report.entries] == [
        Way(channels_last=True),
        Way(channels_last=True),
        Way(),
    ]
    assert fast[:6](X).is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(fast(X), model(X), atol=1e-5)
    again = phnn.accelerate(model, X, plan=fast.phnn_report.plan)
    assert again[:6](X).is_contiguous(memory_format=torch.channels_last)


def test_each_layer_may_have_the_better_format(monkeypatch):
    seconds = iter(
        [
            {"folded": 1.0},  # layer 2, channels first
            {"folded": 1.0},  # layer 5
            {"rows": 0.9},  # layer 8, linear
            {"folded": 0.5},  # layer 2, channels last
            {"folded": 2.0},  # layer 5
            {"rows": 0.9},  # layer 8, as before
            {"2": 0.5},  # the whole model with the better of both
        ]
    )

    def times(contenders, rounds, **options):
        told = next(seconds)
        for call in contenders.values():
            call()
        return {name: told.get(name, 3.0) for name in contenders}

    monkeypatch.setattr(trials, "interleave", times)
    model = network()
    fast = phnn.accelerate(model, X)
    ways = [entry.way for entry in fast.phnn_report.entries]
    assert ways == [Way(channels_last=True), Way(), Way("rows", 3)]
    assert fast[2].weight.is_contiguous(memory_format=torch.channels_last)
    assert not fast[0].weight.is_contiguous(memory_format=torch.channels_last)  # no PH layer
    assert torch.allclose(fast(X), model(X), atol=1e-5)
    again = phnn.accelerate(model, X, plan=fast.phnn_report.plan)
    assert torch.equal(again(X), fast(X))


class Gated(nn.Module):
    """A plain convolution, a PH one, one on a single place and one that never runs."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.wide = PHConv2d(8, 8, 3, algebra=complex_numbers)
        self.gate = PHConv2d(8, 8, 1, algebra=complex_numbers)
        self.idle = PHConv2d(8, 8, 1, algebra=complex_numbers)

    def forward(self, x):
        x = self.wide(self.stem(x))
        return x * self.gate(x.mean((2, 3), keepdim=True))


@torch.no_grad()
def test_layers_without_a_format_leave_it_to_the_others(monkeypatch):
    pretend(monkeypatch, {"1": 0.5})
    model = Gated().eval()
    fast = phnn.accelerate(model, X)
    assert fast.stem.weight.is_contiguous(memory_format=torch.channels_last)
    assert fast(X).is_contiguous(memory_format=torch.channels_last)
    again = phnn.accelerate(model, X, plan=fast.phnn_report.plan)
    assert again.stem.weight.stride() == fast.stem.weight.stride()
    assert close(fast(X), model(X))


@torch.no_grad()
def test_a_plan_may_have_more_products_than_are_of_use():
    model = nn.Sequential(PHConv2d(8, 8, 3, n=2, rank=4)).eval()
    x = torch.randn(1, 8, 5, 5)
    plan = {"0": {"choice": "bilinear", "layout": "padded", "rank": 4}}
    assert close(phnn.accelerate(model, x, plan=plan)(x), model(x))
    assert "no fewer than n² = 4" in phnn.accelerate(model, x, rounds=1).phnn_report.entries[0].note


def test_components_are_tried_where_places_are_few(monkeypatch):
    pretend(monkeypatch, {"components": 0.5, "0": 0.5})
    model = nn.Sequential(PHConv2d(64, 64, 3, padding=1, n=4)).eval()
    fast = phnn.accelerate(model, torch.randn(1, 64, 4, 4))
    assert fast.phnn_report.plan == {"0": {"choice": "components"}}
    assert type(fast[0]).__name__ == "ComponentsConv2d"
    assert fast[0].filter.weight.shape == model[0].F.shape
    assert "0 of 1 layers bilinear, 1 by components" in str(fast.phnn_report)
    fast = phnn.accelerate(model, torch.randn(1, 64, 40, 40))
    assert "components" not in fast.phnn_report.entries[0].seconds


def test_tiles_have_the_size_of_the_largest_output():
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = PHConv2d(8, 8, 3, n=1)

        def forward(self, x):
            return [self.head(x), self.head(x[..., :5, :5]), self.head(x[..., :4, :4])]

    model = Pyramid().eval()
    tried = {}
    for size in (5, 6, 7):
        fast = phnn.accelerate(model, torch.randn(1, 8, size, size), rounds=1)
        tried[size] = set(fast.phnn_report.entries[0].seconds)
    assert tried[7] == {"folded", "folded_tiles_4"}
    assert tried[5] == tried[6] == {"folded", "folded_tiles_2", "folded_tiles_4"}


def test_no_tiles_in_low_precision():
    model = nn.Sequential(PHConv2d(8, 8, 3, algebra=complex_numbers)).eval()
    x = torch.randn(1, 8, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        fast = phnn.accelerate(model, x, rounds=1)
    assert not any("tiles" in layout for layout in fast.phnn_report.entries[0].seconds)
    fast = phnn.accelerate(model.bfloat16(), x.bfloat16(), rounds=1)
    assert not any("tiles" in layout for layout in fast.phnn_report.entries[0].seconds)


def test_modules_keep_their_names_and_what_is_frozen():
    model = nn.Sequential(*(PHConv2d(8, 8, 3, algebra=complex_numbers) for _ in range(3))).eval()
    model[1].bias.requires_grad_(False)
    plan = {"0": bilinear_way("grouped"), "1": {"choice": "folded_tiles_2"}}
    plan["2"] = bilinear_way("tiles_4")
    fast = phnn.accelerate(model, torch.randn(1, 8, 8, 8), plan=plan)
    names = [type(module).__name__ for module in fast]
    assert names == ["BilinearConv2d", "TilesConv2d", "TilesConv2d"]
    trained = {name for name, parameter in fast[1].named_parameters() if parameter.requires_grad}
    assert trained == {"weight"}


@pytest.mark.parametrize(("size", "layout"), [(2, "2"), (3, "2"), (3, "4"), (9, "4")])
def test_tiles_are_tried_where_they_fit(monkeypatch, size, layout):
    pretend(monkeypatch, {f"folded_tiles_{layout}": 0.5, "0": 0.5})
    model = nn.Sequential(
        PHConv2d(8, 8, 3, padding=1, bias=False, algebra=complex_numbers), nn.BatchNorm2d(8)
    )
    model(torch.randn(4, 8, size, size))
    x = torch.randn(2, 8, size, size)
    fast = phnn.accelerate(model.eval(), x)
    assert fast.phnn_report.plan == {"0": {"choice": f"folded_tiles_{layout}"}}
    assert fast.phnn_report.fused == 1
    assert type(fast[0]).__name__ == "TilesConv2d"
    assert type(fast[1]) is nn.Identity
    assert "0 of 1 layers bilinear; 1 in tiles" in str(fast.phnn_report)
    assert close(fast(x), model(x))
    again = phnn.accelerate(model, x, plan=fast.phnn_report.plan)
    assert torch.equal(again(x), fast(x))
    without = phnn.accelerate(model, x, tiles=False)
    assert not any("tiles" in way for way in without.phnn_report.entries[0].seconds)


@torch.no_grad()
def test_layers_in_tiles_are_shared_and_may_be_the_model():
    layer = PHConv2d(8, 8, 3, padding=1, n=1).eval()
    x = torch.randn(2, 8, 8, 8)
    alone = phnn.accelerate(layer, x, plan={"": {"choice": "folded_tiles_4"}})
    assert close(alone(x), layer(x))
    twice = nn.Sequential(layer, nn.ReLU(), layer).eval()
    plan = {"0": {"choice": "folded_tiles_4", "channels_last": True}}
    fast = phnn.accelerate(twice, x, plan=plan)
    assert fast[0] is fast[2]
    assert fast[0](x).is_contiguous(memory_format=torch.channels_last)
    assert close(fast(x), twice(x))


def test_equal_layers_are_timed_once(monkeypatch):
    timed = []

    def times(contenders, rounds, **options):
        timed.append(list(contenders))
        return interleave(contenders, 1, 0)

    monkeypatch.setattr(trials, "interleave", times)
    model = nn.Sequential(
        *(PHConv2d(8, 8, 3, padding=1, algebra=complex_numbers) for _ in range(3))
    ).eval()
    done = []
    phnn.accelerate(model, torch.randn(1, 8, 5, 5), progress=lambda *state: done.append(state))
    tiles = ["tiles_4", "folded_tiles_4"]
    assert timed[:2] == [
        ["folded", "components", "grouped", "padded", "grouped_last", "padded_last", *tiles],
        ["folded", "components", "grouped_last", "padded_last", *tiles],
    ]
    assert len(timed) == 3  # one layer in two formats, and the models
    assert done == 2 * [(1, 3), (2, 3), (3, 3)]


# --- what must not happen -------------------------------------------------------------------------


def test_wrong_factors_are_refused(monkeypatch):
    def wrong(algebras, rank, seconds):
        return [replace(found, U=2 * found.U) for found in map(bilinear, algebras)]

    model = network()
    monkeypatch.setattr(places, "bilinear_many", wrong)
    with pytest.raises(RuntimeError, match=r"differs from the model by [\d.]+ in outputs of up to"):
        phnn.accelerate(model, X, plan=PLAN)
    phnn.accelerate(model, X, plan=PLAN, tol=1e3)


@torch.no_grad()
def test_a_layer_of_zeros_has_no_error():
    model = nn.Sequential(PHConv2d(8, 8, 3, n=1, bias=False), nn.Sigmoid()).eval()
    model[0].F.zero_()
    fast = phnn.accelerate(model, torch.randn(1, 8, 6, 6), plan={"0": {"choice": "folded_tiles_2"}})
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
    with pytest.raises(RuntimeError, match="fuse=False"):  # as many places as features
        phnn.accelerate(model.eval(), torch.randn(3, 16, 8), rounds=1)
    fast = phnn.accelerate(model, torch.randn(3, 8), rounds=1)
    assert 0 <= fast.phnn_report.difference < 1e-5


def test_labels_alone_are_compared(monkeypatch):
    def wrong(algebras, rank, seconds):
        return [replace(found, U=torch.randn_like(found.U)) for found in map(bilinear, algebras)]

    torch.manual_seed(0)
    model, x = Labels().eval(), torch.randn(100, 8)
    rank = bilinear(model.layer.A.detach()).rank
    plan = {"layer": {"choice": "bilinear", "layout": "rows", "rank": rank}}
    assert phnn.accelerate(model, x, plan=plan).phnn_report.difference <= 0.01
    monkeypatch.setattr(places, "bilinear_many", wrong)
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
    with pytest.raises(ValueError, match="rounds is at least 1, got rounds=0"):
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
    with pytest.raises(TypeError, match=r"example_input is a tensor, a tuple .* got str"):
        phnn.accelerate(network(), "image")


class ReturnsNothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)

    def forward(self, x):
        self.layer(x)


def test_outputs_that_cannot_be_compared(monkeypatch):
    monkeypatch.setattr("phnn.acceleration.accelerating.find_factors", None)  # before any work
    with pytest.raises(ValueError, match="returns NoneType, in which no tensors"):
        phnn.accelerate(ReturnsNothing().eval(), torch.randn(1, 8), rounds=1)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)

    def forward(self, x):
        return self.layer(x).masked_fill(x > 0, -torch.inf)


def test_outputs_may_be_infinite_in_the_same_places():
    fast = phnn.accelerate(Masked().eval(), torch.randn(4, 8), rounds=1)
    assert fast.phnn_report.difference < 1e-5


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x):
        return self.layers(x) if x.sum() > -1e9 else x


@torch.no_grad()
def test_models_that_fx_cannot_trace_keep_their_norms():
    model = Untraceable().eval()
    fast = phnn.accelerate(model, X, rounds=1)
    assert isinstance(fast.layers[1], nn.BatchNorm2d)
    assert "no batch norms fused, as torch.fx cannot trace the model" in str(fast.phnn_report)
    assert close(fast(X), model(X))


def test_lost_hooks_are_told():
    model = network()
    model[2].register_forward_hook(lambda *_: None)
    fast = phnn.accelerate(model, X, rounds=1)
    assert "its forward hooks are lost" in fast.phnn_report.entries[0].note


# --- what people do with models -------------------------------------------------------------------


@pytest.fixture(scope="module")
def fast():
    """A network whose layers are computed in one layout each, and a linear one in two."""
    wide = {"kernel_size": 3, "padding": 1}
    parts = OrderedDict()
    for layout in (*WITHOUT_PRODUCTS, *layouts.PRODUCTS):
        pointwise = layout in ("samples", "columns", "rows")
        shape = {"kernel_size": 1} if pointwise else wide
        if layout == "columns":
            shape["stride"] = 2
        elif not pointwise and "tiles" not in layout:
            shape = {**wide, "groups": 2}
        parts[layout] = PHConv2d(8, 8, **shape, algebra=complex_numbers)
    parts |= {"relu": nn.ReLU(), "flatten": nn.Flatten()}
    parts["linear"] = PHLinear(32, 8, algebra=complex_numbers)
    parts["last"] = PHLinear(8, 8, algebra=complex_numbers)
    plan = {layout: bilinear_way(layout) for layout in layouts.PRODUCTS}
    plan |= {layout: {"choice": layout} for layout in WITHOUT_PRODUCTS}
    plan |= {"linear": bilinear_way("rows"), "last": {"choice": "components"}}
    return phnn.accelerate(nn.Sequential(parts).eval(), torch.randn(2, 8, 4, 4), plan=plan)


IMAGES = torch.randn(3, 8, 4, 4)


@torch.no_grad()
def test_copies(fast):
    expected = fast(IMAGES)
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(fast),
        pickle.loads(pickle.dumps(fast)),
        torch.load(buffer, weights_only=False),
    ):
        assert torch.equal(other(IMAGES), expected)
        assert str(other.phnn_report) == str(fast.phnn_report)
    other.load_state_dict({key: 0 * value for key, value in fast.state_dict().items()})
    assert not other(IMAGES).any()


@torch.no_grad()
def test_moves(fast):
    moved = copy.deepcopy(fast).double()
    assert torch.allclose(moved(IMAGES.double()).float(), fast(IMAGES), atol=1e-5)
    assert moved.to("meta")(IMAGES.double().to("meta")).is_meta


def test_gradients_flow(fast):
    x = IMAGES.clone().requires_grad_()
    fast(x).square().sum().backward()
    assert x.grad.any()
    fixed = {name for name, parameter in fast.named_parameters() if parameter.grad is None}
    assert {name.rpartition(".")[2] for name in fixed} == {"cut", "join"}
    fast.zero_grad()


@torch.no_grad()
def test_compiles_in_one_graph(fast):
    compiled = torch.compile(fast, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(IMAGES), fast(IMAGES))


@pytest.mark.parametrize("format", [pytest.param("onnx", marks=needs_onnx), "torch"])
def test_exports_with_an_open_batch(fast, tmp_path, format):
    path = tmp_path / {"onnx": "fast.onnx", "torch": "fast.pt2"}[format]
    exported = phnn.export(fast, path, IMAGES[:2], format=format)
    assert exported.max_difference < 1e-5


@pytest.mark.parametrize("layout", ["samples", "columns", "rows"])
@torch.no_grad()
def test_strided_layers_export_with_open_sizes(layout):
    layer = PHConv2d(8, 8, 1, stride=2, n=2).eval()
    rank = bilinear(layer.A).rank
    plan = {"": {"choice": "bilinear", "layout": layout, "rank": rank}}
    x = torch.randn(4, 8, 5, 6)
    fast = phnn.accelerate(layer, x, plan=plan)
    open_sizes = {axis: torch.export.Dim(f"d{axis}", min=3, max=64) for axis in (0, 2, 3)}
    program = torch.export.export(fast, (x,), dynamic_shapes=(open_sizes,)).module()
    for shape in ((3, 8, 4, 9), (5, 8, 7, 3)):
        other = torch.randn(shape)
        assert close(program(other), layer(other))


# --- the report -----------------------------------------------------------------------------------


def test_the_report_prints_as_a_table(monkeypatch):
    pretend(monkeypatch, {"grouped": 0.5, "assembled": 2.0, "0": 0.75})
    report = phnn.accelerate(network(), X).phnn_report
    head, *rows, total = str(report).splitlines()
    assert head.split("  ")[0] == "layer"
    assert len(rows) == 3
    assert "PHConv2d complex" in rows[0]
    assert "grouped" in rows[0]
    for part in (
        "total: 1 of 3 layers bilinear",
        "multiplications (",
        "1 batch norms fused",
        "whole model assembled 2e+03 ms, folded 1e+03 ms, accelerated 750 ms",
        "outputs differ by at most",
    ):
        assert part in total


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", ["vgg11", "resnet18"])
def test_networks_of_the_zoo(name):
    model = phnn.create_model(name, n=4).eval()
    x = torch.randn(2, 3, 32, 32)
    fast = phnn.accelerate(model, x, rounds=1)
    assert close(fast(x), model(x))
    assert not any(isinstance(module, phnn.nn.PHLayer) for module in fast.modules())
