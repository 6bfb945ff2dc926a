"""Encoded images in, RGB pixels out."""

import io
import struct
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from phnn.lab.tasks.images.cache import Stored
from phnn.lab.tasks.images.sources import Encoded, Rows, Source

Corrupt = Literal["raise", "skip"]
Pixels = npt.NDArray[np.uint8]

# Pillow reads dozens of formats; for some it starts other programs (EPS: Ghostscript)
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
# What Pillow raises for broken files: SyntaxError comes from its PNG reader, others from TIFF's.
_DECODE_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, ArithmeticError, LookupError, RuntimeError,
    AttributeError, EOFError, struct.error,
    Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip


class CorruptImageError(ValueError):
    """An image that cannot be decoded."""


def find_suffixes() -> set[str]:
    """Return the suffixes of the image files that are read, such as ".png"."""
    return {suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS}


def check_corrupt(corrupt: str) -> None:
    """Raise a ValueError for an unknown treatment of corrupt images."""
    if corrupt not in get_args(Corrupt):
        raise ValueError(f"corrupt={corrupt!r} must be one of {', '.join(get_args(Corrupt))}")


def read_image(content: bytes | str | Path, name: str | None = None) -> Image.Image:
    """Decode an image to RGB: grey is repeated, transparent put on white, EXIF rotation applied.

    The formats are those of `FORMATS`. An image of more pixels than Pillow's limit against
    decompression bombs, `PIL.Image.MAX_IMAGE_PIXELS`, is refused before it is decoded.

    Args:
        content: The encoded bytes, or the file.
        name: What to call the image in an error; the file by default.
    """
    try:
        if (
            not isinstance(content, bytes)
            and Path(content).exists()
            and not Path(content).is_file()
        ):
            raise ValueError("it is not a regular file")
        source = io.BytesIO(content) if isinstance(content, bytes) else content
        with Image.open(source, formats=FORMATS) as image:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and image.width * image.height > limit:
                raise ValueError(
                    f"it has {image.width}x{image.height} pixels, more than Pillow's limit of "
                    f"{limit:,} against decompression bombs"
                )
            return to_rgb(ImageOps.exif_transpose(image))
    except OSError as error:
        if error.errno is not None:  # the system's: no such file, no permission, too many files
            raise
        raise _corrupt(content, name, error) from error
    except _DECODE_ERRORS as error:
        raise _corrupt(content, name, error) from error


def _corrupt(content: bytes | str | Path, name: str | None, error: Exception) -> CorruptImageError:
    name = name or ("the image" if isinstance(content, bytes) else str(content))
    return CorruptImageError(f"{name}: {error or type(error).__name__}")


def read_or_skip(encoded: Encoded, corrupt: Corrupt, skipped: list[str]) -> Image.Image | None:
    """Decode an image to RGB; one that cannot be decoded raises, or is noted and gives None.

    Args:
        encoded: The image.
        corrupt: Whether to raise or to skip.
        skipped: The list for "name: reason".
    """
    try:
        return read_image(encoded.content, encoded.name)
    except CorruptImageError as error:
        if corrupt == "raise":
            raise CorruptImageError(f"{error}. corrupt='skip' leaves such images out") from error
        skipped.append(str(error))
        return None


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB."""
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode.startswith("I;16"):  # Pillow would clip 16 bits to 8, not scale them
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def fit(image: Image.Image, size: tuple[int, int], crop: float = 1.0) -> Image.Image:
    """Cut the central piece of the right shape out of an image and resize it.

    Args:
        image: The image, in RGB.
        size: The height and width of the result.
        crop: How much of the largest such piece to keep, along each side.
    """
    height, width = size
    return ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR, bleed=(1 - crop) / 2)


def decode_rows(source: Source, image_size: int | None, corrupt: Corrupt) -> Stored:
    """Decode all splits of a source that have labels.

    Args:
        source: Where the images are.
        image_size: Crop and resize to this side; without it all images must have one size.
        corrupt: Whether an image that cannot be decoded raises, or is skipped.
    """
    check_corrupt(corrupt)
    opened = source.open()
    tensors: dict[str, tuple[Tensor, Tensor]] = {}
    skipped: list[str] = []
    for split, rows in opened.splits.items():
        decoded = _decode_split(rows, image_size, corrupt, skipped)
        if decoded is not None:
            tensors[split] = decoded
    return Stored(opened.classes, tensors, tuple(skipped))


def _decode_split(
    rows: Rows, image_size: int | None, corrupt: Corrupt, skipped: list[str]
) -> tuple[Tensor, Tensor] | None:
    """Return images and labels, or None for a split without labels."""
    pixels: Pixels | None = None
    labels: list[int] = []
    for encoded in rows:
        image = read_or_skip(encoded, corrupt, skipped)
        if image is None:
            continue
        if image_size is not None:
            image = fit(image, (image_size, image_size))
        if pixels is None:
            pixels = np.empty((len(rows), image.height, image.width, 3), np.uint8)
        _check_size(image, pixels.shape[1:3], encoded)
        pixels[len(labels)] = np.asarray(image)
        labels.append(encoded.label)
    if pixels is None:
        raise ValueError(f"none of the {len(rows)} images could be decoded: {skipped[-1:]}")
    if set(labels) == {-1}:  # what hub data sets give instead of secret test labels
        return None
    images = torch.from_numpy(pixels[: len(labels)]).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor(labels, dtype=torch.int64)


def _check_size(image: Image.Image, expected: tuple[int, ...], encoded: Encoded) -> None:
    if (image.height, image.width) != expected:
        raise ValueError(
            f"{encoded.name} is {image.height}x{image.width} pixels, the images before it "
            f"{expected[0]}x{expected[1]}; pass image_size= to crop and resize them all"
        )
