"""A small vision transformer (Dosovitskiy et al., 2021) with real or hypercomplex layers."""

from collections.abc import Sequence

import torch
from torch import nn

from phnn.algebra import Algebra
from phnn.models._layers import make_layers
from phnn.models._network import Network, pick_widths

WIDTHS = {"standard": (192,)}  # 2, 3, 4, 6, 8 and 12 divide it


class ViT(Network):
    """A vision transformer: patches, blocks of attention and feed-forward parts, a mean.

    See `Network` for the arguments that all networks share.

    Args:
        widths: "standard", or the one width of all tokens in a list.
        image_size: Pixels per side: 32, 224 or any other multiple of the patch.
        patch_size: Pixels per side of a patch; by default 4 for images up to 64 pixels, 16 above.
        blocks: How many blocks follow each other.
        heads: Heads of the attention; they must divide the width.
        expansion: Width of the feed-forward parts, as a multiple.

    Example:
        >>> model = ViT(n=4, blocks=2)
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
        image_size: int = 32,
        patch_size: int | None = None,
        blocks: int = 12,
        heads: int = 3,
        expansion: int = 4,
        init: str = "default",
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__("vit_tiny", locals())
        layers = make_layers(n, algebra, terms, rank)
        (width,) = pick_widths(widths, WIDTHS, width_multiplier)
        layers.check_widths({"the tokens": width})
        if heads < 1 or width % heads:
            raise ValueError(f"heads={heads} must divide the width {width} of the tokens")
        patch = patch_size or (4 if image_size <= 64 else 16)
        if image_size < patch or image_size % patch:
            raise ValueError(f"patch_size={patch} must divide image_size={image_size}")
        side = image_size // patch
        self.pad = layers.pad(in_channels)
        self.patches = layers.conv2d(layers.padded(in_channels), width, patch, patch, padding=0)
        self.positions = nn.Parameter(torch.empty(1, width, side, side))
        nn.init.trunc_normal_(self.positions, std=0.02)
        hidden = expansion * width
        self.blocks = nn.ModuleList(
            layers.encoder_layer(width, heads, hidden) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.num_features = width
        self.reset_classifier(num_classes)
        self.init_weights(init)

    def forward_features(self, input: torch.Tensor) -> torch.Tensor:
        """Return the tokens of the last block as a map, (batch, width, rows, columns)."""
        size = self.config["image_size"]
        if input.shape[-2:] != (size, size):
            raise ValueError(
                f"this network takes images of {size}×{size} pixels, got input of shape "
                f"{tuple(input.shape)}; build it with image_size= for others"
            )
        maps: torch.Tensor = self.patches(self.pad(input)) + self.positions
        tokens = maps.flatten(2).mT
        for block in self.blocks:
            tokens = block(tokens)
        grid: torch.Tensor = self.norm(tokens).mT.unflatten(2, maps.shape[2:])
        return grid

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes, from the mean over the tokens."""
        scores: torch.Tensor = self.fc(features.mean((2, 3)))
        return scores
