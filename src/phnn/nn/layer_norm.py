"""The layer norm of components."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from phnn.nn._weight import check_components, real_dtype


class ComponentLayerNorm(nn.Module):
    r"""A layer norm of each component by itself, over the last axis.

    Each of the n blocks of the last axis is normalised by its own mean and variance. With
    `one_variance` the means are still those of the components, and the variance is that of all, so
    that the components keep their ratios. The arguments up to `dtype` are those of
    `torch.nn.LayerNorm` for one axis.

    Args:
        normalized_shape: Features of the last axis; n must divide them.
        eps: Added to the variance.
        elementwise_affine: Whether there are learned scales.
        bias: Whether there are learned biases, too.
        device: Where the parameters live.
        dtype: Their real floating-point type.
        n: Number of components.
        one_variance: Whether all components share one variance.

    Shape:
        - Input and output: :math:`(*, \mathrm{normalized\_shape})`.

    Example:
        >>> ComponentLayerNorm(64, n=4)(torch.randn(8, 10, 64)).shape
        torch.Size([8, 10, 64])
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        normalized_shape: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: int,
        one_variance: bool = False,
    ) -> None:
        super().__init__()
        check_components(n, "normalized_shape", normalized_shape)
        self.normalized_shape = normalized_shape
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.n = n
        self.one_variance = one_variance
        options: dict[str, Any] = {"device": device, "dtype": real_dtype(self, dtype)}
        for name, exists in (("weight", True), ("bias", bias)):
            empty = torch.empty(normalized_shape, **options)
            learned = elementwise_affine and exists
            self.register_parameter(name, nn.Parameter(empty) if learned else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Let the scale be one and the bias zero."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise the last axis."""
        if not isinstance(input, Tensor) or not input.is_floating_point():
            kind = input.dtype if isinstance(input, Tensor) else type(input).__name__
            raise TypeError(f"{type(self).__name__} expects a real tensor, got {kind}")
        if input.dim() == 0 or input.shape[-1] != self.normalized_shape:
            raise ValueError(
                f"{type(self).__name__} expects {self.normalized_shape} features in its last axis, "
                f"got input of shape {tuple(input.shape)}"
            )
        x = input.float() if input.dtype.itemsize < 4 else input
        components = x.unflatten(-1, (self.n, -1))
        centred = components - components.mean(-1, keepdim=True)
        axes = (-2, -1) if self.one_variance else (-1,)
        variance = centred.square().mean(axes, keepdim=True)
        y = (centred * (variance + self.eps).rsqrt()).flatten(-2)
        if self.weight is not None:
            y = y * self.weight.to(y.dtype)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.to(input.dtype)

    def extra_repr(self) -> str:
        """Return the arguments, as `repr` shows them."""
        shown = (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine="
            f"{self.elementwise_affine}, n={self.n}"
        )
        return shown + ", one_variance=True" * self.one_variance
