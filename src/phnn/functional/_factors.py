"""An algebra as a sum of R products of one number with one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Factors(NamedTuple):
    r"""A CP decomposition, :math:`A[i, a, b] = \sum_r U[i, r] \, V[b, r] \, W[a, r]`.

    All three may have the same leading batch axes.

    Attributes:
        U: Mixes the filters, (terms, R); None where each product has filters of its own,
            :math:`A_r = w_r v_r^\top`.
        V: Mixes the input components, (n_in, R).
        W: Mixes the output components, (n_out, R).

    Example:
        >>> sum_and_difference = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> split_complex = Factors(sum_and_difference, sum_and_difference, sum_and_difference / 2)
        >>> split_complex.tensor()[1]
        tensor([[0., 1.],
                [1., 0.]])
    """

    U: Tensor | None
    V: Tensor
    W: Tensor

    @property
    def rank(self) -> int:
        """The number of products R."""
        return self.V.shape[-1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Terms, n_out and n_in of the algebra."""
        terms = self.rank if self.U is None else self.U.shape[-2]
        return terms, self.W.shape[-2], self.V.shape[-2]

    @property
    def mixing(self) -> Tensor:
        """U, or the identity where each product has filters of its own."""
        if self.U is not None:
            return self.U
        return torch.eye(self.rank, dtype=self.V.dtype, device=self.V.device)

    def tensor(self) -> Tensor:
        """Return the algebra that the factors multiply out to, (…, terms, n_out, n_in)."""
        return outside_autocast(_multiply_out, *self)

    def growth(self) -> Tensor:
        r"""Return the size, :math:`\sum_r \lVert u_r\rVert \lVert v_r\rVert \lVert w_r\rVert`."""
        return self._norms().prod(0).sum(-1)

    def balanced(self) -> Factors:
        """Return the same terms, with the size of each shared equally by its three columns."""
        norms = self._norms()
        shared = norms.prod(0).pow(1 / 3)
        # a term of size zero stays zero in all three of its columns
        scales = shared / norms.clamp_min(torch.finfo(norms.dtype).tiny)
        columns = (self.mixing, self.V, self.W)
        return Factors(*(f * s.unsqueeze(-2) for f, s in zip(columns, scales, strict=True)))

    def _norms(self) -> Tensor:
        return torch.stack([factor.norm(dim=-2) for factor in (self.mixing, self.V, self.W)])


class Known(NamedTuple):
    """A fixed algebra, with an exact CP decomposition that a layer may compute with.

    Attributes:
        A: The algebra, (n, n, n).
        factors: What multiplies out to it.
    """

    A: Tensor
    factors: Factors

    @property
    def shape(self) -> torch.Size:
        """Terms, n_out and n_in of the algebra."""
        return self.A.shape


def each(function: Callable[..., Tensor], *factors: Factors) -> Factors:
    """Apply a function to all U, to all V and to all W; an absent U stays absent."""
    Us, Vs, Ws = zip(*factors, strict=True)
    return Factors(None if Us[0] is None else function(*Us), function(*Vs), function(*Ws))


def _multiply_out(U: Tensor | None, V: Tensor, W: Tensor) -> Tensor:
    if U is None:
        return torch.einsum("...ar,...br->...rab", W, V)
    return torch.einsum("...ir,...ar,...br->...iab", U, W, V)


def outside_autocast(assemble: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function of parameters alone in their own precision."""
    device = next(value for value in arguments if isinstance(value, Tensor)).device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        # assembled in bfloat16, H would carry the rounding of A and of F on top of its own; entered
        # only when autocast is on, so that exported graphs hold no trace of it
        with torch.autocast(device, enabled=False):
            return assemble(*arguments)
    return assemble(*arguments)
