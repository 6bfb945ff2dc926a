"""How the channels of an input lie in memory."""

from torch import Tensor


def is_last(input: Tensor, dims: int) -> bool:
    """Whether the channels are last in memory; images and volumes have such a format."""
    axis = input.dim() - dims - 1
    return dims > 1 and input.stride(axis) == 1 < input.stride(-1)
