"""How much each Kronecker term of a layer contributes."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["effective_terms", "usage"]


def usage(A: Tensor, F: Tensor, groups: int = 1) -> Tensor:
    r"""The norms of :math:`A_i \otimes F_i`, scaled so that their squares add up to one.

    Args:
        A: The algebra, (terms, n, n).
        F: The filters, as a PH layer holds them.
        groups: Groups of the convolution.

    Example:
        >>> usage(torch.ones(2, 2, 2), torch.tensor([[3.0], [4.0]]))
        tensor([0.6000, 0.8000], dtype=torch.float64)
    """
    blocks = F.detach().cpu().double().unflatten(0, (groups, len(A), -1)).transpose(0, 1)
    norms = A.detach().cpu().double().flatten(1).norm(dim=1) * blocks.flatten(1).norm(dim=1)
    shares: Tensor = norms / norms.norm().clamp_min(torch.finfo(norms.dtype).tiny)
    return shares


def effective_terms(spectrum: Tensor) -> float:
    r"""How many equally strong terms would spread as the given ones do.

    With the singular values σ of the rearranged weight, :math:`(\sum σ^2)^2 / \sum σ^4`. Near the
    number of terms that a layer has, all are in full use and more might help; far below it, fewer
    would do.

    Args:
        spectrum: From `phnn.decompose.spectrum`.

    Example:
        >>> effective_terms(torch.tensor([2.0, 2.0, 0.0]))
        2.0
    """
    energy = spectrum.square()
    return float(energy.sum().square() / energy.square().sum().clamp_min(1e-300))
