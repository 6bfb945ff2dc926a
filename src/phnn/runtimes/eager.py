"""PyTorch as it runs by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from phnn.runtimes.base import Arguments, Runtime
from phnn.runtimes.nested import leaves


class Eager(Runtime):
    """PyTorch, operation by operation."""

    name = "torch"

    @property
    def version(self) -> str:
        """Version of torch."""
        return str(torch.__version__)

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Return what is called in place of the module."""
        return module

    def prepare(self, module: nn.Module, calls: Sequence[Arguments]) -> Callable[[], object]:
        """Return a function that runs the module without gradients."""
        call_module = self.wrap(module)

        def run() -> list[Any]:
            with torch.no_grad():
                outputs = [call_module(*args, **kwargs) for args, kwargs in calls]
            wait(outputs)
            return outputs

        return run

    def prepare_step(self, module: nn.Module, call: Arguments) -> Callable[[], object]:
        """Return a function that runs the module forward and backward."""
        call_module, (args, kwargs) = self.wrap(module), call

        def run() -> None:
            module.zero_grad()
            outputs = leaves(call_module(*args, **kwargs))
            losses = [output.float().square().mean() for output in outputs if output.requires_grad]
            torch.stack(losses).sum().backward()
            wait(outputs)

        return run


def wait(outputs: Any) -> None:
    """Wait until the device is done with outputs."""
    if any(tensor.device.type != "cpu" for tensor in leaves(outputs)):
        torch.accelerator.synchronize()
