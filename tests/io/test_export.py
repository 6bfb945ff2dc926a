import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import phnn
from phnn.io import Exported, ExportError, export
from phnn.models import create_model

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason='ONNX comes with pip install "phnn[export]"',
)
formats = pytest.mark.parametrize("format", [pytest.param("onnx", marks=needs_onnx), "torch"])
modes = pytest.mark.parametrize("fold", [True, False], ids=["folded", "assembled"])
SUFFIXES = {"onnx": "onnx", "torch": "pt2"}

LAYERS = {
    "linear": (phnn.PHLinear(64, 64, n=4), (1, 64)),
    "fixed": (phnn.PHLinear(64, 64, algebra=phnn.algebra.quaternion), (2, 64)),
    "terms": (phnn.PHConv1d(16, 32, 3, n=4, terms=6), (2, 16, 10)),
    "conv": (phnn.PHConv2d(16, 32, 3, padding=1, padding_mode="circular", n=4), (2, 16, 8, 8)),
    "grouped": (phnn.PHConv2d(16, 32, 3, stride=2, groups=2, n=4), (3, 16, 9, 9)),
    "volume": (phnn.PHConv3d(8, 8, 3, n=2), (2, 8, 4, 4, 4)),
    "rank": (phnn.PHLinear(64, 64, n=4, rank=4), (2, 64)),
    "rank above terms": (phnn.PHConv2d(16, 16, 3, groups=2, n=4, rank=7), (2, 16, 8, 8)),
    "transposed": (phnn.PHConvTranspose2d(16, 32, 2, stride=2, n=4), (2, 16, 5, 5)),
}


