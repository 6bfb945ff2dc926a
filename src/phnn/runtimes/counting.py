"""Multiplications of a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def count_multiplications(model: nn.Module, *inputs: Tensor) -> int:
    """Return the multiplications of convolutions and matrix products in one inference.

    Args:
        model: The model, in evaluation mode.
        inputs: What it runs on, one after the other.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        for x in inputs:
            model(x)
    return int(counter.get_total_flops()) // 2  # each comes with an addition
