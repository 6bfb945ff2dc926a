"""What the layers of a model receive when it runs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phnn.conversion.sites import Slot, replace_modules

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Call:
    """The input of a layer without its numbers.

    Attributes:
        shape: Its shape.
        dtype: Its type.
        device: Where it is.
        is_last: Whether the channels come last in memory, and would not if it were contiguous.
        is_alone: Whether it is the only argument.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_last: bool
    is_alone: bool

    @property
    def has_format(self) -> bool:
        """Whether channels first and channels last differ: not for one channel or one place."""
        return len(self.shape) in LAST and self.shape[1] > 1 and math.prod(self.shape[2:]) > 1

    def draw(self) -> Tensor:
        """A random input of this kind."""
        x = torch.randn(self.shape, dtype=self.dtype, device=self.device)
        return x.contiguous(memory_format=LAST[x.dim()]) if self.is_last else x


def split_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a user means by a tensor, a sequence or a mapping."""
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, Sequence) and not isinstance(example, str):
        return tuple(example), {}
    raise TypeError(
        "example_input is a tensor, a tuple of arguments or a dict of named ones, "
        f"got {type(example).__name__}"
    )


def put_channels_last(value: Any) -> Any:
    """An argument with the channels last in memory, where it is a batch of images or volumes."""
    if isinstance(value, Tensor) and value.dim() in LAST and value.is_floating_point():
        return value.contiguous(memory_format=LAST[value.dim()])
    return value


def record_calls(
    model: nn.Module, slots: Sequence[Slot], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Counter[Call]]]:
    """Runs a model, and returns its output and how often each layer received which inputs.

    It runs on copies of the arguments: it may write to them.
    """
    calls: dict[str, Counter[Call]] = {slot.name: Counter() for slot in slots}
    handles = []
    for slot in slots:

        def note(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = slot.name
        ) -> None:
            calls[name][_describe(args, kwargs)] += 1

        handles.append(slot.module.register_forward_pre_hook(note, with_kwargs=True))
    try:
        with torch.no_grad():
            return model(*copy_tensors(args), **copy_tensors(kwargs)), calls
    finally:
        for handle in handles:
            handle.remove()


class _Probe(nn.Module):
    """A layer that notes what is read of it besides being called."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.read = ""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.layer(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "layer":
            return super().__getattr__(name)
        self.read = name
        return getattr(self.layer, name)


def find_reads(
    model: nn.Module, slots: Sequence[Slot], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, str]:
    """What a model reads of its layers besides calling them, by their names.

    What computes a layer in another way has no weight, or another one.
    """
    probes = {slot.name: _Probe(slot.module) for slot in slots}
    probed = replace_modules(model, list(slots), probes, inplace=False)
    with torch.no_grad():
        probed(*copy_tensors(args), **copy_tensors(kwargs))
    return {name: probe.read for name, probe in probes.items() if probe.read}


def _describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    x = args[0] if args else kwargs["input"]
    is_last = (
        x.dim() in LAST
        and not x.is_contiguous()
        and bool(x.is_contiguous(memory_format=LAST[x.dim()]))
    )
    return Call(tuple(x.shape), x.dtype, x.device, is_last, is_alone=len(args) + len(kwargs) == 1)


def copy_tensors(arguments: Any) -> Any:
    """The same arguments in memory of their own."""
    if isinstance(arguments, Tensor):
        return arguments.clone()
    if type(arguments) in (list, tuple):
        return type(arguments)(map(copy_tensors, arguments))
    if type(arguments) is dict:
        return {name: copy_tensors(value) for name, value in arguments.items()}
    return arguments


def leaves(output: Any) -> list[Tensor]:
    """The tensors in what a model returns, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = output.values()
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        output = [getattr(output, field.name) for field in dataclasses.fields(output)]
    elif not isinstance(output, list | tuple):
        return []
    return [tensor for part in output for tensor in leaves(part)]


def compare(actual: Tensor, expected: Tensor) -> tuple[float, float]:
    """The largest difference of two outputs, and the largest finite value that is expected."""
    if not expected.numel():
        return 0.0, 0.0
    if expected.is_complex():
        actual, expected = torch.view_as_real(actual), torch.view_as_real(expected)
    actual, expected = actual.cpu().double(), expected.cpu().double()
    same = actual == expected  # infinite values, too
    difference = (actual - expected).abs().masked_fill(same, 0.0).max().item()
    return difference, expected.abs().masked_fill(~expected.isfinite(), 0.0).max().item()
