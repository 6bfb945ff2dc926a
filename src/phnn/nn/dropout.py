"""Dropout of whole hypercomplex numbers."""

from __future__ import annotations

from torch import Tensor, nn

from phnn.nn._weight import check_components


class ComponentDropout(nn.Module):
    """Dropout that drops a hypercomplex number whole: all n components, or none.

    Args:
        p: Probability that a number becomes zero in training; the others are divided by 1 - p.
        inplace: Whether to change the input itself.
        n: Number of components.
        dim: Axis of the channels: 1 as convolutions have it, -1 for (batch, steps, features).

    Shape:
        Any, with n components on axis `dim`; the output has the same.

    Example:
        >>> import torch
        >>> y = ComponentDropout(0.5, n=4)(torch.ones(2, 8))
        >>> numbers = y.view(2, 4, 2)  # component, number
        >>> bool((numbers == numbers[:, :1]).all())
        True
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, *, n: int, dim: int = 1) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p={p} must be a probability, from 0 to 1")
        check_components(n, "n", n)
        self.p = p
        self.inplace = inplace
        self.n = n
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Drop numbers in training; return the input in evaluation."""
        dims = input.dim()
        if not -dims <= self.dim < dims or input.shape[self.dim] % self.n:
            raise ValueError(
                f"n={self.n} must divide the channels on axis {self.dim}, got input of shape "
                f"{tuple(input.shape)}; dim= names another axis"
            )
        if not self.training or self.p == 0:
            return input
        axis = self.dim % dims
        numbers = list(input.shape)
        numbers[axis : axis + 1] = [1, numbers[axis] // self.n]
        kept = nn.functional.dropout(input.new_ones(numbers), self.p)
        repeated = kept.expand(*numbers[:axis], self.n, *numbers[axis + 1 :])
        mask = repeated.flatten(axis, axis + 1)
        return input.mul_(mask) if self.inplace else input * mask

    def extra_repr(self) -> str:
        """Return the arguments, as `repr` shows them."""
        return f"p={self.p}, inplace={self.inplace}, n={self.n}, dim={self.dim}"
