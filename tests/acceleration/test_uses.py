"""What people do with accelerated models."""

import copy
import importlib.util
import io
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

import phnn
from helpers.accelerating import FakeRuntime, X, close, entry_of, network
from phnn import PHConv2d, PHLinear
from phnn.algebra import complex as complex_numbers
from phnn.decompose import bilinear
from phnn.forms import FORMS

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason='ONNX comes with pip install "phnn[export]"',
)


@pytest.fixture(scope="module")
def fast():
    """A network whose layers are computed in one form each, and a linear one in two."""
    wide, pointwise = {"kernel_size": 3, "padding": 1}, {"kernel_size": 1}
    layers = {
        "folded": {**wide, "groups": 2},
        "filter_first": {**wide, "groups": 2},
        "mix_first": {**wide, "groups": 2},
        "cp_grouped": {**wide, "groups": 2},
        "cp_grouped_padded": {**wide, "groups": 2},
        "cp_grouped_last": {**wide, "groups": 2},
        "cp_grouped_padded_last": {**wide, "groups": 2},
        "cp_samples": pointwise,
        "cp_columns": {**pointwise, "stride": 2},
        "cp_rows": pointwise,
        "cp_winograd_2": wide,
        "winograd_4": wide,
    }
    parts = OrderedDict()
    for label, options in layers.items():
        parts[label] = PHConv2d(8, 8, **options, algebra=complex_numbers)
    parts |= {"relu": nn.ReLU(), "flatten": nn.Flatten()}
    parts["linear"] = PHLinear(32, 8, algebra=complex_numbers)
    parts["mixed"] = PHLinear(8, 8, algebra=complex_numbers)
    parts["last"] = PHLinear(8, 8, algebra=complex_numbers)
    plan = {label: entry_of(label) for label in layers}
    plan |= {"linear": entry_of("cp_rows"), "last": {"form": "filter_first"}}
    plan["mixed"] = {"form": "mix_first"}
    assert {fields["form"] for fields in plan.values()} == {kind.name for kind in FORMS}
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
        report = other.phnn_report  # plain data, where it was pickled
        assert (report["text"] if isinstance(report, dict) else str(report)) == str(
            fast.phnn_report
        )
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


@pytest.mark.parametrize(
    "format", [pytest.param("onnx", marks=[needs_onnx, pytest.mark.slow]), "torch"]
)
def test_exports_with_an_open_batch(fast, tmp_path, format):
    path = tmp_path / {"onnx": "fast.onnx", "torch": "fast.pt2"}[format]
    exported = phnn.export(fast, path, IMAGES[:2], format=format)
    assert exported.max_difference < 1e-5


@pytest.mark.parametrize("label", ["cp_samples", "cp_columns", "cp_rows", "mix_first"])
@torch.no_grad()
def test_strided_layers_export_with_open_sizes(label):
    layer = PHConv2d(8, 8, 1, stride=2, n=2).eval()
    rank = bilinear(layer.A).rank
    plan = {"": entry_of(label, rank)}
    x = torch.randn(4, 8, 5, 6)
    fast = phnn.accelerate(layer, x, plan=plan)
    open_sizes = {axis: torch.export.Dim(f"d{axis}", min=3, max=64) for axis in (0, 2, 3)}
    program = torch.export.export(fast, (x,), dynamic_shapes=(open_sizes,)).module()
    for shape in ((3, 8, 4, 9), (5, 8, 7, 3)):
        other = torch.randn(shape)
        assert close(program(other), layer(other))


def test_the_report_prints_as_a_table():
    def models(choice):
        return 2.0 if choice == "assembled" else 0.75 if choice["2"].rank else 1.0

    runtime = FakeRuntime({"cp_grouped": 0.5}, models)
    report = phnn.accelerate(network(), X, runtime=runtime).phnn_report
    head, *rows, total = str(report).splitlines()
    assert head.split("  ")[0] == "layer"
    assert len(rows) == 3
    assert "PHConv2d complex" in rows[0]
    assert "cp_grouped" in rows[0]
    for part in (
        "total: 1 cp_grouped, 2 folded",
        "multiplications (",
        "1 batch norms fused",
        "whole model in torch: assembled 2e+03 ms, folded 1e+03 ms, accelerated 750 ms",
        "outputs differ by at most",
    ):
        assert part in total
