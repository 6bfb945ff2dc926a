"""Multiplications of a model, counted as they happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import phnn.nn as ph

LAYERS = (
    ph.PHLinear, ph.PHConv1d, ph.PHConv2d, ph.PHConv3d, ph.PHConvTranspose1d, ph.PHConvTranspose2d,
    ph.PHConvTranspose3d,
)  # fmt: skip


def count_multiplications(model: nn.Module, *inputs: Tensor) -> int:
    """Return the multiplications of convolutions and matrix products in one inference.

    What a PH layer spends on its weight counts, too: A and F are multiplied in every call.

    Args:
        model: The model, in evaluation mode.
        inputs: What it runs on, one after the other.

    Example:
        >>> from phnn import PHLinear
        >>> layer = PHLinear(64, 64, n=4, bias=False)
        >>> count_multiplications(layer, torch.randn(1, 64))  # 64 · 64 real, and the mixing by A
        5120
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        for x in inputs:
            model(x)
    return int(counter.get_total_flops()) // 2  # each comes with an addition


def thop_ops() -> dict[type[nn.Module], Callable[..., None]]:
    """Return what `thop.profile(model, inputs, custom_ops=thop_ops())` needs for PH layers.

    thop knows the layers of torch alone, and counts nothing for others.
    """
    return dict.fromkeys(LAYERS, _add_operations)


def _add_operations(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Add the multiplications of one call to what thop keeps on the layer."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        type(layer).forward(layer, *inputs)  # without hooks: this is one
    count = int(counter.get_total_flops()) // 2
    layer.total_ops += torch.tensor([count], dtype=torch.float64)  # type: ignore[operator]
