"""The usual alternative to PH layers: convolutions of low rank at the same number of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import phnn
from phnn.conversion import Report


def _pair(size: Any) -> tuple[int, int]:
    height, width = size
    return height, width


class LowRankConv2d(nn.Sequential):
    """A k×k convolution to few channels, then a 1×1 one: the best such pair for a weight."""

    def __init__(self, conv: nn.Conv2d, rank: int) -> None:
        inputs, outputs = conv.in_channels, conv.out_channels
        kernel, stride, padding = map(_pair, (conv.kernel_size, conv.stride, conv.padding))
        reduce = nn.Conv2d(inputs, rank, kernel, stride, padding, bias=False)
        expand = nn.Conv2d(rank, outputs, 1, bias=conv.bias is not None)
        U, S, Vh = torch.linalg.svd(conv.weight.detach().flatten(1), full_matrices=False)
        with torch.no_grad():
            root = S[:rank].sqrt()
            reduce.weight.copy_((root[:, None] * Vh[:rank]).view_as(reduce.weight))
            expand.weight.copy_((U[:, :rank] * root).view_as(expand.weight))
        super().__init__(reduce, expand)


def low_rank(model: nn.Module, **size: Any) -> nn.Module:
    """Gives each convolution that `phnn.convert` replaces the rank that its parameters pay for."""

    def make(conv: nn.Conv2d, parameters: int) -> nn.Module:
        outputs, columns = conv.weight.flatten(1).shape
        return LowRankConv2d(conv, max(1, parameters // (outputs + columns)))

    return _replace(model, make, size)


def factorized(model: nn.Module, kind: str, **size: Any) -> nn.Module:
    """The same with tltorch's factorized convolutions, from random factors.

    Args:
        model: Which changes.
        kind: "cp" or "tucker".
        size: What `phnn.convert` takes.
    """
    import tltorch  # pip install tensorly-torch

    def make(conv: nn.Conv2d, parameters: int) -> nn.Module:
        layer: nn.Module = tltorch.FactorizedConv.from_conv(
            conv,
            rank=parameters / conv.weight.numel(),
            factorization=kind,
            implementation="factorized",
            decompose_weights=False,
        )
        return layer

    return _replace(model, make, size)


def _replace(
    model: nn.Module, make: Callable[[nn.Conv2d, int], nn.Module], size: dict[str, Any]
) -> nn.Module:
    report = phnn.convert(model, **size).phnn_report
    assert isinstance(report, Report)
    for entry in report.changed:
        conv = model.get_submodule(entry.name)
        if isinstance(conv, nn.Conv2d):
            parent, _, child = entry.name.rpartition(".")
            setattr(model.get_submodule(parent), child, make(conv, entry.parameters_after))
    return model
