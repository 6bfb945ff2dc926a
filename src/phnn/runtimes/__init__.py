"""Where a module runs and is timed."""

from __future__ import annotations

from phnn.runtimes.base import Runtime
from phnn.runtimes.compiled import Compiled
from phnn.runtimes.eager import Eager

__all__ = ["RUNTIMES", "Compiled", "Eager", "Runtime", "find_runtime"]

RUNTIMES: dict[str, type[Runtime]] = {kind.name: kind for kind in (Eager, Compiled)}


def find_runtime(runtime: str | Runtime) -> Runtime:
    """Return a runtime by its name."""
    if isinstance(runtime, Runtime):
        return runtime
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime is one of {', '.join(RUNTIMES)}; got {runtime!r}")
    return RUNTIMES[runtime]()
