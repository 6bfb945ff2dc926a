"""ONNX graphs in onnxruntime."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phnn.runtimes.graph_runtime import GraphRuntime, Run
from phnn.runtimes.graphs import ExportError

QUIET = 3  # severity from which on onnxruntime writes to the terminal: errors


@dataclass(frozen=True)
class OnnxRuntime(GraphRuntime):
    """onnxruntime with all its optimizations, on the CPU.

    Its threads do not spin while they wait: several sessions live in one process here, and the
    threads of one would take the processor from the others.
    """

    name = "onnxruntime"
    package = "onnxruntime"
    oldest = "1.20"
    extra = "export"

    @property
    def version(self) -> str:
        """Version of the package."""
        return importlib.metadata.version(self.package)

    def load(self, graph: bytes | Path) -> Run:
        """Return a function that runs a graph in a session of its own."""
        session = self.open(graph)
        names = [argument.name for argument in session.get_inputs()]

        def run(inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
            outputs: list[np.ndarray[Any, Any]] = session.run(
                None, dict(zip(names, inputs, strict=True))
            )
            return outputs

        return run

    def open(self, graph: bytes | Path, optimized: Path | None = None) -> Any:
        """Return a session.

        Args:
            graph: The graph, or its file.
            optimized: Where to write the graph that runs, to look at it.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.count_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = QUIET
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
        source = str(graph) if isinstance(graph, Path) else graph
        try:
            return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of many types, which share no base
            raise ExportError(
                f"onnxruntime {self.version} cannot run this graph: {error}"
            ) from None
