"""The embedded data set: handwritten digits on coloured scenes, in the spirit of SVHN.

The 1,797 digits of 8×8 grey values that come with scikit-learn are drawn into 32×32 colour images,
at a random position, size, slant and colour, on a textured background, with pieces of other digits
at the sides. Nothing is downloaded, and the same seed gives the same images.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from phnn.lab.tasks.images.sets import ImageSet, ImageSplits

IMAGE_SIZE = 32
TRAIN_IMAGES = 8000
TEST_IMAGES = 2000
TEST_SOURCES = 360  # of the 1,797; never drawn in a training image
CONTRAST = 0.35  # least distance in brightness between a digit and its background, of 1
CANDIDATES = 16  # pairs of colours tried for an image
DARK_DIGITS = 0.25  # the share of digits that are darker than their background

Array = npt.NDArray[np.float32]


def make_digits(
    seed: int = 0, *, train: int = TRAIN_IMAGES, test: int = TEST_IMAGES
) -> ImageSplits:
    """Make the data set.

    Training and test images are drawn from different handwritten digits. `groups` of each set says
    from which, so that a validation split can be made with the same care.

    Args:
        seed: The seed of everything random.
        train: The number of training images.
        test: The number of test images.

    Example:
        >>> make_digits(train=10, test=5).train.images.shape
        torch.Size([10, 3, 32, 32])
    """
    rng = np.random.default_rng(seed)
    shapes, values = _load_sources()
    order = rng.permutation(len(shapes))
    return ImageSplits(
        train=_draw_set(rng, shapes, values, order[TEST_SOURCES:], train),
        validation=None,
        test=_draw_set(rng, shapes, values, order[:TEST_SOURCES], test),
    )


def _load_sources() -> tuple[Array, npt.NDArray[np.int64]]:
    from sklearn.datasets import (
        load_digits,
    )  # here: half a second that other data sets need not pay

    digits = load_digits()
    return (digits.images / 16).astype(np.float32), digits.target.astype(np.int64)


def _draw_set(
    rng: np.random.Generator,
    shapes: Array,
    values: npt.NDArray[np.int64],
    sources: npt.NDArray[np.int64],
    count: int,
) -> ImageSet:
    chosen = rng.choice(sources, count)
    paper, ink = _pick_colours(rng, count)
    background = _draw_backgrounds(rng, paper)
    coverage = _draw_digits(rng, shapes[chosen], 0)
    for side in (-1, 1):
        neighbour = _draw_digits(rng, shapes[rng.choice(sources, count)], side)
        coverage = np.maximum(coverage, neighbour)
    image = background + coverage * (ink[:, :, None, None] - background)
    image += 0.03 * rng.standard_normal(image.shape, dtype=np.float32)
    return ImageSet(
        images=torch.from_numpy((image.clip(0, 1) * 255).round().astype(np.uint8)),
        labels=torch.from_numpy(values[chosen]),
        classes=tuple(str(digit) for digit in range(10)),
        groups=torch.from_numpy(chosen),
    )


def _draw_backgrounds(rng: np.random.Generator, paper: Array) -> Array:
    """Draw blobs and ripples on flat colours (count, 3), as (count, 3, size, size)."""
    count = len(paper)
    texture = _draw_texture(rng, count, 3, 0.13) + _draw_texture(rng, count, 12, 0.07)
    return paper[:, :, None, None] + texture


def _draw_texture(rng: np.random.Generator, count: int, cells: int, strength: float) -> Array:
    grid = rng.normal(0, strength, (count, 3, cells, cells)).astype(np.float32)
    texture = nn.functional.interpolate(
        torch.from_numpy(grid), size=(IMAGE_SIZE, IMAGE_SIZE), mode="bilinear", align_corners=False
    )
    return texture.numpy()


def _pick_colours(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Pick paper and ink, (count, 3) each: the first of some pairs with enough contrast.

    Were light digits as frequent as dark ones, no pixel would say anything about the class by
    itself, and networks would linger at chance for their first thousand steps.
    """
    pairs = rng.uniform(0, 1, (count, CANDIDATES, 2, 3)).astype(np.float32)
    weights = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # brightness as the eye sees it
    contrast = np.diff(pairs @ weights)[..., 0]
    readable = np.abs(contrast) >= CONTRAST
    # where no pair is readable, the one that comes nearest to it
    pick = np.where(readable.any(1), readable.argmax(1), np.abs(contrast).argmax(1))
    here = np.arange(count)
    is_dark = rng.uniform(size=count) < DARK_DIGITS
    swapped = (contrast[here, pick] < 0) != is_dark  # exchange ink and paper
    picked: Array = pairs[here, pick]
    picked[swapped] = picked[swapped, ::-1]
    return picked[:, 0], picked[:, 1]


def _draw_digits(rng: np.random.Generator, shapes: Array, side: int) -> Array:
    """Draw each digit with its own position, size, slant and turn, as coverage in [0, 1].

    Args:
        rng: The source of the randomness.
        shapes: The digits, (count, 8, 8).
        side: 0 in the middle, -1 and 1 mostly outside the left and right edge.
    """
    count = len(shapes)
    scale = rng.uniform(0.6, 0.95, count)  # of the image's width
    turn = rng.uniform(-0.2, 0.2, count)  # radians
    slant = rng.uniform(-0.25, 0.25, count)
    spread = 0.16 if side == 0 else 0.1
    x = rng.uniform(-spread, spread, count) + side * 1.22
    y = rng.uniform(-0.16, 0.16, count)
    theta = _invert_placement(scale, turn, slant, x, y)
    grid = nn.functional.affine_grid(
        torch.from_numpy(theta), [count, 1, IMAGE_SIZE, IMAGE_SIZE], align_corners=False
    )
    drawn: Tensor = nn.functional.grid_sample(
        torch.from_numpy(shapes)[:, None], grid, mode="bicubic", align_corners=False
    )
    # steeper than the interpolated grey values: strokes get edges
    return (drawn.numpy() * 1.8 - 0.5).clip(0, 1)


def _invert_placement(
    scale: npt.NDArray[np.float64],
    turn: npt.NDArray[np.float64],
    slant: npt.NDArray[np.float64],
    x: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
) -> Array:
    """Return the affine maps (count, 2, 3) from image coordinates in [-1, 1] to the digit's."""
    cos, sin = np.cos(turn), np.sin(turn)
    a, b = cos + slant * sin, slant * cos - sin
    c, d = sin, cos
    linear = np.stack([np.stack([a, b], -1), np.stack([c, d], -1)], -2) / scale[:, None, None]
    offset = -linear @ np.stack([x, y], -1)[..., None]
    return np.concatenate([linear, offset], -1).astype(np.float32)
