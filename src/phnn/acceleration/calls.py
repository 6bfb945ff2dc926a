"""What the layers of a model receive when it runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phnn.conversion.sites import Site, replace_modules
from phnn.functional._formats import CHANNELS_LAST
from phnn.runtimes.nested import copy_tensors


@dataclass(frozen=True)
class Call:
    """The input of a layer without its numbers.

    Attributes:
        shape: Its shape.
        dtype: Its type.
        device: Where it is.
        channels_last: Whether the channels are last in memory, and would not be if it were
            contiguous.
        is_alone: Whether it is the only argument.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    channels_last: bool
    is_alone: bool

    @property
    def has_format(self) -> bool:
        """Whether channels first and channels last differ: not for one channel or one position."""
        if len(self.shape) not in CHANNELS_LAST:
            return False
        return self.shape[1] > 1 and math.prod(self.shape[2:]) > 1

    def draw(self) -> Tensor:
        """Return a random input of this kind; the indices of a lookup are all 0."""
        if not self.dtype.is_floating_point:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        x = torch.randn(self.shape, dtype=self.dtype, device=self.device)
        return x.contiguous(memory_format=CHANNELS_LAST[x.dim()]) if self.channels_last else x


def record_calls(
    model: nn.Module, sites: Sequence[Site], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Counter[Call]]]:
    """Run a model, and return its output and how often each layer received which inputs.

    It runs on copies of the arguments: it may write to them.
    """
    calls: dict[str, Counter[Call]] = {site.name: Counter() for site in sites}
    handles = []
    for site in sites:

        def note(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = site.name
        ) -> None:
            calls[name][_describe(args, kwargs)] += 1

        handles.append(site.module.register_forward_pre_hook(note, with_kwargs=True))
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
    model: nn.Module, sites: Sequence[Site], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, str]:
    """Return what a model reads of its layers besides calling them, by their names.

    Another form of a layer has no weight, or another one.
    """
    probes = {site.name: _Probe(site.module) for site in sites}
    probed = replace_modules(model, list(sites), probes, inplace=False)
    with torch.no_grad():
        probed(*copy_tensors(args), **copy_tensors(kwargs))
    return {name: probe.read for name, probe in probes.items() if probe.read}


def _describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    x = args[0] if args else kwargs["input"]
    channels_last = (
        x.dim() in CHANNELS_LAST
        and not x.is_contiguous()
        and bool(x.is_contiguous(memory_format=CHANNELS_LAST[x.dim()]))
    )
    is_alone = len(args) + len(kwargs) == 1
    return Call(tuple(x.shape), x.dtype, x.device, channels_last, is_alone)
