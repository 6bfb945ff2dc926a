"""Where the data sets of the paper are, below one folder."""

from __future__ import annotations

from pathlib import Path

# what people call the folders, the first for messages
NAMES = {
    "cifar10": ("cifar10", "cifar-10", "cifar-10-batches-py", "CIFAR10"),
    "cifar100": ("cifar100", "cifar-100", "cifar-100-python", "CIFAR100"),
    "svhn": ("svhn", "SVHN", "svhn/cropped_digits"),
    "imagenet": ("imagenet", "ImageNet", "imagenet-1k", "ILSVRC2012"),
    "l3das21": ("l3das21", "L3DAS21", "Task2", "L3DAS21/Task2"),
}
# training examples, of which an epoch is made
SIZES = {"cifar10": 50_000, "cifar100": 50_000, "svhn": 73_257, "imagenet": 1_281_167}


def find_datasets(root: Path) -> dict[str, Path]:
    """Return the folder of each data set of the paper that is there.

    Args:
        root: A folder with a folder for each data set, such as ROOT/cifar10 and ROOT/l3das21.

    Raises:
        FileNotFoundError: The folder is not there, or holds none of the data sets.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"data={root} is not a folder")
    found: dict[str, Path] = {}
    for name, folders in NAMES.items():
        there = [root / folder for folder in folders if (root / folder).is_dir()]
        both = name == "svhn" and (root / "svhn" / "cropped_digits").is_dir()
        if there:  # of the hub's two configurations of SVHN, the paper uses the first
            found[name] = root / "svhn" / "cropped_digits" if both else there[0]
    if not found:
        wanted = ", ".join(NAMES)
        raise FileNotFoundError(
            f"{root} holds none of the folders {wanted}; docs/paper.md says what belongs into them"
        )
    return found
