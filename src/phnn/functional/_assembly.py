"""The algebra, and the weight that it makes of the filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Factored(NamedTuple):
    r"""An algebra as R products, :math:`A[i, a, b] = \sum_r U[i, r] \, W[a, r] \, V[b, r]`.

    Attributes:
        V: Mixes the input components, (n, R).
        W: Mixes the output components, (n, R).
        U: Mixes the filters, (terms, R); without it each product has its own,
            :math:`A_r = w_r v_r^\top`.

    Example:
        >>> sum_and_difference = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> split_complex = Factored(sum_and_difference, sum_and_difference / 2, sum_and_difference)
        >>> split_complex.tensor()[1]
        tensor([[0., 1.],
                [1., 0.]])
    """

    V: Tensor
    W: Tensor
    U: Tensor | None = None

    def tensor(self) -> Tensor:
        """The algebra that the factors multiply out to, (terms, n, n)."""
        return outside_autocast(_multiply_out, self.V, self.W, self.U)


def kronecker_sum(
    A: Tensor | Factored, F: Tensor, groups: int = 1, transposed: bool = False
) -> Tensor:
    r"""The weight :math:`H = \sum_i A_i \otimes F_i` of a PH layer, by one small matrix product.

    With `blocks = F.unflatten(0, (groups, terms, -1))`:

    .. math::
        H[g, a, o, b, c] &= \textstyle\sum_i A[i, a, b] \cdot \mathrm{blocks}[g, i, o, c] \\
        H[g, b, c, a, o] &= \textstyle\sum_i A[i, a, b] \cdot \mathrm{blocks}[g, i, c, o]
        \quad\text{(transposed)}

    Args:
        A: The algebra, a tensor or `Factored`; `A[i]` is "multiply from the left by basis element
            i".
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
    if isinstance(A, Factored):
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
    return torch.einsum("iab,gioc...->gaobc...", A, blocks).flatten(0, 2).flatten(1, 2)


def _multiply_out(V: Tensor, W: Tensor, U: Tensor | None) -> Tensor:
    if U is None:
        return torch.einsum("ar,br->rab", W, V)
    return torch.einsum("ir,ar,br->iab", U, W, V)


def mix_filters(F: Tensor, U: Tensor | None, groups: int) -> Tensor:
    """The filters of the R products, Σ_i U[i, r] F_i, stacked along the first axis."""
    if U is None:
        return F
    blocks = F.unflatten(0, (groups, U.shape[0], -1))
    return torch.einsum("ir,gio...->gro...", U, blocks).flatten(0, 2)


def outside_autocast(assemble: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Calls a function of parameters alone, whose first argument is a tensor."""
    device = arguments[0].device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        # assembled in bfloat16, H would carry the rounding of A and of F on top of its own; entered
        # only when autocast is on, so that exported graphs hold no trace of it
        with torch.autocast(device, enabled=False):
            return assemble(*arguments)
    return assemble(*arguments)
