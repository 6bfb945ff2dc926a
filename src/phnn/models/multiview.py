"""A network for several views of one thing, with views as components."""

from collections.abc import Sequence

import torch
from torch import nn

from phnn.algebra import Algebra
from phnn.models._layers import Layers, make_layers
from phnn.models._network import Network, pick, pick_widths
from phnn.models.resnet import BasicBlock, Bottleneck, zero_branches

WIDTHS = {"standard": (64, 128, 256, 512, 512, 512)}
BLOCKS = 2  # in each stage


class Refiner(Bottleneck):
    """A bottleneck block whose last convolution is twice as wide."""

    expansion = 2


class Heads(nn.Module):
    """One linear layer for each side.

    Shape:
        (batch, sides, features) to (batch, sides, classes).
    """

    def __init__(self, sides: int, features: int, classes: int) -> None:
        super().__init__()
        self.sides = nn.ModuleList(nn.Linear(features, classes) for _ in range(sides))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply each layer to its side."""
        return torch.stack(
            [head(x) for head, x in zip(self.sides, input.unbind(1), strict=True)], 1
        )


class MultiViewNet(Network):
    """A residual network for sides that are seen in several views: two breasts, two views of each.

    The views of a side are the components of its encoder, so n is their number. What follows is
    the trunk: the features of the sides go through it one by one, or joined, with all views of all
    sides as components. Each side has its own scores. The first stages of two blocks are basic, the
    last two are bottlenecks. These are the networks of Lopez et al., "Multi-View Hypercomplex
    Learning for Breast Cancer Screening" (2022):

    - PHResNet: `sides=1`, with the views of one side.
    - PHYSEnet: `encoder="shared", trunk="separate", encoder_stages=4`.
    - PHYSBOnet: `encoder="separate"` and `trunk="shared"`, the default, or `trunk="joint"`.

    See `Network` for the arguments that all networks share.

    Args:
        in_channels: Channels of one side: its views, or their channels, view after view.
        sides: How many sides there are.
        encoder: "shared" is one encoder for all sides, "separate" is one for each.
        trunk: "shared" or "separate", for each side by itself; "joint" for all sides together, with
            sides · n components.
        encoder_stages: How many of the six stages are in the encoder.
        widths: "standard", or six numbers: one for each stage.
        zero_init_residual: Start with residual branches that return zero.

    Shape:
        (batch, sides · in_channels, height, width), side after side, to (batch, sides,
        num_classes); with one side to (batch, num_classes).

    Example:
        >>> model = MultiViewNet(n=2, widths=(8, 8, 16, 16, 16, 16))
        >>> model(torch.rand(3, 4, 64, 64)).shape  # two sides, two views each
        torch.Size([3, 2, 1])
    """

    def __init__(
        self,
        *,
        n: int | None = None,
        algebra: Algebra | str | None = None,
        num_classes: int = 1,
        in_channels: int = 2,
        sides: int = 2,
        encoder: str = "separate",
        trunk: str = "shared",
        encoder_stages: int = 2,
        widths: str | Sequence[int] = "standard",
        width_multiplier: float = 1.0,
        init: str = "default",
        zero_init_residual: bool = False,
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__("multiview", locals())
        layers = make_layers(n, algebra, terms, rank)
        if sides < 1:
            raise ValueError(f"sides={sides} must be at least 1")
        encoders = pick("encoder", encoder, {"shared": 1, "separate": sides})
        trunks = pick("trunk", trunk, {"shared": 1, "separate": sides, "joint": 1})
        above = layers
        self.is_joint = trunk == "joint" and sides > 1
        if self.is_joint and not layers.real:
            if layers.algebra is not None:
                raise ValueError(
                    f'trunk="joint" has {sides} · {layers.algebra.n} components, for which the '
                    f"algebra {layers.algebra.name} does not serve; give n= to learn one"
                )
            above = Layers(sides * layers.dimension, None, terms, rank)
        sizes = pick_widths(widths, WIDTHS, width_multiplier)
        if not 1 <= encoder_stages < len(sizes):
            raise ValueError(f"encoder_stages={encoder_stages} must be from 1 to {len(sizes) - 1}")
        for part, chosen in ((slice(encoder_stages), layers), (slice(encoder_stages, None), above)):
            names = range(1, len(sizes) + 1)[part]
            chosen.check_widths({f"stage {i}": sizes[i - 1] for i in names})

        def encode() -> nn.Sequential:
            channels = layers.padded(in_channels)
            stem = layers.conv2d(channels, sizes[0], 3)
            parts = nn.Sequential(layers.pad(in_channels), stem, nn.BatchNorm2d(sizes[0]))
            parts.append(nn.ReLU(inplace=True))
            return parts.extend(_stages(layers, sizes[0], sizes, 0, encoder_stages))

        joined = _count_outputs(sizes, encoder_stages) * (sides if self.is_joint else 1)
        self.encoders = nn.ModuleList(encode() for _ in range(encoders))
        self.trunks = nn.ModuleList(
            nn.Sequential(*_stages(above, joined, sizes, encoder_stages, len(sizes)))
            for _ in range(trunks)
        )
        self.num_features = _count_outputs(sizes, len(sizes))
        self.reset_classifier(num_classes)
        self.init_weights(init)
        if zero_init_residual:
            zero_branches(self)

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the heads by new ones for this many classes; remove them for 0."""
        super().reset_classifier(num_classes)
        like = next(self.parameters())
        if num_classes and self.config["sides"] > 1:
            heads = Heads(self.config["sides"], self.num_features, num_classes)
            self.fc = heads.to(like.device, like.dtype)

    def forward_features(self, input: torch.Tensor) -> torch.Tensor:
        """Return the features of each side, (batch, sides, features)."""
        sides, channels = self.config["sides"], self.config["in_channels"]
        if input.dim() != 4 or input.shape[1] != sides * channels:
            raise ValueError(
                f"expected (batch, {sides} sides · {channels} channels, height, width), got input "
                f"of shape {tuple(input.shape)}"
            )
        maps = [
            self.encoders[min(i, len(self.encoders) - 1)](side)
            for i, side in enumerate(input.chunk(sides, 1))
        ]
        if self.is_joint:
            (trunk,) = self.trunks
            joined: torch.Tensor = trunk(torch.cat(maps, 1)).mean((2, 3))
            return joined.unsqueeze(1).expand(-1, sides, -1)
        trunks = [self.trunks[min(i, len(self.trunks) - 1)] for i in range(sides)]
        return torch.stack(
            [trunk(x).mean((2, 3)) for trunk, x in zip(trunks, maps, strict=True)], 1
        )

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores of each side."""
        alone = self.config["sides"] == 1
        scores: torch.Tensor = self.fc(features.squeeze(1) if alone else features)
        return scores


def _count_outputs(widths: Sequence[int], stages: int) -> int:
    """Return the channels after so many stages."""
    return widths[stages - 1] * _block(stages - 1, len(widths)).expansion


def _block(stage: int, stages: int) -> type[BasicBlock | Bottleneck]:
    return BasicBlock if stage < stages - 2 else Refiner


def _stages(
    layers: Layers, channels: int, widths: Sequence[int], first: int, last: int
) -> list[nn.Module]:
    """Return the blocks of the stages from first to last; all but stage 0 halve the image."""
    blocks: list[nn.Module] = []
    for stage in range(first, last):
        make = _block(stage, len(widths))
        for stride in [1 if stage == 0 else 2] + [1] * (BLOCKS - 1):
            blocks.append(make(layers, channels, widths[stage], stride))
            channels = widths[stage] * make.expansion
    return blocks
