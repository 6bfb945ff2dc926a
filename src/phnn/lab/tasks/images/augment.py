"""Augmentation and normalisation of whole batches, on the device of the batch.

The randomness is an argument: `draws` holds integers below `DRAW_LIMIT` that the loader makes from
(seed, epoch, batch). Each function is pure, and gives the same result on every device.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from phnn._names import check_choices
from phnn.lab.tasks.images.batches import DRAW_LIMIT

PADDING = 4
SHIFT = 2
CROP_AREA = (0.25, 1.0)  # of an image, for resized_crop
CROP_RATIO = (3 / 4, 4 / 3)


def crop(images: Tensor, draws: Tensor) -> Tensor:
    """Shift each image by up to 4 pixels in each direction; uncovered pixels are black.

    Args:
        images: (B, C, height, width).
        draws: (B, 2).
    """
    return _cut(nn.functional.pad(images, [PADDING] * 4), draws, PADDING)


def shift(images: Tensor, draws: Tensor) -> Tensor:
    """Shift each image by up to 2 pixels in each direction; uncovered pixels mirror their side.

    Args:
        images: (B, C, height, width).
        draws: (B, 2).
    """
    return _cut(nn.functional.pad(images, [SHIFT] * 4, mode="reflect"), draws, SHIFT)


def _cut(padded: Tensor, draws: Tensor, padding: int) -> Tensor:
    """Cut images of the size before the padding, each at its own position."""
    height, width = (side - 2 * padding for side in padded.shape[2:])
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: every shift of every image
    top, left = (draws % (2 * padding + 1)).unbind(1)
    return windows[torch.arange(len(padded), device=padded.device), :, top, left]


def flip(images: Tensor, draws: Tensor) -> Tensor:
    """Mirror each image left to right with probability 1/2.

    Args:
        images: (B, C, height, width).
        draws: (B, 1).
    """
    return torch.where((draws % 2 == 0)[:, :, None, None], images.flip(3), images)


def resized_crop(images: Tensor, draws: Tensor) -> Tensor:
    """Cut a random piece out of each image and resize it to the whole, as floats.

    Args:
        images: (B, C, height, width).
        draws: (B, 4).
    """
    area, ratio, x, y = (draws.float() / DRAW_LIMIT).unbind(1)
    area = CROP_AREA[0] + area * (CROP_AREA[1] - CROP_AREA[0])
    low, high = map(math.log, CROP_RATIO)
    ratio = (low + ratio * (high - low)).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    zero = torch.zeros_like(area)
    theta = torch.stack(
        [
            torch.stack([width, zero, (2 * x - 1) * (1 - width)], 1),
            torch.stack([zero, height, (2 * y - 1) * (1 - height)], 1),
        ],
        1,
    )
    grid = nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return nn.functional.grid_sample(
        images.float(), grid, padding_mode="border", align_corners=False
    )


class Augmentation(NamedTuple):
    """A function of images and draws, how many draws it needs, and whether they alternate."""

    function: Callable[[Tensor, Tensor], Tensor]
    draws: int
    alternating: bool = False


AUGMENTATIONS = {
    "crop": Augmentation(crop, 2),
    "shift": Augmentation(shift, 2),
    "flip": Augmentation(flip, 1),
    # each image as it is or mirrored at random in the first epoch, and the other way in the next
    "alternating_flip": Augmentation(flip, 1, alternating=True),
    "resized_crop": Augmentation(resized_crop, 4),
}


def count_draws(names: Sequence[str]) -> int:
    """Return how many random numbers per image the named augmentations need.

    Raises:
        ValueError: A name is unknown. The message names the nearest.
    """
    check_choices("augmentation", names, AUGMENTATIONS)
    return sum(AUGMENTATIONS[name].draws for name in names)


def find_alternating(names: Sequence[str]) -> tuple[int, ...]:
    """Return which of the random numbers of the named augmentations alternate."""
    check_choices("augmentation", names, AUGMENTATIONS)
    owners = [AUGMENTATIONS[name] for name in names for _ in range(AUGMENTATIONS[name].draws)]
    return tuple(column for column, owner in enumerate(owners) if owner.alternating)


def augment(images: Tensor, draws: Tensor, names: Sequence[str]) -> Tensor:
    """Apply the named augmentations one after the other.

    Args:
        images: (B, C, height, width).
        draws: (B, count_draws(names)).
        names: Keys of `AUGMENTATIONS`.
    """
    steps = [AUGMENTATIONS[name] for name in names]
    for step, own in zip(steps, draws.split([step.draws for step in steps], dim=1), strict=True):
        images = step.function(images, own)
    return images


class Normalize(nn.Module):
    """Map pixel values 0..255 to (value / 255 - mean) / std, channel by channel, in float32.

    Args:
        mean: The mean of each channel, of values in [0, 1].
        std: The standard deviation of each channel.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            column = torch.tensor(values, dtype=torch.float32)[:, None, None]
            self.register_buffer(name, 255 * column, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Normalise (..., C, height, width)."""
        # in place on a copy: memory for one result, not for three
        return images.to(torch.float32, copy=True).sub_(self.mean).div_(self.std)
