"""The convolutional PH layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from phnn import functional
from phnn.algebra import Algebra
from phnn.nn._layer import PHLayer
from phnn.structure import Dimension, Structure

Size = int | tuple[int, ...]

# the hyperparameters of torch's convolutions, listed once for construction and folding
CONV_ARGS = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "groups",
    "padding_mode",
)
CONV_TRANSPOSE_ARGS = (*CONV_ARGS, "output_padding")


class _PHConvNd(PHLayer):
    """A convolution that reads its hyperparameters from the torch layer it replaces."""

    dense_type: ClassVar[Callable[..., _ConvNd]]
    _convolve: ClassVar[Callable[..., Tensor]]

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    padding_mode: str

    def __init__(
        self,
        hyperparameters: dict[str, Any],
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        structure: Structure,
    ) -> None:
        super().__init__(structure)
        self.groups = hyperparameters["groups"]
        if self.groups < 1:
            raise ValueError(f"groups must be at least 1, got groups={self.groups}")
        inputs, outputs = ((name, hyperparameters[name]) for name in CONV_ARGS[:2])
        self._check_divisible(inputs, outputs)
        for name in ("kernel_size", "stride", "dilation"):
            value = hyperparameters[name]
            if min(value if isinstance(value, tuple | list) else (value,)) < 1:
                raise ValueError(f"{name} must be at least 1, got {name}={value}")
        # torch's layer checks the rest and expands numbers to tuples; on the meta device for free
        template = self.dense_type(**hyperparameters, bias=bias, device="meta")
        for name in self.dense_args:
            setattr(self, name, getattr(template, name))
        rows, columns, *kernel_size = template.weight.shape
        self._make_state(
            rows, columns, tuple(kernel_size), self.out_channels if bias else None, device, dtype
        )

    @property
    def dims(self) -> int:
        """Number of spatial dimensions: 1, 2 or 3."""
        return len(self.kernel_size)

    def extra_repr(self) -> str:
        """Return the arguments that differ from torch's defaults, as `repr` shows them."""
        zeros, ones = (0,) * self.dims, (1,) * self.dims
        usual = {
            "padding": zeros,
            "dilation": ones,
            "output_padding": zeros,
            "groups": 1,
            "padding_mode": "zeros",
        }
        text = f"{self.in_channels}, {self.out_channels}, "
        text += f"kernel_size={self.kernel_size}, stride={self.stride}"
        for name, default in usual.items():
            value = getattr(self, name, default)
            if value != default:
                text += f", {name}={value}"
        if self.bias is None:
            text += ", bias=False"
        return f"{text}, {self.structure}"


