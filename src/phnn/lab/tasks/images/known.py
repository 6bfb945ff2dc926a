"""The data sets of the paper."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Known:
    """A data set of the paper.

    Attributes:
        hub: Its name on the Hugging Face hub.
        config: Which of its variants.
        mean: Subtracted from values in [0, 1].
        std: Divided by.
        splits: What its splits are used as, where that is not their names.
    """

    hub: str
    config: str | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    splits: Mapping[str, str] = field(default_factory=dict)


KNOWN: dict[str, Known] = {
    "cifar10": Known(
        "uoft-cs/cifar10", None, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    ),
    "cifar100": Known(
        "uoft-cs/cifar100", None, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    ),
    "svhn": Known("ufldl-stanford/svhn", "cropped_digits", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "imagenet": Known(
        "ILSVRC/imagenet-1k", None, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225),
        splits={"train": "train", "validation": "test"},  # its own test split has no labels
    ),
}  # fmt: skip
