"""The layers that networks are built from: torch's own, or hypercomplex ones."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from phnn.algebra import Algebra
from phnn.nn import PHGRU, PHConv1d, PHConv2d, PHLinear, PHTransformerEncoderLayer
from phnn.structure import find_algebra


class PadChannels(nn.Module):
    """Zero-pad the channels in front, so that n divides their number: RGB becomes [0, R, G, B].

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.

    Shape:
        (batch, in_channels, height, width) to (batch, out_channels, height, width).
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Pad the channel axis."""
        if input.shape[-3] != self.in_channels:
            raise ValueError(
                f"expected {self.in_channels} channels, got input of shape {tuple(input.shape)}"
            )
        return nn.functional.pad(input, (0, 0, 0, 0, self.out_channels - self.in_channels, 0))

    def extra_repr(self) -> str:
        """Return both channel counts."""
        return f"in_channels={self.in_channels}, out_channels={self.out_channels}"


@dataclass(frozen=True)
class Layers:
    """A factory for the layers of one network: hypercomplex with `n` or `algebra`, real without.

    Args:
        n: Dimension of the algebra that every layer learns.
        algebra: The fixed algebra of every layer, which implies n.
        terms: Number of Kronecker terms of every layer.
        rank: CP rank that every learned algebra is limited to.
    """

    n: int | None = None
    algebra: Algebra | None = None
    terms: int | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        if self.n is not None and (not isinstance(self.n, int) or self.n < 1):
            raise ValueError(
                f"n={self.n!r} must be an integer of at least 1, or None for real layers"
            )
        for name in ("terms", "rank"):
            value = getattr(self, name)
            if self.real and value is not None:
                raise ValueError(
                    f"{name}={value} is an option of hypercomplex layers; give n= as well"
                )

    @property
    def real(self) -> bool:
        """Whether these are torch's own layers."""
        return self.n is None and self.algebra is None

    @property
    def dimension(self) -> int:
        """The number that must divide every width."""
        if self.n is not None:
            return self.n
        return 1 if self.algebra is None else self.algebra.n

    def check_widths(self, widths: dict[str, int]) -> None:
        """Raise a ValueError for the first layer whose width n does not divide."""
        n = self.dimension
        for layer, width in widths.items():
            if width < 1 or width % n:
                below = width // n * n
                near = f"widths are {below} and {below + n}" if below > 0 else f"width is {n}"
                raise ValueError(
                    f"n={n} must divide the width {width} of {layer}; the nearest {near}"
                )

    def padded(self, channels: int) -> int:
        """Return the next multiple of n."""
        return -(-channels // self.dimension) * self.dimension

    def pad(self, in_channels: int) -> nn.Module:
        """Return the module that pads the input to a number of channels that n divides."""
        out_channels = self.padded(in_channels)
        return (
            nn.Identity() if out_channels == in_channels else PadChannels(in_channels, out_channels)
        )

    def conv2d(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | None = None,
    ) -> nn.Module:
        """Return a convolution that keeps the image size; without bias, as a batch norm follows."""
        layer = nn.Conv2d if self.real else PHConv2d
        return layer(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=kernel_size // 2 if padding is None else padding,
            bias=False,
            **self._options,
        )

    def conv1d(self, in_channels: int, out_channels: int, kernel_size: int) -> nn.Module:
        """Return a convolution that keeps the length; without bias, as a batch norm follows."""
        layer = nn.Conv1d if self.real else PHConv1d
        padding = kernel_size // 2
        return layer(
            in_channels, out_channels, kernel_size, padding=padding, bias=False, **self._options
        )

    def linear(self, in_features: int, out_features: int) -> nn.Module:
        """Return a linear layer with bias."""
        layer = nn.Linear if self.real else PHLinear
        return layer(in_features, out_features, **self._options)

    def gru(self, in_features: int, hidden: int, **options: Any) -> nn.GRU | PHGRU:
        """Return recurrent layers with the options of torch's."""
        if self.real:
            return nn.GRU(in_features, hidden, **options)
        return PHGRU(in_features, hidden, **options, **self._options)

    def encoder_layer(self, width: int, heads: int, hidden: int) -> nn.Module:
        """Return attention and a feed-forward part for (batch, tokens, width), norms first."""
        layer = nn.TransformerEncoderLayer if self.real else PHTransformerEncoderLayer
        return layer(
            width,
            heads,
            hidden,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
            **self._options,
        )

    @property
    def _options(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value is not None}


def make_layers(
    n: int | None, algebra: Algebra | str | None, terms: int | None, rank: int | None
) -> Layers:
    """Return the layers for the arguments that every network takes."""
    return Layers(n, find_algebra(algebra), terms, rank)
