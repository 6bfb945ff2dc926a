"""How the channels of an input lie in memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

# torch's name of the format, by the number of axes of a batch
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# numbers in the widest vector register of a CPU
VECTOR = 16


def is_channels_last(input: Tensor, dims: int) -> bool:
    """Return whether the channels are last in memory; images and volumes have such a format."""
    axis = input.dim() - dims - 1
    return dims > 1 and input.stride(axis) == 1 < input.stride(-1)


def has_filters_last(F: Tensor) -> bool:
    """Return whether filters were put into a format with the channels last.

    The strides of one channel tell it, too, if the filters have more than one position.
    """
    if F.dim() not in CHANNELS_LAST or F.stride(1) != 1:
        return False
    return F.stride(-1) > 1 or (F.shape[1] == 1 and F.stride(0) > 1)


def put_channels_last(input: Tensor) -> Tensor:
    """Return a batch of images or volumes with its channels last in memory; others stay."""
    format = CHANNELS_LAST.get(input.dim())
    return input if format is None else input.contiguous(memory_format=format)


def overruns(weight: Tensor, steps: Sequence[int]) -> bool:
    """Return whether torch may write past its memory when it trains a convolution on a CPU.

    With channels last, oneDNN computes the gradient of the weight of a 1×1 convolution with a
    stride in a buffer that is too small when a vector register holds more channels than there are
    (its issue 6035). The process aborts, or the gradient is wrong.

    Args:
        weight: The weight, (out, in / groups, *kernel).
        steps: The stride along each axis of space.
    """
    pointwise = len(steps) > 1 and all(size == 1 for size in weight.shape[2:])
    return pointwise and max(steps) > 1 and weight.shape[1] < VECTOR
