"""From an image to the input of a trained network."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from phnn.lab.tasks.images.augment import Normalize
from phnn.lab.tasks.images.decode import fit, to_rgb

METADATA_KEYS = ("classes", "image_size", "crop", "mean", "std")
LARGEST = 4096  # side of an image, in pixels
LARGEST_AREA = 2**22  # pixels: a network holds several times as many numbers for each


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise a ValueError for metadata that cannot be those of a network for images.

    Args:
        metadata: What came with a network, perhaps from a file of somebody else.
    """
    missing = [key for key in METADATA_KEYS if key not in metadata]
    if missing:
        raise ValueError(
            f"the metadata lack {', '.join(missing)}; save the model with "
            "metadata=ImageData.metadata()"
        )
    size, crop, classes = (metadata[key] for key in ("image_size", "crop", "classes"))
    if not _is_list(size, int, 2) or not all(1 <= side <= LARGEST for side in size):
        raise ValueError(f"image_size={size!r} in the metadata must be two sides up to {LARGEST}")
    if math.prod(size) > LARGEST_AREA:
        raise ValueError(
            f"image_size={size!r} in the metadata has more than {LARGEST_AREA:,} pixels"
        )
    if not _is_number(crop) or not 0 < crop <= 1:
        raise ValueError(f"crop={crop!r} in the metadata must be above 0 and at most 1")
    if not isinstance(classes, list | tuple) or not all(isinstance(c, str) for c in classes):
        raise ValueError("classes in the metadata must be a list of names")
    for key in ("mean", "std"):
        values = metadata[key]
        if not _is_list(values, int | float, 3) or not all(math.isfinite(v) for v in values):
            raise ValueError(f"{key}={values!r} in the metadata must be three finite numbers")
    if min(metadata["std"]) <= 0:
        raise ValueError(f"std={metadata['std']!r} in the metadata must be above 0")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(values: object, kind: Any, length: int) -> bool:
    return (
        isinstance(values, list | tuple)
        and len(values) == length
        and all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
    )


def cut(image: Image.Image, metadata: Mapping[str, Any]) -> Tensor:
    """Return the central piece of an image in the size of a network, uint8 (3, height, width).

    Args:
        image: An image of any size and mode.
        metadata: The metadata of the network.
    """
    fitted = fit(to_rgb(image), tuple(metadata["image_size"]), metadata["crop"])
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1)


def preprocess(
    images: Image.Image | Sequence[Image.Image] | Tensor, metadata: Mapping[str, Any]
) -> Tensor:
    """Make the input of a network from images, as in its training.

    Args:
        images: One PIL image or several, of any size and mode: they are converted to RGB, cut to
            the central piece of the trained shape and resized. Or a uint8 tensor (N, 3, height,
            width) of the right size.
        metadata: `ImageData.metadata()`, as a saved model has it.

    Returns:
        float32 (N, 3, height, width).
    """
    check_metadata(metadata)
    size = tuple(metadata["image_size"])
    if isinstance(images, Image.Image):
        images = [images]
    if not isinstance(images, Tensor):
        images = torch.stack([cut(image, metadata) for image in images])
    if images.dtype != torch.uint8 or tuple(images.shape[1:]) != (3, *size):
        raise ValueError(
            f"images must be uint8 of shape (N, 3, {size[0]}, {size[1]}), "
            f"not {images.dtype} of shape {tuple(images.shape)}"
        )
    inputs: Tensor = Normalize(metadata["mean"], metadata["std"]).to(images.device)(images)
    return inputs
