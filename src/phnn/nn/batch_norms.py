"""Batch norms over components: they treat a hypercomplex number as one thing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from phnn.functional._factors import outside_autocast
from phnn.nn._weight import check_components, real_dtype


class _ComponentBatchNorm(nn.Module, ABC):
    """What the batch norms share: components on axis 1, as convolutions have them."""

    running_mean: Tensor | None
    num_batches_tracked: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    _statistic: str  # name of the buffer with the running variances, or covariances

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        n: int,
    ) -> None:
        super().__init__()
        check_components(n, "num_features", num_features)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.n = n
        options: dict[str, Any] = {"device": device, "dtype": real_dtype(self, dtype)}
        shape = (num_features // n, *self._shape)
        for name, sizes in (("weight", shape), ("bias", (num_features,))):
            empty = torch.empty(sizes, **options)
            self.register_parameter(name, nn.Parameter(empty) if affine else None)
        tracked = {
            "running_mean": torch.empty(num_features, **options),
            self._statistic: torch.empty(shape, **options),
            "num_batches_tracked": torch.empty((), dtype=torch.long, device=device),
        }
        for name, buffer in tracked.items():
            self.register_buffer(name, buffer if track_running_stats else None)
        self.reset_parameters()

    @property
    @abstractmethod
    def _shape(self) -> tuple[int, ...]:
        """Shape of the statistic, and of the weight, of one number."""

    @abstractmethod
    def _unit(self, like: Tensor) -> Tensor:
        """Return the statistic of independent components of variance 1."""

    @abstractmethod
    def _measure(self, centred: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Return the statistic of (batch, n, numbers, *positions) without its mean."""

    @abstractmethod
    def _apply_statistic(self, centred: Tensor, statistic: Tensor) -> Tensor:
        """Return normalised and scaled components."""

    def reset_running_stats(self) -> None:
        """Forget what was seen."""
        if not self.track_running_stats:
            return
        with torch.no_grad():
            self.get_buffer("running_mean").zero_()
            statistic = self.get_buffer(self._statistic)
            statistic.copy_(self._unit(statistic))
            self.get_buffer("num_batches_tracked").zero_()

    def reset_parameters(self) -> None:
        """Forget what was seen; let the scale be the identity and the bias zero."""
        self.reset_running_stats()
        if self.weight is not None and self.bias is not None:
            with torch.no_grad():
                self.weight.copy_(self._unit(self.weight))
                self.bias.zero_()

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (batch, num_features, *positions)."""
        name = type(self).__name__
        if not isinstance(input, Tensor) or not input.is_floating_point():
            kind = input.dtype if isinstance(input, Tensor) else type(input).__name__
            raise TypeError(f"{name} expects a real floating-point tensor, got {kind}")
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"{name} expects (batch, {self.num_features}, *positions), got input of shape "
                f"{tuple(input.shape)}"
            )
        return outside_autocast(self._normalise, input)

    def _normalise(self, input: Tensor) -> Tensor:
        # statistics of a lower precision would be too coarse, as in torch's norms
        x = input.float() if input.dtype.itemsize < 4 else input
        x = x.unflatten(1, (self.n, -1))
        axes = (0, *range(3, x.dim()))
        if self.training or not self.track_running_stats:
            mean = x.mean(dim=axes)
            centred = x - _spread(mean, x)
            statistic = self._measure(centred, axes)
            if self.training and self.track_running_stats:
                self._remember(mean, statistic, x.numel() // self.num_features)
        else:
            assert self.running_mean is not None
            mean = self.running_mean.to(x.dtype).unflatten(0, (self.n, -1))
            centred = x - _spread(mean, x)
            statistic = self.get_buffer(self._statistic).to(x.dtype)
        y = self._apply_statistic(centred, statistic)
        if self.bias is not None:
            y = y + _spread(self.bias.to(y.dtype).unflatten(0, (self.n, -1)), y)
        return y.flatten(1, 2).to(input.dtype)

    def _remember(self, mean: Tensor, statistic: Tensor, count: int) -> None:
        """Update the running statistics, with the unbiased estimate where there is one."""
        assert self.running_mean is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the mean of all batches
                share: float | Tensor = 1 / self.num_batches_tracked.to(mean.dtype)
            else:
                share = self.momentum
            running = self.get_buffer(self._statistic)
            unbiased = statistic * (count / max(count - 1, 1))
            for buffer, value in ((self.running_mean, mean.flatten()), (running, unbiased)):
                buffer.add_((value.to(buffer.dtype) - buffer) * share)

    def extra_repr(self) -> str:
        """Return the arguments, as torch's norms show them."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}, n={self.n}"
        )


