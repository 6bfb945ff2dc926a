"""A network for several signals of one event, each with its channels as components."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from phnn.algebra import Algebra
from phnn.models._layers import Layers, make_layers
from phnn.models._network import Network, scale_widths

SIGNALS = (4, 1, 10, 3)  # eye tracking, skin response, electroencephalogram, electrocardiogram
STANDARD = (128, 65, 1020, 513)  # 3,452 joined features, as Lopez et al. have


class FusionNet(Network):
    """Encoders of several signals, joined by a head of hypercomplex linear layers.

    Each signal has an encoder of two convolutions over time whose n is the number of its channels.
    The means over time are joined, and three linear layers of the given n follow. With the standard
    signals the shapes are those of Lopez et al., "Hierarchical Hypercomplex Network for Multimodal
    Emotion Recognition" (2024): 4, 1, 10 and 3 channels, 3,452 joined features. See `Network` for
    the arguments that all networks share.

    Args:
        n: Dimension of the algebra of the head. Without n and algebra all layers are real.
        algebra: The fixed algebra of the head; encoders learn theirs.
        signals: Channels of each signal.
        widths: Features of the first convolution of each encoder; the second has twice as many.
            "standard" is for the standard signals. The channels of a signal must divide its
            width, and n the joined features, twice the sum.
        hidden: Features of the first layer of the head; the next have 1/2 and 1/4 of them.
        dropout: Dropout in the head.

    Shape:
        One (batch, channels, samples) for each signal, of any lengths, to (batch, num_classes).

    Example:
        >>> model = FusionNet(n=4, signals=(4, 3), widths=(8, 12), hidden=16)
        >>> model(torch.randn(5, 4, 100), torch.randn(5, 3, 200)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        *,
        n: int | None = None,
        algebra: Algebra | str | None = None,
        num_classes: int = 3,
        signals: Sequence[int] = SIGNALS,
        widths: str | Sequence[int] = "standard",
        width_multiplier: float = 1.0,
        hidden: int = 1024,
        dropout: float = 0.2,
        init: str = "default",
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__("fusion", {**locals(), "signals": list(signals)})
        head = make_layers(n, algebra, terms, rank)
        sizes = scale_widths(_find_widths(signals, widths), width_multiplier)
        encoders = [Layers() if head.real else Layers(channels) for channels in signals]
        for i, (layers, width) in enumerate(zip(encoders, sizes, strict=True), 1):
            layers.check_widths({f"signal {i}": width})
        steps = (2 * sum(sizes), hidden, hidden // 2, hidden // 4)
        head.check_widths({"the joined features": steps[0]})
        head.check_widths({f"layer {i} of the head": step for i, step in enumerate(steps[1:], 1)})
        self.encoders = nn.ModuleList(
            _encode(layers, channels, width)
            for layers, channels, width in zip(encoders, signals, sizes, strict=True)
        )
        self.head = nn.Sequential()
        for i, (inputs, outputs) in enumerate(pairwise(steps)):
            self.head.append(head.linear(inputs, outputs))
            if i < 2:
                self.head.append(nn.BatchNorm1d(outputs))
            self.head.append(nn.ReLU(inplace=True))
            self.head.append(nn.Dropout(dropout))
        self.num_features = steps[-1]
        self.reset_classifier(num_classes)
        self.init_weights(init)

    def forward(self, *signals: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        return self.forward_head(self.forward_features(*signals))

    def forward_features(self, *signals: torch.Tensor) -> torch.Tensor:
        """Return the joined features of the encoders."""
        wanted = self.config["signals"]
        found = [tuple(signal.shape) for signal in signals]
        if len(found) != len(wanted) or any(
            len(shape) != 3 or shape[1] != channels
            for shape, channels in zip(found, wanted, strict=True)
        ):
            raise ValueError(
                f"expected {len(wanted)} signals (batch, channels, samples) of {wanted} channels, "
                f"got shapes {found}"
            )
        return torch.cat(
            [encoder(x).mean(2) for encoder, x in zip(self.encoders, signals, strict=True)], 1
        )

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        scores: torch.Tensor = self.fc(self.head(features))
        return scores


def _find_widths(signals: Sequence[int], widths: str | Sequence[int]) -> Sequence[int]:
    if isinstance(widths, str):
        if widths != "standard" or tuple(signals) != SIGNALS:
            raise ValueError(
                f"widths={widths!r} with signals={tuple(signals)}: there are only standard widths "
                f"for signals={SIGNALS}; give one number for each signal"
            )
        return STANDARD
    if len(widths) != len(signals) or not signals or min(signals) < 1:
        raise ValueError(
            f"widths={tuple(widths)} must hold one number for each of signals={tuple(signals)}, "
            "and each signal has one channel at least"
        )
    return widths


def _encode(layers: Layers, channels: int, width: int) -> nn.Sequential:
    parts = nn.Sequential()
    for inputs, outputs in ((channels, width), (width, 2 * width)):
        parts.append(layers.conv1d(inputs, outputs, 3))
        parts.append(nn.BatchNorm1d(outputs))
        parts.append(nn.ReLU(inplace=True))
    return parts
