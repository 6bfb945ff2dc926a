r"""The arithmetic of PH layers on plain tensors.

Every function computes the same equation, with input components :math:`x_b`, output components
:math:`y_a` and Kronecker terms :math:`i`:

.. math:: y_a = \sum_i \sum_b A[i, a, b] \cdot (F_i * x_b) + \mathrm{bias}_a

The names and the order of the arguments are those of `torch.nn.functional`, with the pair `A, F` in
the place of the weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "kronecker_sum",
    "linear",
]

Size = int | Sequence[int]


def kronecker_sum(A: Tensor, F: Tensor, groups: int = 1, transposed: bool = False) -> Tensor:
    r"""The weight :math:`H = \sum_i A_i \otimes F_i` of a PH layer, by one small matrix product.

    With `blocks = F.unflatten(0, (groups, terms, -1))`:

    .. math::
        H[g, a, o, b, c] &= \textstyle\sum_i A[i, a, b] \cdot \mathrm{blocks}[g, i, o, c] \\
        H[g, b, c, a, o] &= \textstyle\sum_i A[i, a, b] \cdot \mathrm{blocks}[g, i, c, o]
        \quad\text{(transposed)}

    Args:
        A: The algebra, `A[i]` is "multiply from the left by basis element i".
        F: The filters, the Kronecker terms stacked along the first axis.
        groups: Groups of a grouped convolution; one A serves all of them.
        transposed: Whether the weight is for a transposed convolution, (in, out/groups, *k).

    Shape:
        - A: :math:`(m, n, n)` with m terms.
        - F: :math:`(d\,m/n, s/(g\,n), *k)`, transposed :math:`(s\,m/n, d/(g\,n), *k)`.
        - Output: :math:`(d, s/g, *k)`, transposed :math:`(s, d/g, *k)`.

    Example:
        >>> A, F = torch.randn(2, 2, 2), torch.randn(6, 4)
        >>> H = torch.kron(A[0], F[:3]) + torch.kron(A[1], F[3:])
        >>> torch.allclose(kronecker_sum(A, F), H)
        True
    """
    terms = A.shape[0]
    if F.shape[0] % (groups * terms):
        raise ValueError(
            f"the first axis of F holds groups · terms = {groups} · {terms} equal blocks, "
            f"got F of shape {tuple(F.shape)}"
        )
    device = F.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        # assembled in bfloat16, H would carry the rounding of A and of F on top of its own; entered
        # only when autocast is on, so that exported graphs hold no trace of it
        with torch.autocast(device, enabled=False):
            return _kronecker_sum(A, F, groups, transposed)
    return _kronecker_sum(A, F, groups, transposed)


def _kronecker_sum(A: Tensor, F: Tensor, groups: int, transposed: bool) -> Tensor:
    blocks = F.unflatten(0, (groups, A.shape[0], -1))
    if transposed:
        A = A.mT
    return torch.einsum("iab,gioc...->gaobc...", A, blocks).flatten(0, 2).flatten(1, 2)


def linear(input: Tensor, A: Tensor, F: Tensor, bias: Tensor | None = None) -> Tensor:
    """A fully connected PH layer; see `torch.nn.functional.linear`."""
    return nn.functional.linear(input, kronecker_sum(A, F), bias)


def conv1d(
    input: Tensor,
    A: Tensor,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """A 1-d PH convolution; see `torch.nn.functional.conv1d`."""
    H = kronecker_sum(A, F, groups)
    return nn.functional.conv1d(input, H, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    A: Tensor,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """A 2-d PH convolution; see `torch.nn.functional.conv2d`."""
    H = kronecker_sum(A, F, groups)
    return nn.functional.conv2d(input, H, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    A: Tensor,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """A 3-d PH convolution; see `torch.nn.functional.conv3d`."""
    H = kronecker_sum(A, F, groups)
    return nn.functional.conv3d(input, H, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor,
    A: Tensor,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """A 1-d transposed PH convolution; see `torch.nn.functional.conv_transpose1d`."""
    H = kronecker_sum(A, F, groups, transposed=True)
    return nn.functional.conv_transpose1d(
        input, H, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: Tensor,
    A: Tensor,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """A 2-d transposed PH convolution; see `torch.nn.functional.conv_transpose2d`."""
    H = kronecker_sum(A, F, groups, transposed=True)
    return nn.functional.conv_transpose2d(
        input, H, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose3d(
    input: Tensor,
    A: Tensor,
    F: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """A 3-d transposed PH convolution; see `torch.nn.functional.conv_transpose3d`."""
    H = kronecker_sum(A, F, groups, transposed=True)
    return nn.functional.conv_transpose3d(
        input, H, bias, stride, padding, output_padding, groups, dilation
    )