def run_onnx(path, *inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    feeds = {a.name: x.numpy() for a, x in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(output) for output in session.run(None, feeds)]


def run(path, *inputs):
    """What a user computes who has the file alone."""
    if path.suffix == ".onnx":
        return run_onnx(path, *inputs)[0]
    return torch.export.load(path).module()(*inputs)


def total(files):
    return sum(file.stat().st_size for file in files)


@formats
@pytest.mark.parametrize(
    ("layer", "fold"),
    [*((layer, False) for layer in LAYERS), ("linear", True), ("conv", True), ("transposed", True)],
)
def test_every_kind_of_layer(tmp_path, layer, format, fold):
    model, shape = LAYERS[layer]
    model.eval()
    path = tmp_path / f"model.{SUFFIXES[format]}"
    exported = export(model, path, torch.randn(shape), format=format, fold=fold)
    assert exported.path == path
    assert exported.files == (path,) == tuple(tmp_path.iterdir())
    assert exported.size == path.stat().st_size
    assert exported.max_difference < 1e-5
    for batch in (1, 2, 5):
        x = torch.randn(batch, *shape[1:])
        with torch.no_grad():
            assert torch.allclose(run(path, x), model(x), atol=1e-5)


@formats
def test_unfolded_files_are_smaller(tmp_path, format):
    model = nn.Sequential(phnn.PHLinear(256, 256, n=4), nn.ReLU(), phnn.PHLinear(256, 16, n=4))
    model.eval()
    x = torch.randn(1, 256)
    folded, assembled = (
        export(model, tmp_path / f"{fold}.{SUFFIXES[format]}", x, format=format, fold=fold)
        for fold in (True, False)
    )
    weights = 4 * 256 * (256 + 16)  # bytes
    assert weights < folded.size < weights + 40_000
    assert weights / 4 < assembled.size < weights / 4 + 40_000


def shrunk():
    """A network with low-rank, filter-first, mix-first, assembled and plain layers."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        phnn.PHConv2d(16, 32, 3, padding=1, n=(32, 1), terms=4),
        phnn.PHConv2d(32, 32, 3, stride=2, padding=1, n=(1, 32), terms=4),
        phnn.PHConv2d(32, 64, 3, padding=1, n=(16, 4), terms=1),
        phnn.PHConv2d(64, 64, 3, padding=1, n=(8, 8), terms=10),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        phnn.PHLinear(64, 64, n=(64, 1), terms=6),
    ).eval()


@formats
def test_a_shrunk_network_is_written_as_it_is(tmp_path, format):
    """As many bytes and multiplications as the model has, without an option."""
    model, x = shrunk(), torch.randn(2, 3, 12, 12)
    exported = export(model, tmp_path / f"m.{SUFFIXES[format]}", x, format=format)
    stored = 4 * sum(parameter.numel() for parameter in model.parameters())
    folded = 4 * sum(parameter.numel() for parameter in phnn.to_dense(model).parameters())
    assert stored < exported.size < stored + 50_000 < folded
    with torch.no_grad():
        assert torch.allclose(run(exported.path, x), model(x), atol=1e-4)
    if format == "torch":
        program = torch.export.load(exported.path).module()
        assert multiplications(program, x) <= multiplications(model, x)
        assert multiplications(program, x) < 0.6 * multiplications(phnn.to_dense(model), x)


def multiplications(module, x):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2


@needs_onnx
def test_low_rank_layers_are_two_plain_layers(tmp_path):
    import onnx

    layers = [
        phnn.PHConv2d(8, 16, 3, padding=1, n=(16, 1), terms=2),
        phnn.PHConv2d(16, 8, 3, padding=1, n=(1, 16), terms=2),
    ]
    path = export(nn.Sequential(*layers).eval(), tmp_path / "m.onnx", torch.randn(1, 8, 6, 6)).path
    assert [node.op_type for node in onnx.load(path).graph.node] == ["Conv"] * 4


@needs_onnx
@pytest.mark.parametrize("width", [16, 64])
def test_the_optimizer_does_not_assemble(tmp_path, width):
    """Not even small weights, which it folds where it may."""
    import onnx

    model = nn.Sequential(phnn.PHLinear(width, width, n=4)).eval()
    path = export(model, tmp_path / "m.onnx", torch.randn(1, width), fold=False).path
    stored = sum(len(tensor.raw_data) for tensor in onnx.load(path).graph.initializer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert 4 * parameters <= stored < 4 * parameters + 200  # and some shapes


@needs_onnx
@modes
def test_a_network(tmp_path, fold):
    model = create_model("resnet20", n=4).eval()
    exported = export(model, tmp_path / "m.onnx", torch.randn(1, 3, 32, 32), fold=fold)
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(run(exported.path, x), model(x), atol=1e-5)
    folded = 4 * sum(parameter.numel() for parameter in phnn.to_dense(model).parameters())
    expected = folded if fold else folded * 0.3
    assert 0.9 * expected < exported.size < 1.1 * expected


@needs_onnx
def test_large_tensors_lie_beside_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD", 0)
    model = phnn.PHLinear(64, 64, n=4).eval()
    exported = export(model, tmp_path / "m.onnx", torch.randn(2, 64))
    assert [file.name for file in exported.files] == ["m.onnx", "m.onnx.data"]
    assert exported.size == total(tmp_path.iterdir()) > 4 * 64 * 16
    assert str(exported).startswith(f"{tmp_path / 'm.onnx'}, {tmp_path / 'm.onnx.data'}: ")
    x = torch.randn(3, 64)
    assert torch.allclose(run(exported.path, x), model(x).detach(), atol=1e-5)


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = phnn.PHLinear(8, 8, n=2)

    def forward(self, x, y):
        return {"sum": self.layer(x + y), "rest": (self.layer(x), None)}


@formats
def test_several_inputs_and_outputs(tmp_path, format):
    path = tmp_path / f"m.{SUFFIXES[format]}"
    exported = export(Several().eval(), path, [torch.randn(2, 8), torch.randn(2, 8)], format=format)
    assert exported.max_difference < 1e-6


@formats
def test_a_fixed_batch(tmp_path, format):
    model = phnn.PHLinear(8, 8, n=2).eval()
    path = tmp_path / f"m.{SUFFIXES[format]}"
    export(model, path, torch.randn(3, 8), format=format, dynamic_batch=False)
    assert run(path, torch.randn(3, 8)).shape == (3, 8)
    with pytest.raises(Exception, match=r"Got: 4 Expected: 3|equal to 3|== 3"):
        run(path, torch.randn(4, 8))


@needs_onnx
def test_the_batch_has_a_name(tmp_path):
    import onnxruntime

    path = export(phnn.PHLinear(8, 8, n=2).eval(), tmp_path / "m.onnx", torch.randn(1, 8)).path
    (argument,) = onnxruntime.InferenceSession(path).get_inputs()
    assert argument.shape == ["batch", 8]


@formats
def test_files_hold_no_paths_and_no_data(tmp_path, format):
    path = tmp_path / f"m.{SUFFIXES[format]}"
    secret = torch.full((2, 8), 12345.678)
    export(phnn.PHLinear(8, 8, n=2).eval(), path, secret, format=format)
    content = path.read_bytes()
    assert str(Path(phnn.__file__).parent).encode() not in content
    assert secret[0].numpy().tobytes() not in content


def test_the_model_stays_as_it_is(tmp_path):
    model = nn.Sequential(phnn.PHLinear(8, 8, n=2)).eval()
    before = model[0]
    export(model, tmp_path / "m.pt2", torch.randn(1, 8), format="torch")
    assert model[0] is before
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_it_prints_as_one_line():
    exported = Exported(Path("m.onnx"), (Path("m.onnx"),), 12345, 3e-8)
    assert str(exported) == (
        "m.onnx: 12,345 bytes; the outputs differ from the model's by at most 3.0e-08"
    )


@pytest.mark.slow
@needs_onnx
def test_nothing_is_said(tmp_path):
    code = (
        "import torch, phnn; from phnn.io import export;"
        f"export(phnn.PHLinear(8, 8, n=2).eval(), {str(tmp_path / 'm.onnx')!r}, torch.randn(1, 8))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


class TestBadInput:
    x = torch.randn(2, 8)

    def test_training_mode(self, tmp_path):
        with pytest.raises(ValueError, match=r"evaluation mode; call model\.eval\(\) first"):
            export(phnn.PHLinear(8, 8, n=2), tmp_path / "m.pt2", self.x, format="torch")

    def test_unknown_format(self, tmp_path):
        with pytest.raises(ValueError, match="format must be one of onnx, torch; got 'tflite'"):
            export(nn.Linear(8, 8).eval(), tmp_path / "m.tflite", self.x, format="tflite")

    def test_suffix_of_another_format(self, tmp_path):
        with pytest.raises(ValueError, match=r"'torch' must end in \.pt2, got .*m\.onnx"):
            export(nn.Linear(8, 8).eval(), tmp_path / "m.onnx", self.x, format="torch")

    def test_missing_packages(self, tmp_path, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(
            ModuleNotFoundError,
            match=re.escape('onnxruntime not installed; pip install "phnn[export]"'),
        ):
            export(nn.Linear(8, 8).eval(), tmp_path / "m.onnx", self.x)

    @pytest.mark.parametrize(
        "inputs", [[torch.randn(2, 8), torch.randn(3, 8)], [torch.tensor(1.0)], []]
    )
    def test_no_common_batch(self, tmp_path, inputs):
        with pytest.raises(ValueError, match=r"first axis of every input.*dynamic_batch=False"):
            export(Several().eval(), tmp_path / "m.pt2", inputs, format="torch")

    def test_a_model_that_cannot_be_traced(self, tmp_path):
        class Branching(nn.Module):
            def forward(self, x):
                return x if len(x) == 4 else -x

        path = tmp_path / "m.pt2"
        with pytest.raises(ExportError, match=r"cannot trace .*dynamic_batch=False may help"):
            export(Branching().eval(), path, self.x, format="torch")
        assert export(Branching().eval(), path, self.x, format="torch", dynamic_batch=False)

    def test_a_program_that_computes_something_else(self, tmp_path):
        class Drawing(nn.Module):
            def forward(self, x):
                return x + torch.rand_like(x)

        path = tmp_path / "m.pt2"
        with pytest.raises(ExportError, match=r"differs from the model by 0\.\d+, in outputs of"):
            export(Drawing().eval(), path, self.x, format="torch")
        assert list(tmp_path.iterdir()) == []


class Masked(nn.Module):
    """Logits of which some are ruled out, and whether they are."""

    def __init__(self):
        super().__init__()
        self.layer = phnn.PHLinear(8, 4, n=2)

    def forward(self, x):
        out = x[:, :4] > 0
        return self.layer(x).masked_fill(out, float("-inf")), out


def test_infinite_and_boolean_outputs_are_compared(tmp_path):
    made = export(Masked().eval(), tmp_path / "a.pt2", torch.randn(3, 8), format="torch")
    assert made.max_difference < 1e-6


def test_bfloat16_is_not_for_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    model = phnn.PHLinear(8, 4, n=2).bfloat16().eval()
    with pytest.raises(ValueError, match=r'model\.float\(\), or use format="torch"'):
        export(model, tmp_path / "a.onnx", torch.randn(3, 8, dtype=torch.bfloat16))


class AnyNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = phnn.PHLinear(8, 8, n=2)

    def forward(self, x, *others):
        return self.layer(x) + sum(others)


@pytest.mark.parametrize("count", [1, 3])
def test_models_that_take_any_number_of_inputs(tmp_path, count):
    inputs = [torch.randn(2, 8) for _ in range(count)]
    written = export(AnyNumber().eval(), tmp_path / "m.pt2", inputs, format="torch")
    assert written.max_difference < 1e-5
