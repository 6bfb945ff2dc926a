"""The weight that an algebra makes of the filters."""

from __future__ import annotations

import torch
from torch import Tensor

from phnn.functional._factors import Factors, outside_autocast


def kronecker_sum(
    A: Tensor | Factors, F: Tensor, groups: int = 1, transposed: bool = False
) -> Tensor:
    r"""Assemble the weight :math:`H = \sum_i A_i \otimes F_i` by one small matrix product.

    With `blocks = F.unflatten(0, (groups, terms, -1))`:

    .. math::
        H[g, a, o, b, c] &= \textstyle\sum_i A[i, a, b] \cdot \mathrm{blocks}[g, i, o, c] \\
        H[g, b, c, a, o] &= \textstyle\sum_i A[i, a, b] \cdot \mathrm{blocks}[g, i, c, o]
        \quad\text{(transposed)}

    Args:
        A: The algebra, a tensor or `Factors`; `A[i]` is "multiply from the left by basis element
            i".
        F: The filters, the Kronecker terms stacked along the first axis.
        groups: Groups of a grouped convolution; one A serves all of them.
        transposed: Whether the weight is for a transposed convolution, (in, out/groups, *k).

    Shape:
        - A: :math:`(m, p, q)` with m terms, for p output and q input components; the paper's
          :math:`(n, n, n)`.
        - F: :math:`(d\,m/p, s/(g\,q), *k)`, transposed :math:`(s\,m/q, d/(g\,p), *k)`.
        - Output: :math:`(d, s/g, *k)`, transposed :math:`(s, d/g, *k)`.

    Example:
        >>> A, F = torch.randn(2, 2, 2), torch.randn(6, 4)
        >>> H = torch.kron(A[0], F[:3]) + torch.kron(A[1], F[3:])
        >>> torch.allclose(kronecker_sum(A, F), H)
        True
    """
    if isinstance(A, Factors):
        A = A.tensor()
    terms = A.shape[0]
    if F.shape[0] % (groups * terms):
        raise ValueError(
            f"the first axis of F holds groups · terms = {groups} · {terms} equal blocks, "
            f"got F of shape {tuple(F.shape)}"
        )
    return outside_autocast(_kronecker_sum, A, F, groups, transposed)


def _kronecker_sum(A: Tensor, F: Tensor, groups: int, transposed: bool) -> Tensor:
    blocks = F.unflatten(0, (groups, A.shape[0], -1))
    if transposed:
        A = A.mT
    make = _sum_in_graph if torch.compiler.is_compiling() else _sum
    return make(A, blocks).flatten(0, 2).flatten(1, 2)


def _sum_in_graph(A: Tensor, blocks: Tensor) -> Tensor:
    return torch.einsum("iab,gioc...->gaobc...", A, blocks)


def _sum(A: Tensor, blocks: Tensor) -> Tensor:
    """Return what einsum does, to the bit, without its search for the matrix product."""
    rules, filters = A.permute(1, 2, 0).flatten(0, 1), blocks.transpose(0, 1).flatten(1)
    products = rules * filters if A.shape[0] == 1 else rules[None].bmm(filters[None])
    groups, _, *sizes = blocks.shape
    H: Tensor = products.view(*A.shape[1:], groups, *sizes).movedim(2, 0).transpose(2, 3)
    return H
