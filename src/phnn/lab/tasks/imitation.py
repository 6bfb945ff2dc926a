"""How far the outputs of a network are from those of another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from phnn.runtimes.nested import leaves


def relative_error(outputs: Any, targets: Any) -> Tensor:
    """Return the squared difference of outputs, relative to the variation of the targets.

    It needs no labels and no knowledge of what the outputs mean, and is 1 for outputs that are the
    mean of the targets. All floating-point tensors in the outputs count alike.

    Args:
        outputs: What the student returns, a tensor or tensors at any depth.
        targets: What the teacher returns for the same inputs.

    Example:
        >>> relative_error(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [4.0]]))
        tensor(0.2500)
    """
    pairs = [_floats(outputs), _floats(targets)]
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in pairs]
    if shapes[0] != shapes[1] or not shapes[0]:
        ours, theirs = (", ".join(map(str, sizes)) or "nothing to compare" for sizes in shapes)
        raise ValueError(
            f"the student returns {ours}, the teacher {theirs}; distillation takes networks with "
            "floating-point outputs of the same shapes"
        )
    errors = [_compare(y.float(), t.detach().float()) for y, t in zip(*pairs, strict=True)]
    return torch.stack(errors).mean()


def stop_dropout(model: nn.Module) -> None:
    """Put dropout in evaluation mode: what it drops cannot be imitated."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()


def _compare(outputs: Tensor, targets: Tensor) -> Tensor:
    axes = list(range(max(1, targets.dim() - 1)))  # all but the last: classes, or features
    variation = (targets - targets.mean(axes, keepdim=True)).square().mean()
    scale = torch.where(variation > 0, variation, targets.square().mean())
    tiny = torch.finfo(scale.dtype).tiny
    return (outputs - targets).square().mean() / scale.clamp_min(tiny)


def _floats(outputs: Any) -> list[Tensor]:
    return [tensor for tensor in leaves(outputs) if tensor.is_floating_point()]
