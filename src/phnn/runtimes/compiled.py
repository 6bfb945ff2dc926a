"""PyTorch as `torch.compile` makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import nn

from phnn.runtimes.base import Arguments
from phnn.runtimes.eager import Eager

PARTS = 64  # of a model whose graph breaks, in evaluation and in training


class Compiled(Eager):
    """PyTorch with every module compiled by `torch.compile`, for its own sizes."""

    name = "compile"
    prefers_channels_last = True

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Return a compiled function that calls the module."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return module(*args, **kwargs)

        # torch keeps what it compiles with the code of a function, and searches all of it in every
        # call; with a copy of the code each module has its own
        code = call.__code__.replace()
        own = FunctionType(code, call.__globals__, "call", None, call.__closure__)
        # it would guess from a few modules that the sizes of all differ
        return torch.compile(own, dynamic=False)

    def prepare(self, module: nn.Module, calls: Sequence[Arguments]) -> Callable[[], object]:
        """Return a function that runs the compiled module."""
        return _compile(super().prepare(module, calls))

    def prepare_step(self, module: nn.Module, call: Arguments) -> Callable[[], object]:
        """Return a function that runs the compiled module forward and backward."""
        return _compile(super().prepare_step(module, call))


def _compile(run: Callable[[], object]) -> Callable[[], object]:
    """Run once, so that all is compiled; torch would stop after a few parts of one class."""
    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({limit: PARTS * PARTS, f"accumulated_{limit}": PARTS * PARTS}):
        run()
    return run
