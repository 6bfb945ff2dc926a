"""How the channels of an input lie in memory."""

import torch
from torch import Tensor

# torch's name of the format, by the number of axes of a batch
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(input: Tensor, dims: int) -> bool:
    """Return whether the channels are last in memory; images and volumes have such a format."""
    axis = input.dim() - dims - 1
    return dims > 1 and input.stride(axis) == 1 < input.stride(-1)


def put_channels_last(input: Tensor) -> Tensor:
    """Return a batch of images or volumes with its channels last in memory; others stay."""
    format = CHANNELS_LAST.get(input.dim())
    return input if format is None else input.contiguous(memory_format=format)
