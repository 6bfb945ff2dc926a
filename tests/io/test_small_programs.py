"""Exported programs that hold filters, in several types, and compute their weights when loaded."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn

import phnn
from phnn.io import ExportError, export
from phnn.runtimes import OnnxRuntime, OpenVINO

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

X = torch.randn(2, 8, 8, 8)
FORMS = {
    "0": {"form": "folded"},
    "3": {"form": "cp_grouped", "rank": 7, "zero_padded": True},
    "5": {"form": "cp_samples", "rank": 7},
    "7": {"form": "cp_winograd", "rank": 7},
    "9": {"form": "winograd", "tile_size": 2},
    "12": {"form": "filter_first"},
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(32)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    layers = [
        phnn.PHConv2d(8, 32, 3, padding=1, n=4),
        norm,
        nn.ReLU(),
        phnn.PHConv2d(32, 32, 3, padding=1, n=4),
        copy.deepcopy(norm),
        phnn.PHConv2d(32, 64, 1, n=4),
        nn.ReLU(),
        phnn.PHConv2d(64, 64, 3, padding=1, n=4),
        nn.ReLU(),
        phnn.PHConv2d(64, 64, 3, padding=1, n=4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        phnn.PHLinear(64, 16, n=4),
        nn.Linear(16, 12),
    ]
    return nn.Sequential(*layers).eval()


def list_initializers(path):
    return {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}


def optimized_by_onnxruntime(path, folder):
    target = folder / "optimized.onnx"
    OnnxRuntime().open(path, optimized=target)
    return Counter(node.op_type for node in onnx.load(target).graph.node)


def optimized_by_openvino(path, _):
    pytest.importorskip("openvino")
    graph = OpenVINO().open(path).get_runtime_model()
    return Counter(op.get_rt_info()["layerType"].astype(str) for op in graph.get_ops())


OPTIMIZED = {"onnxruntime": optimized_by_onnxruntime, "openvino": optimized_by_openvino}
LEFT = {"Einsum", "Cast", "Div", "Convert", "Expand", "BatchNormalization"}


@pytest.mark.parametrize(
    ("runtime", "storage"),
    [
        (None, "int8"),
        ("onnxruntime", "float16"),
        pytest.param(None, "float16", marks=pytest.mark.slow),
        pytest.param("onnxruntime", "int8", marks=pytest.mark.slow),
        pytest.param(None, "float32", marks=pytest.mark.slow),
        pytest.param("onnxruntime", "float32", marks=pytest.mark.slow),
    ],
)
def test_filters_are_restored_when_the_file_is_loaded(tmp_path, model, runtime, storage):
    plan = None if runtime is None else FORMS
    path = tmp_path / "m.onnx"
    made = export(model, path, X, runtime=runtime, plan=plan, storage=storage)
    limit = {"float32": 1e-5, "float16": 1e-3, "int8": 0.02}[storage]
    assert made.relative_difference < limit
    assert (made.relative_difference > 1e-5) == (storage != "float32")
    held = list_initializers(path).values()
    large = sum(t.ByteSize() for t in held if len(t.dims) > 1)
    filters = sum(layer.F.numel() for layer in model if isinstance(layer, phnn.nn.PHLayer))
    width = {"float32": 4, "float16": 2, "int8": 1}[storage]
    assert width * filters < large < width * filters + 16_000  # scales, factors and indices
    for name, optimize in OPTIMIZED.items():
        ops = optimize(path, tmp_path)
        left = LEFT if runtime is None else LEFT - {"BatchNormalization"}
        assert not left & set(ops), (name, ops)


def test_a_plain_file_keeps_no_trace_of_the_algebra_when_it_runs(tmp_path, model):
    path = export(model, tmp_path / "m.onnx", X).path
    ops = optimized_by_onnxruntime(path, tmp_path)
    assert ops["Conv"] == 5
    assert set(ops) <= {"ReorderInput", "Conv", "ReorderOutput", "ReduceMean", "Reshape", "Gemm"}


def test_int8_has_a_scale_for_each_filter(tmp_path):
    layer = phnn.PHLinear(64, 64, n=2).eval()
    with torch.no_grad():
        layer.F[0] *= 1000.0
        layer.F[1] = 0.0
    path = export(layer, tmp_path / "m.onnx", torch.randn(2, 64), storage="int8").path
    values = onnx.numpy_helper.to_array(
        next(t for name, t in list_initializers(path).items() if name.endswith("values"))
    )
    assert values.dtype.name == "int8"
    assert abs(values).max(1).tolist() == [127, 0] + 62 * [127]


def test_tied_weights_are_stored_once(tmp_path):
    layer = phnn.PHLinear(128, 128, n=2)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(128, 128)).eval()
    made = export(model, tmp_path / "m.onnx", torch.randn(2, 128), storage="int8")
    assert 128 * 64 + 128 * 128 < made.size < 128 * 64 + 128 * 128 + 12_000


def test_the_model_stays_as_it_is(tmp_path, model):
    before = {name: type(module) for name, module in model.named_modules()}
    state = copy.deepcopy(model.state_dict())
    export(model, tmp_path / "m.onnx", X, storage="int8")
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_accelerated_programs_report_their_forms(tmp_path, model):
    made = export(model, tmp_path / "m.onnx", X, runtime="onnxruntime", plan=FORMS, opset=20)
    assert made.acceleration.plan["layers"] == {
        name: {**form, **({"tile_size": 4} if "winograd" in form["form"] else {}), **form}
        for name, form in FORMS.items()
    }
    proto = onnx.load(made.path)
    assert [entry.version for entry in proto.opset_import if not entry.domain] == [20]
    for batch in (1, 5):
        x = torch.randn(batch, 8, 8, 8)
        with torch.no_grad():
            run = OnnxRuntime().load(made.path)
            assert torch.allclose(torch.from_numpy(run([x.numpy()])[0]), model(x), atol=1e-4)


def test_an_opset_that_torch_cannot_write_is_refused_before_the_work(tmp_path, model):
    told = []
    with pytest.raises(ExportError, match="with opset=3, but with opset="):
        export(
            model,
            tmp_path / "m.onnx",
            X,
            runtime="onnxruntime",
            opset=3,
            progress=lambda *what: told.append(what),
        )
    assert not told
    assert not list(tmp_path.iterdir())


def test_open_height_and_width(tmp_path):
    layers = (phnn.PHConv2d(8, 8, 3, padding=1, n=4), nn.ReLU(), phnn.PHConv2d(8, 8, 1, n=4))
    model = nn.Sequential(*layers).eval()
    plan = {"0": {"form": "cp_grouped", "rank": 7}, "2": {"form": "cp_samples", "rank": 7}}
    for options in ({}, {"runtime": "onnxruntime", "plan": plan}):
        path = export(model, tmp_path / "m.onnx", X, dynamic_size=True, **options).path
        (shape,) = [
            [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
            for value in onnx.load(path).graph.input
        ]
        assert shape == ["batch", 8, "height", "width"]
        run = OnnxRuntime().load(path)
        for size in ((5, 9), (16, 3)):
            x = torch.randn(3, 8, *size)
            with torch.no_grad():
                assert torch.allclose(torch.from_numpy(run([x.numpy()])[0]), model(x), atol=1e-4)


@torch.no_grad()
def test_static_quantization(tmp_path, model):
    torch.manual_seed(0)
    batches = [(torch.randn(2, 8, 8, 8), torch.zeros(2)) for _ in range(4)]  # with labels
    path = tmp_path / "m.onnx"
    made = export(model, path, X, quantize="static", calibration=batches)
    assert list(tmp_path.iterdir()) == [path]
    assert 1e-4 < made.relative_difference < 0.3
    assert "of the largest" in str(made)
    nodes = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert nodes["QuantizeLinear"] > 5
    weights = [t for t in list_initializers(path).values() if len(t.dims) == 4]
    assert len(weights) == 5
    assert all(t.data_type == onnx.TensorProto.INT8 for t in weights)
    x = torch.randn(5, 8, 8, 8)
    (found,) = OnnxRuntime().load(path)([x.numpy()])
    expected = model(x)
    assert (torch.from_numpy(found) - expected).abs().max() < 0.3 * expected.abs().max()


class TestBadInput:
    def test_sizes_that_are_fixed(self, tmp_path, monkeypatch):
        model = nn.Sequential(phnn.PHConv2d(8, 8, 1, n=4), nn.Flatten(), nn.Linear(512, 4)).eval()
        monkeypatch.setattr("phnn.io.exporting.find_fastest", None)  # no work before the error
        with pytest.raises(ExportError, match="dynamic_batch=False or dynamic_size=False may help"):
            export(model, tmp_path / "m.onnx", X, dynamic_size=True, runtime="onnxruntime")
        with pytest.raises(ValueError, match=r"a dynamic size needs images .*got \(2, 8\)"):
            export(nn.Linear(8, 8).eval(), tmp_path / "m.onnx", X[:, :, 0, 0], dynamic_size=True)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"storage": "int4"}, "storage must be one of float32, float16, int8; got 'int4'"),
            ({"quantize": "dynamic"}, "quantize must be one of static or None; got 'dynamic'"),
            ({"quantize": "static"}, "give calibration="),
            ({"calibration": [X]}, 'calibration= is for quantize="static"'),
            ({"quantize": "static", "calibration": []}, "calibration= holds no batches"),
            (
                {"quantize": "static", "calibration": [X, X[:, :4]]},
                r"batch 1 of calibration= holds \(2, 4, 8, 8\) torch.float32, the example \(2, 8",
            ),
            ({"quantize": "static", "calibration": [X], "storage": "int8"}, "leave out storage="),
            ({"plan": FORMS}, "give runtime= as well"),
            ({"runtime": "torch"}, "runtime='torch' does not run programs of format='onnx'; onnxr"),
            ({"runtime": "tpu"}, "runtime must be one of"),
            ({"fold": True, "storage": "int8", "runtime": "onnxruntime"}, "leave out fold="),
        ],
    )
    def test_options(self, tmp_path, model, options, message):
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path / "m.onnx", X, **options)
        assert list(tmp_path.iterdir()) == []

    def test_programs_of_torch(self, tmp_path, model):
        with pytest.raises(ValueError, match='are for format="onnx"'):
            export(model, tmp_path / "m.pt2", X, format="torch", storage="int8")

    def test_filters_that_a_type_cannot_hold(self, tmp_path):
        layer = nn.Linear(4, 4).eval()
        with torch.no_grad():
            layer.weight[0, 0] = 1e6
        with pytest.raises(ValueError, match=r"of up to 1e\+06 are too large for float16; use int"):
            export(layer, tmp_path / "m.onnx", torch.randn(1, 4), storage="float16")
        with torch.no_grad():
            layer.weight[0, 0] = float("nan")
        with pytest.raises(ValueError, match="not finite cannot be stored as int8"):
            export(layer, tmp_path / "m.onnx", torch.randn(1, 4), storage="int8")
        assert list(tmp_path.iterdir()) == []
