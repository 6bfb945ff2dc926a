"""From an image to the input of a trained network."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from phnn.lab.tasks.images.augment import Normalize
from phnn.lab.tasks.images.decode import fit, to_rgb

METADATA_KEYS = ("classes", "image_size", "crop", "mean", "std")


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
    missing = [key for key in METADATA_KEYS if key not in metadata]
    if missing:
        raise ValueError(
            f"the metadata lack {', '.join(missing)}; save the model with "
            "metadata=ImageData.metadata()"
        )
    size = tuple(metadata["image_size"])
    if isinstance(images, Image.Image):
        images = [images]
    if not isinstance(images, Tensor):
        fitted = [fit(to_rgb(image), size, metadata["crop"]) for image in images]
        images = torch.stack(
            [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in fitted]
        )
    if images.dtype != torch.uint8 or tuple(images.shape[1:]) != (3, *size):
        raise ValueError(
            f"images must be uint8 of shape (N, 3, {size[0]}, {size[1]}), "
            f"not {images.dtype} of shape {tuple(images.shape)}"
        )
    inputs: Tensor = Normalize(metadata["mean"], metadata["std"]).to(images.device)(images)
    return inputs
