"""A small fast network for images of 32 × 32 pixels, with real or hypercomplex convolutions."""

from collections.abc import Sequence

import torch
from torch import nn

from phnn.algebra import Algebra
from phnn.models._layers import Layers, make_layers
from phnn.models._network import Network, pick_widths

WIDTHS = {"standard": (72, 264, 264), "small": (24, 96, 96)}  # 2, 3, 4, 8 and 24 divide them
PATCH = 2  # side of the patches that are whitened
FLOOR = 5e-4  # added to variances, so that noise is not blown up
LOGIT_SCALE = 1 / 9
NORM_MOMENTUM = 0.4  # running statistics of the last few batches: training is short


class Whitening(nn.Module):
    """Fixed filters that whiten patches of 2 × 2 pixels, and their negatives.

    `fit` computes the filters from images. Before that they are a random orthogonal basis.

    Args:
        in_channels: Channels of the images.

    Shape:
        (batch, in_channels, height, width) to (batch, 8 · in_channels, height - 1, width - 1).
    """

    weight: torch.Tensor

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        size = in_channels * PATCH**2
        self.out_channels = 2 * size
        shape = (self.out_channels, in_channels, PATCH, PATCH)
        self.register_buffer("weight", torch.empty(shape))
        self._set(nn.init.orthogonal_(torch.empty(size, size)))

    def _set(self, rows: torch.Tensor) -> None:
        """Write filters, one in each row, and their negatives."""
        with torch.no_grad():
            self.weight.copy_(torch.cat([rows, -rows]).view(self.weight.shape))

    def fit(self, images: torch.Tensor) -> None:
        """Whiten the patches of these images: their filtered values are uncorrelated."""
        patches = nn.functional.unfold(images, PATCH).movedim(1, -1).flatten(0, -2).double()
        patches = patches - patches.mean(0)
        variances, directions = torch.linalg.eigh(patches.mT @ patches / len(patches))
        self._set(directions.mT / (variances + FLOOR).sqrt()[:, None])

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Filter the images, without padding."""
        return nn.functional.conv2d(input, self.weight)


class Block(nn.Sequential):
    """Two 3×3 convolutions, the first with pooling, each with batch norm and GELU."""

    def __init__(self, layers: Layers, in_channels: int, width: int) -> None:
        super().__init__(
            layers.conv2d(in_channels, width, 3),
            nn.MaxPool2d(2),  # first, so that there is less to normalise
            make_norm(width),
            nn.GELU(),
            layers.conv2d(width, width, 3),
            make_norm(width),
            nn.GELU(),
        )


def make_norm(width: int) -> nn.BatchNorm2d:
    """Return a batch norm that learns its biases, and no scales."""
    norm = nn.BatchNorm2d(width, momentum=NORM_MOMENTUM)
    norm.weight.requires_grad_(False)
    return norm


class CifarNet(Network):
    """A network that trains to high accuracy in few epochs, for images of 32 × 32 pixels.

    Patches of 2 × 2 pixels are whitened by fixed filters, see `whiten`. Three blocks of two
    convolutions follow, and a linear layer on the largest value of each map. The design is that of
    K. Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (2024). See `Network` for the
    arguments that all networks share.

    Args:
        widths: "standard" (72, 264, 264), "small" (24, 96, 96), or three numbers: one for each
            block.

    Example:
        >>> model = CifarNet(n=4, widths="small")
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        n: int | None = None,
        algebra: Algebra | str | None = None,
        num_classes: int = 10,
        in_channels: int = 3,
        widths: str | Sequence[int] = "standard",
        width_multiplier: float = 1.0,
        init: str = "default",
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__("cifarnet", locals())
        layers = make_layers(n, algebra, terms, rank)
        stages = pick_widths(widths, WIDTHS, width_multiplier)
        self.whitening = Whitening(in_channels)
        channels = self.whitening.out_channels
        layers.check_widths({"the whitened patches": channels})
        layers.check_widths({f"block {i}": width for i, width in enumerate(stages, 1)})
        self.blocks = nn.Sequential()
        for width in stages:
            self.blocks.append(Block(layers, channels, width))
            channels = width
        self.num_features = channels
        self.reset_classifier(num_classes)
        self.init_weights(init)

    def whiten(self, images: torch.Tensor) -> None:
        """Compute the filters of the first layer, which training does not change.

        Args:
            images: Some thousand images, normalised as those of the training.
        """
        self.whitening.fit(images)

    def forward_features(self, input: torch.Tensor) -> torch.Tensor:
        """Return the feature map of the last block."""
        maps: torch.Tensor = self.blocks(nn.functional.gelu(self.whitening(input)))
        return maps

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes, from the largest value of each map."""
        scores: torch.Tensor = self.fc(features.amax((2, 3)))
        return LOGIT_SCALE * scores if self.config["num_classes"] else scores
