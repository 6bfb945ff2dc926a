"""Components replaced by mixtures of them.

The functions here, and those of the computations, branch on sizes that are known beforehand and
never on the input. So `torch.fx` can trace them, and `phnn.forms` builds its modules from them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

SLOW = 400  # multiplications of one matrix product up to which torch's bmm is a plain loop
CONVOLUTIONS = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)


class Mixture(NamedTuple):
    """The sizes of a batch that is mixed, (batch, groups · columns · size, *space).

    Attributes:
        groups: Blocks of channels that are mixed alike.
        rows: Components after the mixing.
        columns: Components before it.
        size: Channels of a component.
        dims: Axes of space; 0 for the rows of a linear layer.
    """

    groups: int
    rows: int
    columns: int
    size: int
    dims: int

    @property
    def channels(self) -> int:
        """Channels after the mixing."""
        return self.groups * self.rows * self.size


def mix(matrix: Tensor, blocks: Tensor) -> Tensor:
    """Return the matrix times each of the blocks, (batch, columns, size).

    One bmm reads the blocks where they are; matmul and einsum would first copy all of them, and a
    convolution with kernels of one position takes up to thirty times as long with so few channels.
    """
    return torch.bmm(matrix.expand(blocks.shape[0], -1, -1), blocks)


def mix_components(input: Tensor, matrix: Tensor, sizes: Mixture, channels_last: bool) -> Tensor:
    """Return a batch with the components of each group replaced by their mixtures.

    Args:
        input: The batch.
        matrix: A row for each mixture, (rows, columns).
        sizes: The sizes of both.
        channels_last: Whether the output has its channels last in memory, as the input should.
    """
    space = space_of(input, sizes.dims)
    if not channels_last:
        width = sizes.size * math.prod(space)
        blocks = input.reshape(input.shape[0] * sizes.groups, sizes.columns, width)
        return mix(matrix, blocks).view(input.shape[0], sizes.channels, *space)
    last = input.movedim(1, -1)
    if sizes.rows * sizes.columns * sizes.size < SLOW:
        components = last.unflatten(-1, (sizes.groups, sizes.columns, sizes.size))
        mixed = torch.einsum("rb,...bc->...rc", matrix, components).flatten(-3)
    else:
        mixed = mix(matrix, last.reshape(-1, sizes.columns, sizes.size))
        mixed = mixed.view(input.shape[0], *space, sizes.channels)
    return mixed.movedim(-1, 1)


def mix_channels(input: Tensor, matrix: Tensor, bias: Tensor | None, sizes: Mixture) -> Tensor:
    """Return the same for components of one channel: one plain convolution of one position."""
    if not sizes.dims:
        return nn.functional.linear(input, matrix, bias)
    weight = matrix.repeat(sizes.groups, 1) if sizes.groups > 1 else matrix
    weight = weight.view(sizes.channels, sizes.columns, *(1,) * sizes.dims)
    return CONVOLUTIONS[sizes.dims - 1](input, weight, bias, groups=sizes.groups)


def space_of(input: Tensor, dims: int) -> list[int]:
    """Return the sizes of a batch behind its channels; a traced shape cannot be iterated."""
    return [input.shape[axis + 2] for axis in range(dims)]


def add_bias(output: Tensor, bias: Tensor | None, dims: int, inplace: bool = False) -> Tensor:
    """Return a batch with a number added to each channel.

    Args:
        output: (batch, channels, *space).
        bias: The numbers; None for none.
        dims: Axes of space.
        inplace: Change the output itself. In training autograd would copy its gradient for that.
    """
    if bias is None:
        return output
    bias = bias.view(-1, *(1,) * dims)
    return output.add_(bias) if inplace else output + bias.to(output.dtype)
