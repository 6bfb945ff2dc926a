"""A residual connection that starts as its shortcut."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ZeroResidual(nn.Module):
    r"""A residual connection with a learned weight that starts at zero.

    :math:`y = \mathrm{shortcut}(x) + \alpha\, \mathrm{branch}(x)` with one scalar
    :math:`\alpha = 0` at the start, so a deep network of such blocks starts as the identity and
    trains in fewer steps: Mancanelli et al., "PHYDI: Initializing Parameterized Hypercomplex Neural
    Networks as Identity Functions" (2023). The branch receives its first gradient after the first
    step of :math:`\alpha`. `phnn.init.zero_` starts the last layer of a branch at zero instead.

    Args:
        branch: Any module.
        shortcut: A module where the shape changes; the identity by default.
        device: Where alpha lives.
        dtype: Its type.

    Example:
        >>> from phnn.nn import PHConv2d
        >>> block = ZeroResidual(nn.Sequential(PHConv2d(8, 8, 3, padding=1, n=4), nn.ReLU()))
        >>> x = torch.randn(2, 8, 5, 5)
        >>> torch.equal(block(x), x)
        True
    """

    def __init__(
        self,
        branch: nn.Module,
        shortcut: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.alpha = nn.Parameter(torch.zeros((), device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Let the branch count nothing."""
        nn.init.zeros_(self.alpha)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the first input through the shortcut, plus the weighted branch of all inputs."""
        y = self.branch(*inputs)
        sum: Tensor = self.shortcut(inputs[0]) + self.alpha.to(y.dtype) * y
        return sum
