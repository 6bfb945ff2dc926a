r"""Three matrices that stand for an algebra as a sum of R products.

.. math:: A[i, a, b] = \sum_r U[i, r] \, W[a, r] \, V[b, r]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Factors"]


class Factors(NamedTuple):
    """U (terms, R), V (n, R), W (n, R), alone or with the same leading batch axes."""

    U: Tensor
    V: Tensor
    W: Tensor

    @property
    def rank(self) -> int:
        """The number of products R."""
        return self.U.shape[-1]

    def tensor(self) -> Tensor:
        """The algebra that the factors multiply out to, (…, terms, n, n)."""
        # one batched matrix product over r, where einsum would first form all of (i, a, b, r)
        left = self.U.unsqueeze(-2) * self.W.unsqueeze(-3)
        A: Tensor = (left.flatten(-3, -2) @ self.V.mT).unflatten(-2, left.shape[-3:-1])
        return A

    def growth(self) -> Tensor:
        r"""Size of the terms, :math:`\sum_r \lVert u_r\rVert \lVert v_r\rVert \lVert w_r\rVert`."""
        norms = torch.stack([factor.norm(dim=-2) for factor in self])
        return norms.prod(0).sum(-1)

    def balanced(self) -> Factors:
        """The same terms with the size of each shared equally by its three columns."""
        norms = torch.stack([factor.norm(dim=-2) for factor in self])
        shared = norms.prod(0).pow(1 / 3)
        # a term of size zero stays zero in all three of its columns
        scales = shared / norms.clamp_min(torch.finfo(norms.dtype).tiny)
        return Factors(*(f * s.unsqueeze(-2) for f, s in zip(self, scales, strict=True)))
