"""Runtimes that run ONNX graphs."""

import importlib.metadata
import importlib.util

import onnx
import pytest
import torch
from torch import nn

from phnn.runtimes import ExportError, OnnxRuntime, OpenVINO, find_runtime
from phnn.runtimes.graph_runtime import write_graph, write_together
from phnn.runtimes.graphs import convert_program, trace

RUNTIMES = [
    pytest.param(kind(), id=kind.name)
    if importlib.util.find_spec(kind.package)
    else pytest.param(kind(), id=kind.name, marks=pytest.mark.skip(f"needs {kind.package}"))
    for kind in (OnnxRuntime, OpenVINO)
]
runtimes = pytest.mark.parametrize("runtime", RUNTIMES)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, scale):
        return {"y": self.layer(x) * scale, "rest": [x + 1, None]}


@runtimes
def test_outputs_of_all_calls(runtime):
    model = Named().eval()
    calls = [
        ((torch.randn(2, 4),), {"scale": torch.randn(2, 1)}),
        ((torch.randn(3, 4), torch.randn(3, 1)), {}),
    ]
    outputs = runtime.prepare(model, calls)()
    for (args, kwargs), found in zip(calls, outputs, strict=True):
        expected = model(*args, **kwargs)
        assert torch.allclose(found[0], expected["y"], atol=1e-5)
        assert torch.allclose(found[1], expected["rest"][0], atol=1e-5)


@runtimes
def test_several_modules_at_once(runtime):
    modules = {"one": nn.Conv2d(4, 4, 1).eval(), 2: nn.Sequential(nn.ReLU(), nn.Conv2d(4, 2, 1))}
    images = [torch.randn(shape) for shape in ((1, 4, 3, 3), (2, 4, 5, 5), (1, 4, 3, 3))]
    images[1] = images[1].to(memory_format=torch.channels_last)  # which graphs do not know
    calls = [((x,), {}) for x in images]
    runs = runtime.prepare_all(modules, calls)
    assert runs.keys() == modules.keys()
    for key, run in runs.items():
        for ((x,), _), (found,) in zip(calls, run(), strict=True):
            assert torch.allclose(found, modules[key](x), atol=1e-5)


def test_graphs_that_are_written_together_hold_their_own_weights():
    x = torch.randn(1, 8)
    modules = {width: nn.Linear(8, width) for width in (2, 500)}
    graphs = write_together(modules, x)
    assert len(graphs[2]) < 1000 < 4 * 8 * 500 < len(graphs[500])
    assert graphs[2] != write_graph(modules[500], (x,), {})


def test_a_form_that_does_not_run_is_left_out(monkeypatch):
    runtime = OnnxRuntime()
    modules = {"plain": nn.Identity(), "odd": nn.Softplus()}
    load = OnnxRuntime.load

    def refuse(self, graph):
        if b"Softplus" in graph or b"Log" in graph:
            raise ExportError("no such operator")
        return load(self, graph)

    monkeypatch.setattr(OnnxRuntime, "load", refuse)
    calls = [((torch.randn(2, 2),), {})]
    assert runtime.prepare_all(modules, calls).keys() == {"plain"}
    with pytest.raises(ExportError, match="no such operator"):
        runtime.prepare_all({"odd": nn.Softplus(), "plain": nn.Identity()}, calls)


@runtimes
def test_graphs_that_cannot_run(runtime):
    bad = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Unknown", ["x"], ["y"], domain="nowhere")],
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, [1])],
            [onnx.helper.make_tensor_value_info("y", 1, [1])],
        )
    )
    with pytest.raises(ExportError, match=r"(?i)runtime .* cannot run|OpenVINO .* cannot run"):
        runtime.load(bad.SerializeToString())


def test_models_without_a_graph():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    class Foreign(nn.Module):
        def forward(self, x):
            return torch.special.zeta(x, x)

    x = torch.rand(2, 2) + 2
    with pytest.raises(ExportError, match=r"torch\.export cannot trace this model"):
        write_graph(Branching(), (x,), {})
    with pytest.raises(ExportError, match=r"ONNX cannot hold this model: .*zeta"):
        write_graph(Foreign(), (x,), {})
    with pytest.raises(ExportError, match="bfloat16"):
        OnnxRuntime().prepare(nn.Identity(), [((x.bfloat16(),), {})])


def test_opset():
    program = trace(nn.Linear(4, 4), (torch.randn(1, 4),))
    for opset in (18, 20):
        model = convert_program(program, opset=opset).model_proto
        assert {entry.version for entry in model.opset_import if not entry.domain} == {opset}


def test_runtimes_that_are_missing(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "openvino" else find(name)
    )
    with pytest.raises(
        ModuleNotFoundError, match=r'openvino not installed; pip install "phnn\[openvino\]"'
    ):
        find_runtime("openvino")


def test_runtimes_that_are_too_old(monkeypatch):
    version = importlib.metadata.version
    monkeypatch.setattr(
        "importlib.metadata.version",
        lambda name: "1.9.0" if name == "onnxruntime" else version(name),
    )
    with pytest.raises(
        ImportError, match=r'onnxruntime 1\.9\.0 is too old, .* 1\.20 .*-U "phnn\[export\]"'
    ):
        find_runtime("onnxruntime")


def test_threads():
    assert OnnxRuntime(threads=2).count_threads() == 2
    assert OnnxRuntime().count_threads() == torch.get_num_threads()
    with pytest.raises(ValueError, match="threads must be at least 1, got threads=0"):
        find_runtime(OnnxRuntime(threads=0))
    session = OnnxRuntime(threads=3).open(write_graph(nn.ReLU(), (torch.randn(2),), {}))
    options = session.get_session_options()
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