class ComponentBatchNorm(_ComponentBatchNorm):
    r"""A batch norm with one variance for each hypercomplex number.

    The mean is that of each component, and the variance is the mean over the n components of a
    number: :math:`y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta` with one
    :math:`\sigma^2` and one :math:`\gamma` for each number, and a :math:`\beta` for each component.
    So the components of a number keep their ratios. It is as cheap as torch's batch norm. The
    arguments up to `dtype` are those of `torch.nn.BatchNorm2d`; one class serves all dimensions.

    Args:
        num_features: Channels; n must divide them.
        eps: Added to the variance.
        momentum: Share of a new batch in the running statistics; None for the mean of all batches.
        affine: Whether there are learned scales and biases.
        track_running_stats: Whether evaluation uses running statistics, or those of the batch.
        device: Where the state lives.
        dtype: Its real floating-point type.
        n: Number of components. Channels read component, then number, as in the layers.

    Shape:
        - Input and output: :math:`(\mathrm{batch}, \mathrm{num\_features}, *)`.
        - `weight`, `running_var`: num_features/n; `bias`, `running_mean`: num_features.

    Example:
        >>> norm = ComponentBatchNorm(64, n=4)
        >>> norm(torch.randn(8, 64, 5, 5)).shape, norm.weight.shape
        (torch.Size([8, 64, 5, 5]), torch.Size([16]))
    """

    _statistic = "running_var"

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: int,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, n)

    @property
    def _shape(self) -> tuple[int, ...]:
        return ()

    def _unit(self, like: Tensor) -> Tensor:
        return torch.ones_like(like)

    def _measure(self, centred: Tensor, axes: tuple[int, ...]) -> Tensor:
        return centred.square().mean(dim=(1, *axes))

    def _apply_statistic(self, centred: Tensor, statistic: Tensor) -> Tensor:
        scale = (statistic + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight.to(scale.dtype)
        return centred * _spread(scale, centred)


class WhiteningBatchNorm(_ComponentBatchNorm):
    r"""A batch norm that whitens the components of each hypercomplex number.

    With the covariance of the n components, :math:`V + \epsilon I = LL^\top` (Cholesky),

    .. math:: y = \Gamma L^{-1} (x - \mu) + \beta

    so the components are uncorrelated and of variance 1 before the learned :math:`\Gamma` (n×n for
    each number, the identity at first) mixes them. This is the batch norm of Trabelsi et al., "Deep
    Complex Networks" (2018), and of Gaudet and Maida, "Deep Quaternion Networks" (2018), for every
    n. Constant inputs and single samples give :math:`\beta`. See `ComponentBatchNorm` for the
    arguments.

    Shape:
        - `weight`, `running_covariance`: (num_features/n, n, n).

    Example:
        >>> norm = WhiteningBatchNorm(6, n=3, affine=False)
        >>> y = norm(torch.randn(1000, 6) @ torch.randn(6, 6))
        >>> torch.allclose(torch.cov(y[:, ::2].T), torch.eye(3), atol=1e-2)  # of the first number
        True
    """

    _statistic = "running_covariance"

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: int,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, n)

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.n, self.n)

    def _unit(self, like: Tensor) -> Tensor:
        return torch.eye(self.n, dtype=like.dtype, device=like.device).expand_as(like)

    def _measure(self, centred: Tensor, axes: tuple[int, ...]) -> Tensor:
        numbers = centred.movedim((2, 1), (0, 1)).flatten(2)
        return numbers @ numbers.mT / max(numbers.shape[2], 1)

    def _apply_statistic(self, centred: Tensor, statistic: Tensor) -> Tensor:
        matrix = _whiten(statistic, self.eps)
        if self.weight is not None:
            matrix = self.weight.to(matrix.dtype) @ matrix
        return torch.einsum("cab,xbc...->xac...", matrix, centred)


def _whiten(covariance: Tensor, eps: float) -> Tensor:
    """Return the inverse of the Cholesky factor of covariance + eps, row after row.

    Written out because ONNX has no Cholesky. Row j of the inverse is the unit vector j without its
    projections on earlier rows, in the scalar product that the covariance is. A variance that
    rounding makes smaller than eps counts as eps.
    """
    n = covariance.shape[-1]
    identity = torch.eye(n, dtype=covariance.dtype, device=covariance.device)
    shifted = covariance + eps * identity
    rows: list[Tensor] = []
    for j in range(n):
        row = identity[j].expand(covariance.shape[:-1])
        for other in rows:
            row = row - (other * shifted[..., j]).sum(-1, keepdim=True) * other
        image = (shifted @ row.unsqueeze(-1)).squeeze(-1)
        variance = (row * image).sum(-1, keepdim=True)
        rows.append(row * variance.clamp_min(eps).rsqrt())
    return torch.stack(rows, dim=-2)


def _spread(statistic: Tensor, x: Tensor) -> Tensor:
    """Return a statistic of the channels with axes for the positions of x."""
    return statistic.reshape(*statistic.shape, *(1,) * (x.dim() - 3))