class _PHConv(_PHConvNd):
    dense_args = CONV_ARGS

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: Dimension | None = None,
        algebra: Algebra | str | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        hyperparameters = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "padding_mode": padding_mode,
        }
        structure = Structure.of(
            n, algebra=algebra, learn_algebra=learn_algebra, terms=terms, rank=rank
        )
        super().__init__(hyperparameters, bias, device, dtype, structure)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve the input, (batch, channels, *space) or (channels, *space)."""
        dims = self.dims
        self._check_input(input, -dims - 1, self.in_channels, ranks=(dims + 1, dims + 2))
        padding = self.padding
        if self.padding_mode != "zeros":
            input = nn.functional.pad(input, self._pads(), mode=self.padding_mode)
            padding = (0,) * dims
        return type(self)._convolve(
            input, self.rules, self.F, self.bias, self.stride, padding, self.dilation, self.groups
        )

    def _pads(self) -> list[int]:
        """Return the padding as `torch.nn.functional.pad` takes it, last axis first."""
        pads: list[int] = []
        for axis in reversed(range(self.dims)):
            if self.padding == "same":
                total = self.dilation[axis] * (self.kernel_size[axis] - 1)
                pads += [total // 2, total - total // 2]
            elif self.padding == "valid":
                pads += [0, 0]
            else:
                pads += [int(self.padding[axis])] * 2
        return pads


class PHConv1d(_PHConv):
    r"""A 1-d PH convolution, over (batch, channels, length); see `PHConv2d`.

    Example:
        >>> PHConv1d(8, 16, 5, padding=2, n=4)(torch.randn(2, 8, 100)).shape
        torch.Size([2, 16, 100])
    """

    dense_type = nn.Conv1d
    _convolve = functional.conv1d


class PHConv2d(_PHConv):
    r"""A 2-d convolution with 1/n of the parameters, :math:`y = H * x + b`.

    Its weight is a sum of Kronecker products, :math:`H = \sum_i A_i \otimes F_i`. The n×n matrices
    :math:`A_i` are the rules of an n-dimensional algebra, the :math:`F_i` are filters with 1/n of
    the input channels and 1/n of the output channels. The layer learns both, or keeps a given
    algebra. It was proposed by Grassucci, Zhang and Comminiello, "PHNNs: Lightweight Neural
    Networks via Parameterized Hypercomplex Convolutions" (2022).

    The arguments up to `dtype` are those of `torch.nn.Conv2d`.

    Args:
        in_channels: Channels of the input; n (n_in) must divide in_channels / groups.
        out_channels: Channels of the output; n (n_out) must divide out_channels / groups.
        kernel_size: Size of the filters.
        stride: Step of the filters.
        padding: Amount on both sides, "same" or "valid".
        dilation: Spacing between filter elements.
        groups: Independent groups of channels; all of them use one A.
        bias: Whether to add a learned bias.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: Where the parameters live.
        dtype: Their real floating-point type.
        n: Dimension of the algebra, to be learned. A pair (n_out, n_in) makes A rectangular:
            n=(out_channels, 1) is a low-rank convolution, k×k to `terms` channels and then 1×1.
        algebra: A known algebra to compute with, or its name; it implies n.
        learn_algebra: Whether A is learned; by default exactly when no algebra is given. With an
            algebra, True starts from it.
        terms: Number of Kronecker terms, n by default; any 1 … n² keeps terms/n² of the parameters.
            Required for a pair, 1 … n_out·n_in, unless rank gives it.
        rank: CP rank that the learned algebra is limited to, terms … n². Forward and backward then
            cost rank/n² of the multiplications of a real layer, plus two mixings of the
            components, which pays off from about 64 channels on. terms is min(n, rank) by default.
            With an algebra and `learn_algebra=True`, the layer starts from the decomposition of
            that algebra with this rank.

    Shape:
        - Input: :math:`(N, s, h, w)` or :math:`(s, h, w)`, as torch accepts it.
        - A: :math:`(\mathrm{terms}, n_{out}, n_{in})`;
          F: :math:`(d\,\mathrm{terms}/n_{out}, s/(g\,n_{in}), k, k)`.
        - With a rank, instead of A: V :math:`(n_{in}, \mathrm{rank})`, W
          :math:`(n_{out}, \mathrm{rank})`, and U
          :math:`(\mathrm{terms}, \mathrm{rank})` where rank > terms.

    Example:
        >>> from phnn.algebra import quaternion
        >>> learned = PHConv2d(64, 128, 3, padding=1, n=4)
        >>> sum(p.numel() for p in learned.parameters())  # 128 · 64 · 9 / 4 + 4³ + 128
        18624
        >>> PHConv2d(64, 128, 3, padding=1, algebra=quaternion)
        PHConv2d(64, 128, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), algebra=quaternion)
        >>> fast = PHConv2d(64, 128, 3, padding=1, bias=False, n=4, rank=7)
        >>> {name: tuple(value.shape) for name, value in fast.state_dict().items()}
        {'U': (4, 7), 'V': (4, 7), 'W': (4, 7), 'F': (128, 16, 3, 3)}
    """

    dense_type = nn.Conv2d
    _convolve = functional.conv2d


class PHConv3d(_PHConv):
    r"""A 3-d PH convolution, over (batch, channels, depth, height, width); see `PHConv2d`.

    Example:
        >>> PHConv3d(4, 8, 3, n=2)(torch.randn(1, 4, 5, 5, 5)).shape
        torch.Size([1, 8, 3, 3, 3])
    """

    dense_type = nn.Conv3d
    _convolve = functional.conv3d


class _PHConvTranspose(_PHConvNd):
    transposed = True
    dense_args = CONV_TRANSPOSE_ARGS

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: Dimension | None = None,
        algebra: Algebra | str | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        hyperparameters = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "output_padding": output_padding,
            "dilation": dilation,
            "groups": groups,
            "padding_mode": padding_mode,
        }
        structure = Structure.of(
            n, algebra=algebra, learn_algebra=learn_algebra, terms=terms, rank=rank
        )
        super().__init__(hyperparameters, bias, device, dtype, structure)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Convolve the input; `output_size` chooses among the sizes that a stride allows."""
        dims = self.dims
        self._check_input(input, -dims - 1, self.in_channels, ranks=(dims + 1, dims + 2))
        output_padding = self.output_padding
        if output_size is not None:
            output_padding = self._output_padding(input.shape[-dims:], tuple(output_size))
        return type(self)._convolve(
            input,
            self.rules,
            self.F,
            self.bias,
            self.stride,
            self.padding,
            output_padding,
            self.groups,
            self.dilation,
        )

    def _output_padding(
        self, space: Sequence[int], output_size: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the padding from the smallest output to the requested size."""
        dims = self.dims
        if len(output_size) not in (dims, dims + 1, dims + 2):
            raise ValueError(
                f"output_size has {dims} spatial sizes, with or without batch and channels; "
                f"got {output_size}"
            )
        wanted = output_size[-dims:]
        assert not isinstance(self.padding, str)  # torch has no such padding here
        parameters = (space, self.stride, self.padding, self.dilation, self.kernel_size)
        least = tuple(
            (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
            for size, stride, padding, dilation, kernel in zip(*parameters, strict=True)
        )
        extra = tuple(w - s for w, s in zip(wanted, least, strict=True))
        if any(not 0 <= e < stride for e, stride in zip(extra, self.stride, strict=True)):
            most = tuple(s + stride - 1 for s, stride in zip(least, self.stride, strict=True))
            raise ValueError(
                f"requested an output size of {wanted}, but valid sizes range "
                f"from {least} to {most} for an input of {tuple(space)}"
            )
        return extra


class PHConvTranspose1d(_PHConvTranspose):
    """A 1-d transposed PH convolution; see `PHConvTranspose2d`."""

    dense_type = nn.ConvTranspose1d
    _convolve = functional.conv_transpose1d


class PHConvTranspose2d(_PHConvTranspose):
    r"""A 2-d transposed convolution with 1/n of the parameters.

    The arguments up to `dtype` are those of `torch.nn.ConvTranspose2d`; `n`, `algebra`,
    `learn_algebra`, `terms` and `rank` are those of `PHConv2d`. The algebra acts as it does there:
    with the same A, component b of the input reaches component a of the output through
    :math:`\sum_i A[i, a, b] F_i`.

    Shape:
        - F: :math:`(s\,\mathrm{terms}/n_{in}, d/(g\,n_{out}), k, k)`.

    Example:
        >>> upsample = PHConvTranspose2d(32, 16, 2, stride=2, n=4)
        >>> upsample(torch.randn(1, 32, 8, 8)).shape
        torch.Size([1, 16, 16, 16])
    """

    dense_type = nn.ConvTranspose2d
    _convolve = functional.conv_transpose2d


class PHConvTranspose3d(_PHConvTranspose):
    """A 3-d transposed PH convolution; see `PHConvTranspose2d`."""

    dense_type = nn.ConvTranspose3d
    _convolve = functional.conv_transpose3d
