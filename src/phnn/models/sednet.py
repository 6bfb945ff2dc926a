"""The sound event detector of the L3DAS21 challenge with real or hypercomplex layers."""

import math
from collections.abc import Sequence

import torch
from torch import nn

import phnn.init
from phnn.algebra import Algebra
from phnn.models._layers import Layers, make_layers
from phnn.models._network import Network, pick, pick_widths
from phnn.nn import PHGRU

WIDTHS = {"paper": (64, 128, 256, 512), "standard": (64, 128, 256, 512)}
POOLS = ((8, 2), (8, 2), (2, 2), (1, 1))  # of frequency and time, after each convolution
DROPOUT = 0.3


class SEDnet(Network):
    """A sound event detector: convolutions, a bidirectional GRU, linear layers.

    The output has one frame for every eight frames of the spectrogram. A frame holds, for each
    class, the probabilities of `overlaps` simultaneous events. To compile the GRU with
    `fullgraph=True`, set `torch._dynamo.config.allow_rnn = True`. See `Network` for the arguments
    that all networks share.

    Args:
        bins: Number of frequencies of the spectrogram, at least 128.
        overlaps: How many events of one class may be active at once.
        hidden: Features of the recurrent layers, in each direction.
        dense: Features of the linear layers.
        recurrent: "real" makes the GRU real, as in the paper; "ph" makes it like the convolutions.
        logits: Return the argument of the sigmoid, as `BCEWithLogitsLoss` takes it.
        widths: "paper" (the same as "standard"), or four numbers.

    Shape:
        (batch, in_channels, bins, frames) to (batch, frames // 8, num_classes · overlaps).

    Example:
        >>> model = SEDnet(in_channels=4, n=4)
        >>> model(torch.rand(1, 4, 256, 80)).shape
        torch.Size([1, 10, 42])
    """

    def __init__(
        self,
        *,
        n: int | None = None,
        algebra: Algebra | str | None = None,
        num_classes: int = 14,
        in_channels: int = 8,
        bins: int = 256,
        overlaps: int = 3,
        hidden: int = 256,
        dense: int = 1024,
        recurrent: str = "real",
        logits: bool = False,
        widths: str | Sequence[int] = "paper",
        width_multiplier: float = 1.0,
        init: str = "default",
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__("sednet", locals())
        layers = make_layers(n, algebra, terms, rank)
        if recurrent == "ph" and layers.real:
            raise ValueError('recurrent="ph" is for hypercomplex networks; give n= or algebra= too')
        between = pick("recurrent", recurrent, {"real": Layers(), "ph": layers})
        between.check_widths({"the GRU (hidden)": hidden})
        widths = pick_widths(widths, WIDTHS, width_multiplier)
        layers.check_widths({f"convolution {i}": width for i, width in enumerate(widths, 1)})

        self.cnn = nn.Sequential(layers.pad(in_channels))
        channels = layers.padded(in_channels)
        height = bins
        for width, pool in zip(widths, POOLS, strict=True):
            self.cnn.append(layers.conv2d(channels, width, 3))
            self.cnn.append(nn.BatchNorm2d(width))
            self.cnn.append(nn.ReLU(inplace=True))
            self.cnn.append(nn.MaxPool2d(pool))
            self.cnn.append(nn.Dropout(DROPOUT))
            channels, height = width, height // pool[0]
        if height < 1:
            raise ValueError(f"bins={bins} must be at least 128: the convolutions pool them by 128")
        self.gru = between.gru(
            channels * height,
            hidden,
            num_layers=3,
            batch_first=True,
            dropout=DROPOUT,
            bidirectional=True,
        )
        self.tail = nn.Sequential()
        for features in (2 * hidden, dense, dense):
            self.tail.append(nn.Linear(features, dense))
            self.tail.append(nn.ReLU(inplace=True))
        self.tail.append(nn.Dropout(DROPOUT))
        self.num_features = dense
        self.reset_classifier(num_classes)
        self.init_weights(init)

    def init_weights(self, init: str) -> None:
        """Draw the starting values; with those of torch, signals vanish in a tail this deep."""
        super().init_weights(init)
        if init == "authors":
            return
        for layer in self.tail:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        for name, parameter in self.gru.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
        if isinstance(self.gru, PHGRU):
            self._init_recurrence(self.gru)
            return
        for name, parameter in self.gru.named_parameters():
            if "bias" in name:
                continue
            draw = nn.init.orthogonal_ if "weight_hh" in name else nn.init.xavier_uniform_
            for gate in parameter.chunk(3):
                draw(gate)

    def _init_recurrence(self, gru: PHGRU) -> None:
        """Draw a hypercomplex GRU as a real one: orthogonal recurrences, Xavier for the rest."""
        phnn.init.orthogonal_(gru)
        for name, matrix in gru.matrices.items():
            if name.startswith("weight_ih"):
                rows, columns = matrix.weight.shape
                std = math.sqrt(2 / (rows // 3 + columns))  # of each of three gates
                phnn.init.filters_(matrix.F, matrix.algebra_tensor, std)

    @property
    def num_outputs(self) -> int:
        """Number of outputs of `fc`: one for each class and overlap."""
        return int(self.config["num_classes"] * self.config["overlaps"])

    def forward_features(self, input: torch.Tensor) -> torch.Tensor:
        """Return the states of the GRU, (batch, frames // 8, 2 · hidden)."""
        maps: torch.Tensor = self.cnn(input)
        frames: torch.Tensor = self.gru(maps.permute(0, 3, 1, 2).flatten(2))[0]
        return frames

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        """Return the probabilities of each frame, or their logits."""
        scores: torch.Tensor = self.fc(self.tail(features))
        plain = self.config["logits"] or not self.config["num_classes"]
        return scores if plain else scores.sigmoid()
