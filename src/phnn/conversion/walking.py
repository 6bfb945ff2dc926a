"""Forward passes that wait at a layer until it has its new weight, and then go on.

Layers are fitted in the order of the forward pass, each to what the converted network feeds it. To
start a pass anew for each of L layers would cost L / 2 forward passes. A walk costs one: each call
runs in a thread of its own, which waits inside the network. One thread runs at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack
from contextvars import copy_context
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from phnn.conversion.calibration import Calibration, StopError, evaluating, input_of, unfused

__all__ = ["Walk"]

THREADS = 128  # most calls that wait; of more calls each layer starts its own passes


class Walk:
    """Passes of a model over the fitting calls, while its layers change.

    Args:
        model: The model.
        modules: Those whose inputs will be asked for, in about the order of their calls.
        calibration: The data.
    """

    def __init__(
        self, model: nn.Module, modules: list[nn.Module], calibration: Calibration
    ) -> None:
        self.model, self.modules, self.calibration = model, modules, calibration
        self.calls = calibration.fitting
        self.passes: dict[int, _Pass] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Walk:
        self._stack.enter_context(unfused())
        self._stack.enter_context(evaluating(self.model))
        for module in self.modules:
            handle = module.register_forward_pre_hook(self._arrive, with_kwargs=True)
            self._stack.callback(handle.remove)
        self._stack.callback(self.close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def inputs(
        self, module: nn.Module, once: bool, has_room: bool
    ) -> Generator[list[Tensor], None, None]:
        """Yield what a module receives in each fitting call, with the weights of now.

        Args:
            module: One of the modules.
            once: Each call meets the module once. Otherwise its passes run to their ends.
            has_room: There is memory for what all waiting passes hold.
        """
        if not (once and has_room and len(self.calls) <= THREADS):
            if once:
                self.close()
            yield from self.calibration.inputs(self.model, module, once)
            return
        for number, call in enumerate(self.calls):
            waiting = self.passes.get(number)
            if waiting is not None and module in waiting.passed:
                waiting.end()
                waiting = None
            if waiting is None:
                waiting = self.passes[number] = _Pass(self, call)
            yield waiting.advance(module)

    def close(self) -> None:
        """End all passes where they wait."""
        for waiting in self.passes.values():
            waiting.end()
        self.passes.clear()

    def _arrive(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        current = threading.current_thread()
        waiting = next((w for w in self.passes.values() if w.thread is current), None)
        if waiting is not None:
            waiting.arrive(module, input_of(args, kwargs))


class _Pass:
    """One forward pass, in its own thread."""

    def __init__(self, walk: Walk, call: Any) -> None:
        self.walk, self.call = walk, call
        self.passed: set[nn.Module] = set()
        self.wanted: nn.Module | None = None
        self.found: list[Tensor] = []
        self.error: BaseException | None = None
        self.is_over = False
        self._go, self._came = threading.Semaphore(0), threading.Semaphore(0)
        device = next((p.device.type for p in walk.model.parameters()), "cpu")
        # torch keeps these for each thread
        self._autocast = torch.autocast(
            device,
            dtype=torch.get_autocast_dtype(device),
            enabled=torch.is_autocast_enabled(device),
        )
        context = copy_context()
        self.thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)

    def advance(self, module: nn.Module) -> list[Tensor]:
        """Run until a module is called and return its input; nothing if the pass ends before."""
        self.wanted, self.found = module, []
        if not self.is_over:
            if self.thread.ident is None:
                self.thread.start()
            else:
                self._go.release()
            self._came.acquire()
        if self.error is not None:
            raise self.error
        return self.found

    def arrive(self, module: nn.Module, x: Tensor) -> None:
        """Wait here, if this is the module that was asked for."""
        if module is self.wanted:
            self.found = [x]
            self._came.release()
            self._go.acquire()
            if self.is_over:
                raise StopError
        self.passed.add(module)

    def end(self) -> None:
        """End the pass where it waits."""
        if not self.is_over:
            self.is_over = True
            self._go.release()
            if self.thread.ident is not None:
                self.thread.join()

    def _run(self) -> None:
        try:
            with torch.no_grad(), self._autocast:
                self.walk.calibration.run(self.walk.model, self.call)
        except StopError:
            pass
        except BaseException as error:  # for the thread that waits
            self.error = error
        finally:
            self.is_over, self.call = True, None
            self._came.release()
