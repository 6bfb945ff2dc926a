"""The channels-last memory format of a network that trains."""

from typing import Any

import torch
from torch import Tensor, nn

from phnn.functional._formats import overruns


def put_channels_last(model: nn.Module) -> None:
    """Put the filters of a network into the channels-last format, where torch can train them.

    Convolutions of torch that would write past their memory compute with channels first; PH layers
    take care of themselves.

    Args:
        model: The network, which is changed.
    """
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and overruns(layer.weight, layer.stride):
            weight = layer.weight.detach()
            layer.weight.data = weight.clone(memory_format=torch.contiguous_format)
            layer.register_forward_pre_hook(_put_first)


def _put_first(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs of a layer with their channels first, on a CPU."""
    return tuple(
        each.contiguous() if isinstance(each, Tensor) and each.device.type == "cpu" else each
        for each in inputs
    )
