"""Residual networks (He et al., 2016) with real or hypercomplex convolutions."""

from collections.abc import Sequence

import torch
from torch import nn

from phnn.algebra import Algebra
from phnn.models._layers import Layers, make_layers
from phnn.models._network import Network, pick, pick_widths


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, with a shortcut around them."""

    expansion = 1

    def __init__(self, layers: Layers, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = layers.conv2d(in_channels, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = layers.conv2d(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(layers, in_channels, width, stride)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return ReLU(branch + shortcut)."""
        out = torch.relu(self.bn1(self.conv1(input)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + self.downsample(input))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, the last four times as wide, with a shortcut around them."""

    expansion = 4

    def __init__(self, layers: Layers, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = layers.conv2d(in_channels, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = layers.conv2d(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = layers.conv2d(width, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = shortcut(layers, in_channels, out_channels, stride)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return ReLU(branch + shortcut)."""
        out = torch.relu(self.bn1(self.conv1(input)))
        out = torch.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return torch.relu(out + self.downsample(input))


def shortcut(layers: Layers, in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return the identity, or a 1×1 convolution if the shape changes."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    conv = layers.conv2d(in_channels, out_channels, 1, stride)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels))


def zero_branches(network: nn.Module) -> None:
    """Let the residual branches of a network return zero, so that blocks start as shortcuts."""
    for module in network.modules():
        if isinstance(module, BasicBlock | Bottleneck):
            last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
            nn.init.zeros_(last.weight)


BLOCKS: dict[str, type[BasicBlock | Bottleneck]] = {"basic": BasicBlock, "bottleneck": Bottleneck}
STEMS = {"small": (3, 1), "imagenet": (7, 2)}  # kernel, stride
Widths = dict[str, tuple[int, ...]]
WIDE: Widths = {"paper": (60, 120, 240, 516), "standard": (64, 128, 256, 512)}
SLIM: Widths = {"paper": (16, 32, 64), "standard": (16, 32, 64)}
# depth: kind of block, blocks in each stage, widths of the stages
PLANS: dict[int, tuple[str, tuple[int, ...], Widths]] = {
    18: ("basic", (2, 2, 2, 2), WIDE),
    34: ("basic", (3, 4, 6, 3), WIDE),
    50: ("bottleneck", (3, 4, 6, 3), WIDE),
    101: ("bottleneck", (3, 4, 23, 3), WIDE),
    152: ("bottleneck", (3, 8, 36, 3), WIDE),
    20: ("basic", (3, 3, 3), SLIM),
    56: ("basic", (9, 9, 9), SLIM),
    110: ("basic", (18, 18, 18), SLIM | {"paper": (24, 72, 216)}),
}


class ResNet(Network):
    """A residual network for images of any size.

    With `widths="standard"`, `stem="imagenet"` and real layers it is torchvision's, key for key.
    See `Network` for the arguments that all networks share.

    Args:
        depth: 18, 34, 50, 101 or 152, with four stages; 20, 56 or 110, with three.
        widths: "paper" (divisible by 2, 3 and 4), "standard", or one number for each stage.
        block: "basic" or "bottleneck"; None for the one that belongs to the depth.
        stem: "small" (3×3, as in the paper) or "imagenet" (7×7 with stride 2, then pooling).
        zero_init_residual: Start with residual branches that return zero.

    Example:
        >>> model = ResNet(20, n=4)
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
        block: str | None = None,
        stem: str = "small",
        init: str = "default",
        zero_init_residual: bool = False,
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(f"resnet{depth}", locals())
        layers = make_layers(n, algebra, terms, rank)
        own_block, counts, known = pick("depth", depth, PLANS)
        make_block = pick("block", block or own_block, BLOCKS)
        kernel, stride = pick("stem", stem, STEMS)
        widths = pick_widths(widths, known, width_multiplier)
        layers.check_widths({f"layer{i}": width for i, width in enumerate(widths, 1)})

        channels = widths[0]
        self.pad = layers.pad(in_channels)
        self.conv1 = layers.conv2d(layers.padded(in_channels), channels, kernel, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if stem == "imagenet" else nn.Identity()
        self.stages = []
        for i, (width, count) in enumerate(zip(widths, counts, strict=True), 1):
            blocks = []
            for stride in [1 if i == 1 else 2] + [1] * (count - 1):
                blocks.append(make_block(layers, channels, width, stride))
                channels = width * make_block.expansion
            self.stages.append(f"layer{i}")
            self.add_module(f"layer{i}", nn.Sequential(*blocks))

        self.num_features = channels
        self.reset_classifier(num_classes)
        self.init_weights(init)
        if zero_init_residual:
            zero_branches(self)

    def forward_features(self, input: torch.Tensor) -> torch.Tensor:
        """Return the feature map of the last stage."""
        out: torch.Tensor = self.maxpool(torch.relu(self.bn1(self.conv1(self.pad(input)))))
        for stage in self.stages:
            out = getattr(self, stage)(out)
        return out

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes, from the mean over the map."""
        scores: torch.Tensor = self.fc(features.mean((2, 3)))
        return scores

    def init_real(self, module: nn.Module) -> None:
        """Draw Kaiming-normal values in networks of three stages; keep those of torch in others."""
        if len(self.stages) == 3 and isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
