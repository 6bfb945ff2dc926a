"""VGG networks (Simonyan and Zisserman, 2015) with real or hypercomplex layers."""

from collections.abc import Sequence

import torch
from torch import nn

from phnn.algebra import Algebra
from phnn.models._layers import Layers, make_layers
from phnn.models._network import Network, pick, pick_widths

# widths of the five stages, then of the classifier
STANDARD = (64, 128, 256, 512, 512, 512)
LARGE = (24, 72, 216, 648, 648, 516)  # divisible by 2, 3 and 4
# depth: convolutions in each stage, the paper's widths
PLANS = {
    11: ((1, 1, 2, 2, 2), LARGE),
    13: ((2, 2, 2, 2, 2), STANDARD),
    16: ((2, 2, 3, 3, 3), STANDARD),
    19: ((2, 2, 4, 4, 4), LARGE),
}


class VGG(Network):
    """A VGG network with batch norm, for images of 32 × 32 pixels and more.

    See `Network` for the arguments that all networks share.

    Args:
        depth: 11, 13, 16 or 19.
        widths: "paper" (24 to 648 for 11 and 19), "standard" (64 to 512), or six numbers: one for
            each stage and one for the classifier.
        classifier: "ph" makes the first two linear layers like the convolutions, "real" makes them
            real. The last one is always real.

    Example:
        >>> model = VGG(11, n=3)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int,
        *,
        n: int | None = None,
        algebra: Algebra | str | None = None,
        num_classes: int = 10,
        in_channels: int = 3,
        widths: str | Sequence[int] = "paper",
        width_multiplier: float = 1.0,
        classifier: str = "ph",
        init: str = "default",
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(f"vgg{depth}", locals())
        layers = make_layers(n, algebra, terms, rank)
        counts, paper = pick("depth", depth, PLANS)
        tail = pick("classifier", classifier, {"ph": layers, "real": Layers()})
        known = {"paper": paper, "standard": STANDARD}
        *stages, hidden = pick_widths(widths, known, width_multiplier)
        layers.check_widths({f"stage {i}": width for i, width in enumerate(stages, 1)})
        tail.check_widths({"the classifier": hidden})

        self.features = nn.Sequential(layers.pad(in_channels))
        channels = layers.padded(in_channels)
        for width, count in zip(stages, counts, strict=True):
            for _ in range(count):
                self.features.append(layers.conv2d(channels, width, 3))
                self.features.append(nn.BatchNorm2d(width))
                self.features.append(nn.ReLU(inplace=True))
                channels = width
            self.features.append(nn.MaxPool2d(2))
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            tail.linear(channels, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            tail.linear(hidden, hidden),
            nn.ReLU(inplace=True),
        )
        self.num_features = hidden
        self.reset_classifier(num_classes)
        self.init_weights(init)

    def forward_features(self, input: torch.Tensor) -> torch.Tensor:
        """Return the feature map of the last stage."""
        maps: torch.Tensor = self.features(input)
        return maps

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes, from the mean over the map."""
        scores: torch.Tensor = self.fc(self.classifier(features.mean((2, 3))))
        return scores

    def init_real(self, module: nn.Module) -> None:
        """Draw normal values with variance 2 / fan_out in convolutions."""
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
