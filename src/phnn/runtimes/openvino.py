"""ONNX graphs in OpenVINO."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phnn.runtimes.graph_runtime import GraphRuntime, Run
from phnn.runtimes.graphs import ExportError


@dataclass(frozen=True)
class OpenVINO(GraphRuntime):
    """OpenVINO on the CPU, for the least latency, in float32 where the graph is float32."""

    name = "openvino"
    package = "openvino"
    oldest = "2024.4"
    extra = "openvino"

    @property
    def version(self) -> str:
        """Version of the package."""
        return importlib.metadata.version(self.package)

    def load(self, graph: bytes | Path) -> Run:
        """Return a function that runs a compiled graph."""
        compiled = self.open(graph)
        request = compiled.create_infer_request()

        def run(inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
            found = request.infer(dict(enumerate(inputs)), share_inputs=True, share_outputs=True)
            return [found[i] for i in range(len(compiled.outputs))]

        return run

    def open(self, graph: bytes | Path) -> Any:
        """Return a compiled graph."""
        import openvino

        options = {
            "INFERENCE_NUM_THREADS": self.count_threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",  # bfloat16 where the processor has it, otherwise
        }
        core = openvino.Core()
        try:
            return core.compile_model(core.read_model(graph), "CPU", options)
        except Exception as error:  # RuntimeError, and others of its frontends
            raise ExportError(f"OpenVINO {self.version} cannot run this graph: {error}") from None
