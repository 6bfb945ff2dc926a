"""Batch norms multiplied into the layers before them."""

from __future__ import annotations

import copy
from typing import TypeAlias

from torch import Tensor, nn

Norm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
PlainLayer: TypeAlias = nn.Linear | nn.modules.conv._ConvNd


def scale_and_shift(norm: Norm) -> tuple[Tensor, Tensor]:
    """Return what a norm in evaluation mode multiplies each channel by, and what it adds then."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight
    shift = norm.running_mean.neg() * scale
    return scale, shift if norm.bias is None else shift + norm.bias


def add_bias(norm: Norm, bias: Tensor | None) -> Norm:
    """Return a norm that adds a bias to its input first."""
    shifted = copy.deepcopy(norm)
    if bias is not None:
        assert shifted.running_mean is not None
        shifted.running_mean -= bias.detach().to(shifted.running_mean)
    return shifted


def fuse(layer: PlainLayer, norm: Norm) -> None:
    """Multiply the scale of a norm into a weight, and its shift into the bias, in place."""
    scale, shift = scale_and_shift(norm)
    weight = layer.weight
    inner = (1,) * (weight.dim() - 2)
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):
        # (in, out/groups, *k): the outputs of each group are in axis 1
        outputs = scale.view(layer.groups, 1, -1, *inner)
        fused = (weight.unflatten(0, (layer.groups, -1)) * outputs).flatten(0, 1)
    else:
        fused = weight * scale.view(-1, 1, *inner)
    bias = shift if layer.bias is None else layer.bias * scale + shift
    for name, value in (("weight", fused), ("bias", bias)):
        value = value.detach().to(weight.dtype)  # the norms of a half-precision model stay float32
        setattr(layer, name, nn.Parameter(value, requires_grad=weight.requires_grad))
