"""Which forms are timed, and which of them are taken."""

import pytest
import torch
from torch import nn

import phnn
import phnn.forms
from helpers.accelerating import FakeRuntime, X, close, form, network
from phnn import PHConv2d
from phnn.acceleration import candidates
from phnn.acceleration.workshop import Choice
from phnn.algebra import complex as complex_numbers
from phnn.runtimes import OnnxRuntime

LABELS = ["folded", "filter_first", "cp_grouped", "cp_grouped_last", "cp_grouped_padded"]


def forms_in(fast):
    return [entry.form for entry in fast.phnn_report.entries]


def whole(**seconds):
    """Seconds of whole models: those of the first property that a choice has, otherwise 1."""
    properties = {
        "last": lambda forms: forms[0].channels_last,
        "products": lambda forms: any(form.rank for form in forms),
        "winograd": lambda forms: any(form.is_winograd for form in forms),
    }

    def models(choice):
        if isinstance(choice, Choice):
            forms = [form for _, form in choice.forms]
            for name, value in seconds.items():
                if all(properties[part](forms) for part in name.split("_")):
                    return value
        return 1.0

    return models


@pytest.mark.parametrize("label", LABELS)
def test_the_fastest_is_taken(label):
    fast = phnn.accelerate(network(), X, runtime=FakeRuntime({label: 0.5}, last=0.1))
    entry = fast.phnn_report.entries[0]
    assert entry.form.label == label
    assert entry.seconds[label] == 0.5


def test_the_whole_model_has_the_last_word():
    layers = {"cp_grouped": 0.5, "cp_grouped_last": 0.6}
    times = whole(products_last=3.0, products=2.0, last=5.0)
    runtime = FakeRuntime(layers, lambda key: 4.0 if times(key) == 1.0 else times(key))
    report = phnn.accelerate(network(), X, runtime=runtime).phnn_report
    assert report.entries[0].form == form("cp_grouped")
    assert report.seconds == {"assembled": 4.0, "folded": 4.0, "accelerated": 2.0}
    model = network()
    runtime = FakeRuntime(layers, whole(products=2.0, last=1.5))
    fast = phnn.accelerate(model, X, runtime=runtime)
    assert forms_in(fast) == [form("folded")] * 3
    assert isinstance(fast[3], nn.Identity)
    assert torch.allclose(fast(X), model(X), atol=1e-5)


def test_dense_forms_may_be_faster_than_products_in_a_whole_model():
    layers = {"cp_grouped": 0.5, "cp_grouped_last": 0.6}
    model = network()
    fast = phnn.accelerate(model, X, runtime=FakeRuntime(layers, whole(products=2.0, last=0.9)))
    last = form("folded", channels_last=True)
    assert forms_in(fast) == [last, last, form("folded")]
    assert torch.allclose(fast(X), model(X), atol=1e-5)


def test_winograd_forms_may_cost_more_in_a_whole_model():
    layers = {"winograd_4": 0.5, "cp_grouped": 0.6}
    runtime = FakeRuntime(layers, whole(winograd=2.0, products=0.9), last=1.0)
    assert forms_in(phnn.accelerate(network(), X, runtime=runtime))[0] == form("cp_grouped")


def test_channels_may_come_last_though_the_example_has_them_first():
    model = network()
    fast = phnn.accelerate(model, X, runtime=FakeRuntime(models=whole(last=0.5)))
    last = form("folded", channels_last=True)
    assert forms_in(fast) == [last, last, form("folded")]
    assert fast[:6](X).is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(fast(X), model(X), atol=1e-5)
    again = phnn.accelerate(model, X, plan=fast.phnn_report.plan)
    assert again[:6](X).is_contiguous(memory_format=torch.channels_last)


class PerLayer(FakeRuntime):
    """Layer 2, of 3×3, is faster with channels last, and layer 5, of 1×1, with channels first."""

    def time(self, contenders, rounds, warmup=2, seconds=0.0):
        times = super().time(contenders, rounds)
        is_wide = any("cp_grouped" in getattr(key, "name", "") for key in contenders)
        for key in contenders:
            if isinstance(key, Choice):
                times[key] = 1 + (key["2"].channels_last == key["5"].channels_last)
            elif getattr(key, "name", "") == "folded":
                times[key] = 0.5 if key.channels_last == is_wide else 0.7
        return times


def test_each_layer_may_have_the_better_format():
    model = network()
    fast = phnn.accelerate(model, X, runtime=PerLayer({"cp_rows": 0.3}))
    assert forms_in(fast)[0] == form("folded", channels_last=True)
    assert not forms_in(fast)[1].channels_last
    assert forms_in(fast)[2] == form("cp_rows")
    assert fast[2].weight.is_contiguous(memory_format=torch.channels_last)
    assert not fast[0].weight.is_contiguous(memory_format=torch.channels_last)  # no PH layer
    assert torch.allclose(fast(X), model(X), atol=1e-5)
    again = phnn.accelerate(model, X, plan=fast.phnn_report.plan)
    assert torch.equal(again(X), fast(X))


