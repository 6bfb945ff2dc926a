"""Small sets of images for tests."""

import io

import datasets
import numpy as np
import torch
from PIL import Image

from phnn.lab.tasks.images import ImageSet

SIZE = 8


def random_images(count, seed=0, size=SIZE):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def numbered(count, classes=5):
    """A set whose image i is filled with the value i."""
    values = torch.arange(count, dtype=torch.uint8)
    images = values[:, None, None, None].expand(count, 3, SIZE, SIZE).contiguous()
    return ImageSet(images, torch.arange(count) % classes, tuple(map(str, range(classes))))


def write_folders(root, splits=("train", "test"), classes=("cat", "dog"), count=6, size=SIZE):
    for split in splits:
        for number, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i, pixels in enumerate(random_images(count, number + len(split), size)):
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


def encode(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return {"bytes": buffer.getvalue(), "path": None}


def write_parquet(root, count=12, splits=("train", "test")):
    root.mkdir(parents=True, exist_ok=True)
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "coarse": datasets.ClassLabel(names=["animal", "thing"]),
            "fine": datasets.ClassLabel(names=["cat", "dog", "car"]),
        }
    )
    for split in splits:
        pixels = random_images(count, len(split))
        columns = {
            "picture": [encode(image) for image in pixels],
            "coarse": [i % 3 // 2 for i in range(count)],
            "fine": [i % 3 for i in range(count)],
        }
        table = datasets.Dataset.from_dict(columns, features=features)
        table.to_parquet(root / f"{split}-00000-of-00001.parquet")
    return root
