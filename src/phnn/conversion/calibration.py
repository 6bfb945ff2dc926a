"""What the layers of a model receive when it runs on calibration data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from phnn.conversion.sites import Site

__all__ = [
    "Calibration",
    "Forward",
    "StopError",
    "call_model",
    "evaluating",
    "first_tensor",
    "input_of",
    "unfused",
]

Forward = Callable[[nn.Module, Any], Any]
HELD_OUT = 5  # every fifth call is kept for judging
SLICE = 32  # samples of a single large call that run together


class StopError(Exception):
    """Ends a forward pass at the layer that was of interest."""


class Calibration:
    """Calls of a model, without labels.

    Args:
        model: The model; the calls move to its device.
        data: One call (a tensor, a tuple of arguments, or a dict of named ones), or an iterable of
            calls.
        forward: How a batch is fed to the model, a function of both; by default the batch is the
            arguments.
        limit: Most samples that are used.
        seed: Of all that is drawn: patches, probes of the outputs, the order of refinement.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        forward: Forward | None = None,
        limit: int = 1024,
        seed: int = 0,
    ) -> None:
        self.forward, self.seed = forward or call_model, seed
        device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
        calls = [_move(call, device) for call in _take(data, limit)]
        if not calls:
            raise ValueError("calibration holds no data; give a batch, or an iterable of batches")
        for call in calls:
            if forward is None and not _tensors(call):
                raise TypeError(
                    f"calibration holds a {type(call).__name__} without tensors; torch.from_numpy "
                    "makes tensors of arrays, and forward= says how other batches are fed"
                )
            _check_finite(call)
        if len(calls) == 1:
            calls = self._slice(model, calls[0])
        self.calls: list[Any] = calls
        self.samples = sum(map(_count_samples, calls))

    def _slice(self, model: nn.Module, call: Any) -> list[Any]:
        """Cut one large call along its first axis, if the model computes the same for the parts."""
        size = _count_samples(call)
        if size < 2 or any(len(tensor) != size for tensor in _tensors(call) if tensor.dim()):
            return [call]
        step = min(SLICE, -(-size // HELD_OUT))
        parts = [_index(call, slice(start, start + step)) for start in range(0, size, step)]
        with evaluating(model):
            try:
                whole = first_tensor(self.forward(model, _index(call, slice(0, 2 * step))))
                part = first_tensor(self.forward(model, parts[0]))
            except Exception:
                return [call]
        if whole is None or part is None or whole[: len(part)].shape != part.shape:
            return [call]
        if not torch.allclose(whole[: len(part)], part, rtol=1e-3, atol=1e-4):
            return [call]
        return parts

    def generator(self, number: int = 0) -> torch.Generator:
        """Return the random numbers for a purpose or a call."""
        return torch.Generator().manual_seed(self.seed * 2**20 + number)

    @property
    def fitting(self) -> list[Any]:
        """The calls that layers are fitted to."""
        return [c for i, c in enumerate(self.calls) if i % HELD_OUT or len(self.calls) < HELD_OUT]

    @property
    def held_out(self) -> list[Any]:
        """The calls that networks are judged by; the same ones where there are few."""
        return [
            c for i, c in enumerate(self.calls) if not i % HELD_OUT or len(self.calls) < HELD_OUT
        ]

    @staticmethod
    def count(calls: Sequence[Any]) -> int:
        """Return the number of samples in some calls."""
        return sum(map(_count_samples, calls))

    def digest(self) -> str:
        """Return a string that changes whenever the data or the seed change."""
        digest = sha256(str(self.seed).encode())
        for tensor in (tensor for call in self.calls for tensor in _tensors(call)):
            digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def observe(
        self, model: nn.Module, sites: Sequence[Site], see: Callable[[Site, int, Tensor], None]
    ) -> None:
        """Run a model on the fitting calls and show what each site receives.

        Args:
            model: The original model.
            sites: Its sites.
            see: Called with the site, the number of the call, and the input.
        """
        handles = []
        current = [0]
        for site in sites:

            def hook(
                module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], site: Site = site
            ) -> None:
                see(site, current[0], input_of(args, kwargs))

            handles.append(site.module.register_forward_pre_hook(hook, with_kwargs=True))
        try:
            with evaluating(model):
                for number, call in enumerate(self.fitting):
                    current[0] = number
                    self.run(model, call)
        finally:
            for handle in handles:
                handle.remove()

    def inputs(
        self, model: nn.Module, module: nn.Module, stop: bool = True
    ) -> Iterator[list[Tensor]]:
        """Yield what a module receives in each fitting call.

        Args:
            model: The model, with the module in it.
            module: One of its modules.
            stop: End each pass at the first call of the module, where no other follows.
        """
        seen: list[Tensor] = []

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.append(input_of(args, kwargs))
            if stop:
                raise StopError

        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            with evaluating(model):
                for call in self.fitting:
                    seen.clear()
                    with suppress(StopError):
                        self.run(model, call)
                    yield list(seen)
        finally:
            handle.remove()

    def outputs(self, model: nn.Module) -> Tensor:
        """Return the outputs of a model on the held-out calls, one row for each sample or call."""
        rows = []
        with evaluating(model):
            for call in self.held_out:
                output = first_tensor(self.run(model, call))
                if output is None:
                    raise ValueError("the model returns no floating-point tensor to compare")
                rows.append(
                    output.detach().float().flatten(1) if output.dim() > 1 else output[None]
                )
        widest = max(row.shape[1] for row in rows)
        return torch.cat([nn.functional.pad(row, (0, widest - row.shape[1])) for row in rows])

    def run(self, model: nn.Module, call: Any) -> Any:
        """Run a model on a call; say what it was if that fails."""
        try:
            with unfused():
                return self.forward(model, call)
        except StopError:
            raise
        except Exception as error:
            shapes = (
                ", ".join(str(tuple(tensor.shape)) for tensor in _tensors(call)) or "no tensors"
            )
            raise ValueError(
                f"the model does not run on the calibration data ({shapes}): {error}; give what "
                "the model takes, or forward=, a function that calls the model on a batch"
            ) from error


@contextmanager
def unfused() -> Iterator[None]:
    """Turn torch's fused transformer layers off, which hide what their parts receive."""
    is_fused = torch.backends.mha.get_fastpath_enabled()
    if is_fused:  # nothing to restore for who comes second, in whatever order they leave
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        if is_fused:
            torch.backends.mha.set_fastpath_enabled(True)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode without gradients, and its modes back after."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def call_model(model: nn.Module, call: Any) -> Any:
    """Call a model with a tensor, a tuple of arguments or a dict of named ones."""
    if isinstance(call, Mapping):
        return model(**call)
    return model(*call) if isinstance(call, tuple | list) else model(call)


def _take(data: Any, limit: int) -> list[Any]:
    """Return the calls in the data, up to a number of samples."""
    if isinstance(data, Tensor | tuple | Mapping):
        return [data] if _count_samples(data) else []
    if not isinstance(data, Iterable) or isinstance(data, str):
        raise TypeError(
            "calibration must be a tensor, a tuple of arguments, a dict of them, or an iterable "
            f"of these; got {type(data).__name__}"
        )
    calls, samples = [], 0
    for call in data:
        calls.append(call)
        samples += _count_samples(call)
        if samples >= limit:
            break
    return calls


def _tensors(call: Any) -> list[Tensor]:
    if isinstance(call, Tensor):
        return [call]
    if isinstance(call, Mapping):
        call = list(call.values())
    if isinstance(call, tuple | list):
        return [tensor for value in call for tensor in _tensors(value)]
    return []


def _count_samples(call: Any) -> int:
    return next((len(tensor) for tensor in _tensors(call) if tensor.dim()), 0)


def _index(call: Any, rows: slice) -> Any:
    if isinstance(call, Tensor):
        return call[rows] if call.dim() else call
    if isinstance(call, Mapping):
        return {key: _index(value, rows) for key, value in call.items()}
    if isinstance(call, tuple | list):
        return type(call)(_index(value, rows) for value in call)
    return call


def _move(call: Any, device: torch.device) -> Any:
    if isinstance(call, Tensor):
        if call.is_meta:
            raise ValueError(
                f"the calibration data of shape {tuple(call.shape)} are on the meta device, and "
                "hold no values; give real inputs"
            )
        return call.detach().to(device)
    if isinstance(call, Mapping):
        return {key: _move(value, device) for key, value in call.items()}
    if isinstance(call, tuple | list):
        return type(call)(_move(value, device) for value in call)
    return call


def _check_finite(call: Any) -> None:
    for tensor in _tensors(call):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(
                f"the calibration data of shape {tuple(tensor.shape)} hold values that are NaN or "
                "infinite"
            )


def first_tensor(output: Any) -> Tensor | None:
    """Return the first floating-point tensor that a model returns."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, tuple | list):
        found = (first_tensor(value) for value in output)
        return next((tensor for tensor in found if tensor is not None), None)
    return None


def input_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the first argument of a call."""
    value: Tensor = (*args, *kwargs.values())[0]
    return value.detach()
