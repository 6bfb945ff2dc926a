"""The contribution of each Kronecker term of a layer."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["effective_terms", "usage"]


def usage(A: Tensor, F: Tensor, groups: int = 1) -> Tensor:
    r"""Return the norms of :math:`A_i \otimes F_i`, scaled so that the squares sum to one.

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
    r"""Return the number of equally strong terms that would have the same spread.

    It is :math:`(\sum σ^2)^2 / \sum σ^4` for the singular values σ of the rearranged weight. Close
    to the number of terms of the layer, all terms are in full use and more might help; far below
    it, fewer terms would be enough.

    Args:
        spectrum: From `phnn.decompose.spectrum`.

    Example:
        >>> effective_terms(torch.tensor([2.0, 2.0, 0.0]))
        2.0
    """
    energy = spectrum.square()
    return float(energy.sum().square() / energy.square().sum().clamp_min(1e-300))
