"""Image classification."""

from phnn.lab.tasks.batches import EpochBatches, Plan
from phnn.lab.tasks.images.augment import (
    AUGMENTATIONS,
    Normalize,
    augment,
    count_draws,
    find_alternating,
)
from phnn.lab.tasks.images.batches import Batch, Batches
from phnn.lab.tasks.images.data import ImageData
from phnn.lab.tasks.images.decode import CorruptImageError, read_image
from phnn.lab.tasks.images.digits import make_digits
from phnn.lab.tasks.images.prediction import Prediction, classify
from phnn.lab.tasks.images.preprocess import preprocess
from phnn.lab.tasks.images.sets import ImageSet, ImageSplits, load_images
from phnn.lab.tasks.images.stream import StreamBatches
from phnn.lab.tasks.images.task import IMAGES

__all__ = [
    "AUGMENTATIONS",
    "IMAGES",
    "Batch",
    "Batches",
    "CorruptImageError",
    "EpochBatches",
    "ImageData",
    "ImageSet",
    "ImageSplits",
    "Normalize",
    "Plan",
    "Prediction",
    "StreamBatches",
    "augment",
    "classify",
    "count_draws",
    "find_alternating",
    "load_images",
    "make_digits",
    "preprocess",
    "read_image",
]
