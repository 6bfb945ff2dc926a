"""Accelerated models compute what the models do."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import phnn
from helpers.accelerating import FOLDED, PLAN, TOLERANCE, X, close, entry_of, make_layers, network
from phnn import PHConv2d, PHConvTranspose2d, PHLinear
from phnn.algebra import complex as complex_numbers


@torch.no_grad()
def test_files_load_where_the_library_is_missing(tmp_path):
    layer, shape = make_layers()["quaternion"]
    x = torch.randn(shape)
    made = {}
    for label in ["cp_grouped", "cp_winograd_4", "filter_first"]:
        plan = {"0": entry_of(label, 8)}
        fast = made[label] = phnn.accelerate(nn.Sequential(layer).eval(), x, plan=plan)
        assert copy.deepcopy(fast).phnn_report is fast.phnn_report
        assert fast.phnn_report.to_dict()["entries"][0]["form"]["form"] == plan["0"]["form"]
        torch.save((fast, x), tmp_path / f"{label}.pt")
    code = (
        "import json, sys; sys.modules['phnn'] = None\n"
        "import torch\n"
        "for label in sys.argv[1:]:\n"
        "    fast, x = torch.load(f'{label}.pt', weights_only=False)\n"
        "    json.dump(fast.phnn_report, open(f'{label}.json', 'w'))\n"
        "    torch.save(fast(x).detach(), f'{label}.output')\n"
    )
    subprocess.run([sys.executable, "-c", code, *made], check=True, cwd=tmp_path)
    for label, fast in made.items():
        assert close(torch.load(tmp_path / f"{label}.output"), fast(x))
        report = json.loads((tmp_path / f"{label}.json").read_text())
        assert report == fast.phnn_report.to_dict()
        assert report["text"] == str(fast.phnn_report)


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
def test_all_layers_by_cp_products():
    model = network()
    fast = phnn.accelerate(model, X, plan=PLAN)
    assert close(fast(X), model(X))
    assert fast.phnn_report.plan["layers"] == PLAN
    assert {type(fast[i]).__name__ for i in (2, 5, 8)} == {
        "CPGroupedConv2d",
        "CPPointwiseConv2d",
        "CPPointwiseLinear",
    }
    # the norm after a plain layer is fused, that after mixed components stays
    assert isinstance(fast[1], nn.Identity)
    assert isinstance(fast[3], nn.BatchNorm2d)
    assert fast.phnn_report.fused == 1
    note = fast.phnn_report.entries[0].note
    assert note == "batch norm kept"


@torch.no_grad()
def test_all_layers_folded_fuse_all_norms():
    model = network()
    plan = dict.fromkeys(("2", "5", "8"), FOLDED)
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
    assert all(
        entry.form.channels_last == (entry.name != "8") for entry in fast.phnn_report.entries
    )
    plan = {"2": {**FOLDED, "channels_last": True}, "5": FOLDED, "8": FOLDED}
    folded = phnn.accelerate(model, x, plan=plan)
    assert folded.phnn_report.plan["layers"] == plan
    assert folded[2].weight.is_contiguous(memory_format=torch.channels_last)
    plan["2"] = entry_of("cp_grouped_last", channels_last=True)
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
    plan = {"": entry_of("cp_grouped")}
    fast = phnn.accelerate(layer, x, plan=plan)
    assert close(fast(x), layer(x))
    assert fast.phnn_report.plan["layers"] == plan


@torch.no_grad()
def test_a_shared_layer_stays_shared():
    layer = PHLinear(8, 8, algebra=complex_numbers)
    model = nn.Sequential(layer, nn.ReLU(), layer).eval()
    x = torch.randn(3, 8)
    fast = phnn.accelerate(model, x, rounds=1)
    assert fast[0] is fast[2]
    assert close(fast(x), model(x))
    assert fast.phnn_report.entries[0].folded_multiplications == 2 * 3 * 64


@torch.no_grad()
def test_filters_that_are_computed():
    model, x = nn.Sequential(PHLinear(8, 8, n=2), nn.ReLU()).eval(), torch.randn(3, 8)
    prune.l1_unstructured(model[0], "F", 0.5)
    fast = phnn.accelerate(model, x, rounds=1)
    assert close(fast(x), model(x))
    assert "hooks" not in fast.phnn_report.entries[0].note


@torch.no_grad()
def test_a_norm_of_positions_is_not_fused_into_a_linear_layer():
    model = nn.Sequential(PHLinear(8, 16, n=2), nn.BatchNorm1d(5))
    model(torch.randn(20, 5, 8))
    x = torch.randn(3, 5, 8)
    assert close(phnn.accelerate(model.eval(), x, rounds=1)(x), model(x))
    square = nn.Sequential(PHLinear(8, 16, n=2), nn.BatchNorm1d(16))
    square(torch.randn(20, 16, 8))
    with pytest.raises(RuntimeError, match="fuse=False"):  # as many positions as features
        phnn.accelerate(square.eval(), torch.randn(3, 16, 8), rounds=1)


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
    assert not fast.phnn_report.entries[0].form.channels_last
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


def test_in_inference_mode():
    model, x = network(), X.clone()
    with torch.inference_mode():
        made = [phnn.accelerate(model, x, rounds=1), phnn.to_dense(model)]
    for fast in made:
        fast(x).sum().backward()
        assert not any(parameter.is_inference() for parameter in fast.parameters())


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x):
        return self.layers(x) if x.sum() > -1e9 else x


@torch.no_grad()
def test_models_that_fx_cannot_trace_show_their_norms_when_they_run():
    model = Untraceable().eval()
    fast = phnn.accelerate(model, X, rounds=1)
    assert fast.phnn_report.fused == phnn.accelerate(model.layers, X, rounds=1).phnn_report.fused
    assert fast.phnn_report.fused
    assert close(fast(X), model(X))


def test_modules_keep_their_names_and_what_is_frozen():
    model = nn.Sequential(*(PHConv2d(8, 8, 3, algebra=complex_numbers) for _ in range(3))).eval()
    model[1].bias.requires_grad_(False)
    plan = {"0": entry_of("cp_grouped"), "1": entry_of("winograd_2")}
    plan["2"] = entry_of("cp_winograd_4")
    fast = phnn.accelerate(model, torch.randn(1, 8, 8, 8), plan=plan)
    names = [type(module).__name__ for module in fast]
    assert names == ["CPGroupedConv2d", "WinogradConv2d", "CPWinogradConv2d"]
    trained = {name for name, parameter in fast[1].named_parameters() if parameter.requires_grad}
    assert trained == {"weight"}


@torch.no_grad()
def test_winograd_layers_are_shared_and_may_be_the_model():
    layer = PHConv2d(8, 8, 3, padding=1, n=1).eval()
    x = torch.randn(2, 8, 8, 8)
    alone = phnn.accelerate(layer, x, plan={"": entry_of("winograd_4")})
    assert close(alone(x), layer(x))
    twice = nn.Sequential(layer, nn.ReLU(), layer).eval()
    plan = {"0": entry_of("winograd_4", channels_last=True)}
    fast = phnn.accelerate(twice, x, plan=plan)
    assert fast[0] is fast[2]
    assert fast[0](x).is_contiguous(memory_format=torch.channels_last)
    assert close(fast(x), twice(x))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", ["vgg11", "resnet18"])
def test_networks_of_the_zoo(name):
    model = phnn.create_model(name, n=4).eval()
    x = torch.randn(2, 3, 32, 32)
    fast = phnn.accelerate(model, x, rounds=1)
    assert close(fast(x), model(x))
    assert not any(isinstance(module, phnn.nn.PHLayer) for module in fast.modules())


def test_lookup_tables_take_indices():
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32)).eval()
    model = phnn.convert(dense, budget=0.5).eval()
    assert type(model[0]).__name__ == "PHEmbedding"
    x = torch.randint(32, (2, 5))
    fast = phnn.accelerate(model, x, rounds=1, seconds=0.1)
    torch.testing.assert_close(fast(x), model(x), atol=1e-5, rtol=1e-4)
