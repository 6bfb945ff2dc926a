"""Data sets for image classification."""

from phnn.tasks.batches import EpochBatches, Plan
from phnn.tasks.images.augment import AUGMENTATIONS, Normalize, augment, count_draws
from phnn.tasks.images.batches import Batch, Batches
from phnn.tasks.images.data import ImageSet, ImageSplits, load_images
from phnn.tasks.images.datamodule import ImageData
from phnn.tasks.images.decode import CorruptImageError, read_image
from phnn.tasks.images.digits import make_digits
from phnn.tasks.images.preprocess import preprocess
from phnn.tasks.images.stream import StreamBatches

__all__ = [
    "AUGMENTATIONS",
    "Batch",
    "Batches",
    "CorruptImageError",
    "EpochBatches",
    "ImageData",
    "ImageSet",
    "ImageSplits",
    "Normalize",
    "Plan",
    "StreamBatches",
    "augment",
    "count_draws",
    "load_images",
    "make_digits",
    "preprocess",
    "read_image",
]
