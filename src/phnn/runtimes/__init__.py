"""Where a module runs and is timed."""

from __future__ import annotations

from phnn.runtimes.base import Runtime
from phnn.runtimes.compiled import Compiled
from phnn.runtimes.eager import Eager
from phnn.runtimes.graph_runtime import GraphRuntime
from phnn.runtimes.graphs import ExportError
from phnn.runtimes.onnxruntime import OnnxRuntime
from phnn.runtimes.openvino import OpenVINO

__all__ = [
    "RUNTIMES",
    "Compiled",
    "Eager",
    "ExportError",
    "GraphRuntime",
    "OnnxRuntime",
    "OpenVINO",
    "Runtime",
    "find_runtime",
]

RUNTIMES: dict[str, type[Runtime]] = {
    kind.name: kind for kind in (Eager, Compiled, OnnxRuntime, OpenVINO)
}


def find_runtime(runtime: str | Runtime) -> Runtime:
    """Return a runtime by its name.

    Raises:
        ValueError: There is no such runtime.
        ImportError: It is not installed, or too old; the message names the extra.
    """
    if not isinstance(runtime, Runtime):
        if runtime not in RUNTIMES:
            raise ValueError(f"runtime must be one of {', '.join(RUNTIMES)}; got {runtime!r}")
        runtime = RUNTIMES[runtime]()
    runtime.check()
    return runtime