class Gated(nn.Module):
    """A plain convolution, a PH one, one on a single position and one that never runs."""

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
def test_layers_without_a_format_leave_it_to_the_others():
    model = Gated().eval()
    fast = phnn.accelerate(model, X, runtime=FakeRuntime(models=whole(last=0.5)))
    assert fast.stem.weight.is_contiguous(memory_format=torch.channels_last)
    assert not model.stem.weight.is_contiguous(memory_format=torch.channels_last)
    assert fast(X).is_contiguous(memory_format=torch.channels_last)
    again = phnn.accelerate(model, X, plan=fast.phnn_report.plan)
    assert again.stem.weight.stride() == fast.stem.weight.stride()
    assert close(fast(X), model(X))


def test_filter_first_is_tried_where_positions_are_few():
    model = nn.Sequential(PHConv2d(64, 64, 3, padding=1, n=4)).eval()
    runtime = FakeRuntime({"filter_first": 0.5})
    fast = phnn.accelerate(model, torch.randn(1, 64, 4, 4), runtime=runtime)
    assert fast.phnn_report.plan["layers"] == {"0": {"form": "filter_first"}}
    assert type(fast[0]).__name__ == "FilterFirstConv2d"
    assert fast[0].filter.weight.shape == model[0].F.shape
    assert "total: 1 filter_first" in str(fast.phnn_report)
    fast = phnn.accelerate(model, torch.randn(1, 64, 40, 40), runtime=runtime)
    assert "filter_first" not in fast.phnn_report.entries[0].seconds


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = PHConv2d(8, 8, 3, n=1)

    def forward(self, x):
        return [self.head(x), self.head(x[..., :5, :5]), self.head(x[..., :4, :4])]


def test_the_tile_size_is_that_of_the_largest_output():
    model, tried = Pyramid().eval(), {}
    for size in (5, 6, 7):
        fast = phnn.accelerate(model, torch.randn(1, 8, size, size), runtime=FakeRuntime())
        tried[size] = set(fast.phnn_report.entries[0].seconds)
    assert tried[7] == {"folded", "winograd_4"}
    assert tried[5] == tried[6] == {"folded", "winograd_2", "winograd_4"}


def test_no_winograd_in_low_precision():
    model = nn.Sequential(PHConv2d(8, 8, 3, algebra=complex_numbers)).eval()
    x, runtime = torch.randn(1, 8, 8, 8), FakeRuntime()
    with torch.autocast("cpu", torch.bfloat16):
        phnn.accelerate(model, x, runtime=runtime)
    phnn.accelerate(model.bfloat16(), x.bfloat16(), runtime=runtime)
    assert not any(key.is_winograd for key in runtime.timed[0])
    assert not any(getattr(key, "is_winograd", False) for keys in runtime.timed for key in keys)


@pytest.mark.parametrize(("size", "tile_size"), [(2, 2), (3, 2), (3, 4), (9, 4)])
def test_winograd_is_tried_where_it_fits(size, tile_size):
    label = f"winograd_{tile_size}"
    runtime = FakeRuntime({label: 0.5}, last=1.0)
    model = nn.Sequential(
        PHConv2d(8, 8, 3, padding=1, bias=False, algebra=complex_numbers), nn.BatchNorm2d(8)
    )
    model(torch.randn(4, 8, size, size))
    x = torch.randn(2, 8, size, size)
    fast = phnn.accelerate(model.eval(), x, runtime=runtime)
    assert fast.phnn_report.plan["layers"] == {"0": {"form": "winograd", "tile_size": tile_size}}
    assert fast.phnn_report.fused == 1
    assert type(fast[0]).__name__ == "WinogradConv2d"
    assert type(fast[1]) is nn.Identity
    assert close(fast(x), model(x))
    again = phnn.accelerate(model, x, plan=fast.phnn_report.plan)
    assert torch.equal(again(x), fast(x))
    without = phnn.accelerate(model, x, runtime=runtime, winograd=False)
    assert "winograd" not in "".join(without.phnn_report.entries[0].seconds)


def test_no_form_more_than_doubles_a_large_model(monkeypatch):
    model = nn.Sequential(PHConv2d(64, 64, 3, padding=1, bias=False, algebra="quaternion")).eval()
    x, weight = torch.randn(1, 64, 8, 8), 64 * 64 * 9
    tried = [set(phnn.accelerate(model, x, runtime=FakeRuntime()).phnn_report.entries[0].seconds)]
    monkeypatch.setattr(candidates, "LARGE", 4 * weight - 1)  # bytes in float32
    runtime = FakeRuntime()
    tried.append(set(phnn.accelerate(model, x, runtime=runtime).phnn_report.entries[0].seconds))
    assert tried[0] - tried[1] == {"winograd_4"}
    assert "cp_winograd_4" in tried[1]
    source = phnn.forms.Source(model[0], phnn.decompose.bilinear(model[0].A).factors)
    for each in phnn.forms.forms_of(source, channels_last=False):
        held = sum(parameter.numel() for parameter in each.build(source).parameters())
        small = 1000  # the matrices that mix components and points
        assert held <= each.growth(source) * weight + small, each


