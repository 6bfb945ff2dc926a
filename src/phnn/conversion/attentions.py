"""torch's attention, opened: its packed input projections are linear layers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from phnn import algebra
from phnn.conversion.opening import Opened
from phnn.nn import PHMultiheadAttention

__all__ = ["OpenAttention"]

_INPUTS = ("q_proj", "k_proj", "v_proj")


class OpenAttention(Opened, PHMultiheadAttention):
    """The attention of phnn with the projections of torch's, whose memory they share.

    Args:
        fused: torch's attention.
    """

    fused: nn.MultiheadAttention
    twin = PHMultiheadAttention
    parts = _INPUTS  # the output projection is a layer in torch, too

    def __init__(self, fused: nn.MultiheadAttention) -> None:
        PHMultiheadAttention.__init__(self, **_arguments(fused))
        self.__dict__["fused"] = fused
        weights, biases = _split(fused)
        for name, weight, bias in zip(_INPUTS, weights, biases, strict=True):
            setattr(self, name, _linear(weight, bias))
        self.out_proj = fused.out_proj  # type: ignore[assignment]
        self.bias_k, self.bias_v = fused.bias_k, fused.bias_v
        self.training = fused.training

    def fuse(self) -> nn.Module:
        """Return torch's attention with the weights that the projections have now."""
        return self.to_dense()

    def close(self, parts: Mapping[str, nn.Module], fill: bool = True) -> nn.Module:
        """Return PH attention that has some new projections; the others stay dense.

        Args:
            parts: PH layers, and linear layers that stay dense, by the names of the projections.
            fill: Take their tensors; False for new ones.
        """
        layer = PHMultiheadAttention(**_arguments(self.fused))
        for name in (*_INPUTS, "out_proj"):
            old = self.get_submodule(name)
            setattr(layer, name, parts[name] if name in parts else _copy(old))
        for name in ("bias_k", "bias_v"):
            setattr(layer, name, copy.deepcopy(getattr(self.fused, name)))
        if not fill:
            layer.reset_parameters()
        return layer.train(self.fused.training)


def _arguments(fused: nn.MultiheadAttention) -> dict[str, Any]:
    """Return the arguments of the same attention, on the meta device and with dense weights."""
    return {
        **{name: getattr(fused, name) for name in PHMultiheadAttention.dense_args},
        "bias": fused.in_proj_bias is not None,
        "add_bias_kv": fused.bias_k is not None,
        "device": "meta",
        "algebra": algebra.real,
    }


def _split(fused: nn.MultiheadAttention) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return views of the weights and biases of q, k and v."""
    packed: Tensor | None = fused.in_proj_weight
    weights = [fused.get_parameter(f"{name}_weight") for name in _INPUTS] if packed is None else []
    if packed is not None:
        weights = list(packed.chunk(3))  # type: ignore[arg-type]
    bias: Tensor | None = fused.in_proj_bias
    return list(weights), [None] * 3 if bias is None else list(bias.chunk(3))


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    rows, columns = weight.shape
    linear = nn.Linear(columns, rows, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=bias.requires_grad)
    return linear


def _copy(linear: nn.Module) -> nn.Linear:
    """Return a plain linear layer with a copy of the weights."""
    weight, bias = linear.get_parameter("weight"), linear._parameters["bias"]
    with torch.no_grad():
        dense = _linear(weight, bias)
        dense.weight, dense.bias = copy.deepcopy(dense.weight), copy.deepcopy(dense.bias)
    return dense.train(linear.training)
