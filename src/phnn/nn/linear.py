"""The fully connected PH layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phnn import functional
from phnn.algebra import Algebra
from phnn.nn._layer import PHLayer
from phnn.structure import Dimension, Structure


class PHLinear(PHLayer):
    r"""A linear layer with 1/n of the parameters, :math:`y = Hx + b`.

    Its weight is :math:`H = \sum_i A_i \otimes F_i`: the parameterized hypercomplex multiplication
    of Zhang et al., "Beyond Fully-Connected Layers with Quaternions" (2021). The arguments up to
    `dtype` are those of `torch.nn.Linear`.

    Args:
        in_features: Size of each input sample; n must divide it.
        out_features: Size of each output sample; n must divide it.
        bias: Whether to add a learned bias.
        device: Where the parameters live.
        dtype: Their real floating-point type.
        n: Dimension of the algebra, to be learned; a pair (n_out, n_in) for a rectangular A.
        algebra: A known algebra to compute with, or its name; it implies n.
        learn_algebra: Whether A is learned; by default exactly when no algebra is given. With an
            algebra, True starts from it.
        terms: Number of Kronecker terms, n by default; any 1 … n² keeps terms/n² of the parameters.
            Required for a pair.
        rank: CP rank that the learned algebra is limited to; see `PHConv2d`.

    Shape:
        - Input: :math:`(*, \mathrm{in\_features})`; output: :math:`(*, \mathrm{out\_features})`.
        - A: :math:`(\mathrm{terms}, n_{out}, n_{in})`;
          F: :math:`(\mathrm{out}\cdot\mathrm{terms}/n_{out}, \mathrm{in}/n_{in})`.

    Example:
        >>> layer = PHLinear(64, 128, n=4)
        >>> layer(torch.randn(8, 64)).shape
        torch.Size([8, 128])
        >>> layer
        PHLinear(in_features=64, out_features=128, bias=True, n=4)
        >>> PHLinear(64, 128, n=(128, 1), terms=8)  # a low-rank layer, 64 → 8 → 128
        PHLinear(in_features=64, out_features=128, bias=True, n=128x1, terms=8)
    """

    dense_type = nn.Linear
    dense_args = ("in_features", "out_features")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: Dimension | None = None,
        algebra: Algebra | str | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(
            Structure.of(n, algebra=algebra, learn_algebra=learn_algebra, terms=terms, rank=rank)
        )
        self._check_divisible(("in_features", in_features), ("out_features", out_features))
        self.in_features = in_features
        self.out_features = out_features
        self._make_state(
            out_features, in_features, (), out_features if bias else None, device, dtype
        )

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to the last axis of the input."""
        self._check_input(input, -1, self.in_features, ranks=None)
        return functional.linear(input, self.rules, self.F, self.bias)

    def extra_repr(self) -> str:
        """Return the arguments, as `repr` shows them."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {self.structure}"
        )