def test_equal_layers_are_timed_once():
    model = nn.Sequential(
        *(PHConv2d(8, 8, 3, padding=1, algebra=complex_numbers) for _ in range(3))
    ).eval()
    runtime, done = FakeRuntime({"cp_grouped": 0.5}), []
    x = torch.randn(1, 8, 5, 5)
    phnn.accelerate(model, x, runtime=runtime, progress=lambda *state: done.append(state))
    timed = [[form.label for form in keys] for keys in runtime.timed[:2]]
    winograd = ["cp_winograd_4", "winograd_4"]
    last = ["cp_grouped_last", "cp_grouped_padded_last"]
    assert timed == [
        ["folded", "filter_first", "cp_grouped", "cp_grouped_padded", *last, *winograd],
        ["folded", "filter_first", *last, *winograd],
    ]
    assert not any(isinstance(key, Choice) for keys in runtime.timed[:2] for key in keys)
    assert all(isinstance(keys[-1], Choice) for keys in runtime.timed[2:])
    layers = [state for state in done if state[0] == "timing layers"]
    assert layers == [("timing layers", number, 6) for number in range(1, 7)]  # in both formats
    assert done[0] == ("decomposing algebras", 0, 1)
    assert done[-1][0] == "racing whole models"


def test_two_models_race_at_a_time():
    runtime = FakeRuntime({"winograd_4": 0.5, "cp_grouped": 0.6})
    phnn.accelerate(network(), X, runtime=runtime)
    races = [keys for keys in runtime.timed if isinstance(keys[-1], Choice)]
    assert all(len(keys) == 2 for keys in races[:-1])
    assert races[-1][0] == "assembled"


def test_nothing_that_is_returned_is_built_twice(monkeypatch):
    built = []
    for kind in phnn.forms.FORMS:
        if "build" in vars(kind):

            def keep(self, source, build=kind.build):
                built.append((self, source.layer))
                return build(self, source)

            monkeypatch.setattr(kind, "build", keep)
    model = network()
    fast = phnn.accelerate(model, X, runtime=FakeRuntime({"cp_grouped": 0.5}, last=1.0))
    for entry in fast.phnn_report.entries:
        assert built.count((entry.form, model.get_submodule(entry.name))) == 1, entry


@pytest.mark.parametrize("runtime", ["torch", "compile"])
def test_runtimes(monkeypatch, runtime):
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile(f, backend="eager"))
    model = nn.Sequential(PHConv2d(8, 8, 1, algebra=complex_numbers), nn.ReLU()).eval()
    x = torch.randn(2, 8, 5, 5)
    fast = phnn.accelerate(model, x, runtime=runtime, rounds=1)
    assert close(fast(x), model(x))
    assert f"whole model in {runtime}" in str(fast.phnn_report)
    with pytest.raises(ValueError, match=r"runtime must be one of torch, compile, .*; got 'tpu'"):
        phnn.accelerate(model, x, runtime="tpu")


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@torch.no_grad()
def test_graph_runtimes(name):
    pytest.importorskip(name)
    layers = (PHConv2d(8, 8, 3, padding=1, algebra=complex_numbers), nn.BatchNorm2d(8), nn.ReLU())
    model = nn.Sequential(*layers).eval()
    x = torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last)
    fast = phnn.accelerate(model, x, runtime=name, rounds=1)
    assert close(fast(x), model(x))
    report = fast.phnn_report
    assert f"whole model in {name}" in str(report)
    assert {"folded", "cp_grouped"} <= set(report.entries[0].seconds)
    assert "winograd" not in "".join(report.entries[0].seconds)
    assert not report.entries[0].form.channels_last  # graphs have no memory format
    again = phnn.accelerate(model, x, runtime=name, plan=report.plan)
    assert torch.equal(again(x), fast(x))


@torch.no_grad()
def test_outputs_are_compared_in_the_runtime(monkeypatch):
    pytest.importorskip("onnxruntime")
    load = OnnxRuntime.load

    def load_other(self, graph):
        run = load(self, graph)
        return lambda inputs: [output + 1 for output in run(inputs)]

    monkeypatch.setattr(OnnxRuntime, "load", load_other)
    model, plan = nn.Sequential(PHConv2d(8, 8, 1, n=2)).eval(), {"0": {"form": "folded"}}
    with pytest.raises(RuntimeError, match="the accelerated model in onnxruntime differs from the"):
        phnn.accelerate(model, torch.randn(1, 8, 2, 2), runtime="onnxruntime", plan=plan)


def test_folded_unless_another_is_clearly_faster():
    for seconds, expected in ((0.97, "cp_grouped"), (0.99, "folded")):
        model = nn.Sequential(PHConv2d(8, 8, 3, algebra=complex_numbers)).eval()
        runtime = FakeRuntime({"cp_grouped": seconds}, last=1.0)
        fast = phnn.accelerate(model, torch.randn(1, 8, 5, 5), runtime=runtime, winograd=False)
        assert fast.phnn_report.entries[0].form.name == expected
