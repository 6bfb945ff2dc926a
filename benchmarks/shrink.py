"""What a trained network keeps when it is shrunk without fine-tuning.

    python benchmarks/shrink.py --weights FOLDER --root FOLDER [--only PATTERN] [--seed 0]
        [--out results/shrink.csv]

`--weights` holds resnet20.safetensors and resnet56.safetensors (the CIFAR-10 networks of He et al.
2016 with parameter-free shortcuts), `--root` CIFAR-10. Every method sees the same 1,024 training
images, without labels; the score is the accuracy on the whole test set. A row that is in the table
is not computed again.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import phnn
from measure import provenance
from phnn.lab.tasks.images import ImageData

BUDGETS = (0.7, 0.5, 0.3, 0.2)
SAMPLES = 1024
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the published networks
FIELDS = ["network", "method", "budget", "seed", "accuracy", "parameters", "share", "seconds"]


class Block(nn.Module):
    """Two convolutions beside a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.pad = stride, outputs // 4 if inputs != outputs else 0

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.pad:
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, self.pad, self.pad))
        return torch.relu(shortcut + y)


class ResNet(nn.Module):
    """The network for CIFAR-10 of He et al. 2016."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks = (depth - 2) // 6
        widths = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        for i, (inputs, outputs, stride) in enumerate(widths, 1):
            first = Block(inputs, outputs, stride)
            rest = [Block(outputs, outputs, 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{i}", nn.Sequential(first, *rest))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = torch.relu(self.bn1(self.conv1(x)))
        for i in (1, 2, 3):
            x = self.get_submodule(f"layer{i}")(x)
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


def shrink(model: nn.Module, budget: float, images: Tensor) -> nn.Module:
    return phnn.convert(model, budget=budget, calibration=images)


def low_rank(model: nn.Module, budget: float, images: Tensor) -> nn.Module:
    """Low rank fitted to activations, with the same search and the same fits."""
    return phnn.convert(model, budget=budget, calibration=images, kinds=["low rank"])


def square(model: nn.Module, budget: float, images: Tensor) -> nn.Module:
    return phnn.convert(model, budget=budget, calibration=images, kinds=["square"])


def by_weights(model: nn.Module, budget: float, images: Tensor) -> nn.Module:
    return phnn.convert(model, budget=budget)


def svd(model: nn.Module, budget: float, images: Tensor) -> nn.Module:
    """Truncated SVD of the weights, with the same search."""
    return phnn.convert(model, budget=budget, kinds=["low rank"])


def prune(model: nn.Module, budget: float, images: Tensor) -> nn.Module:
    """Keep the largest weights of all layers; the positions of zeros are not counted."""
    import copy

    pruned = copy.deepcopy(model)
    layers = [m for m in pruned.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    total = sum(parameter.numel() for parameter in pruned.parameters())
    weights = sum(layer.weight.numel() for layer in layers)
    keep = int(budget * total) - (total - weights)
    sizes = torch.cat([layer.weight.detach().abs().flatten() for layer in layers])
    least = sizes.topk(keep).values[-1]
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(layer.weight.abs() >= least)
    return pruned


METHODS: dict[str, Callable[[nn.Module, float, Tensor], nn.Module]] = {
    "phnn": shrink,
    "low rank by activations": low_rank,
    "square PH by activations": square,
    "phnn by weights": by_weights,
    "truncated SVD": svd,
    "magnitude pruning": prune,
}


@torch.no_grad()
def measure_accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    right = sum(
        int((model(normalize(x)).argmax(1) == y).sum())
        for x, y in zip(images.split(250), labels.split(250), strict=True)
    )
    return 100 * right / len(labels)


def normalize(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (images.float() / 255 - mean) / std


def read_images(root: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Return the training images, the test images and the test labels, as bytes."""
    data = ImageData(name="cifar10", root=str(root), batch_size=500, validation=0.0)
    data.setup()
    train = torch.cat([batch.images for batch in data.train_dataloader()])
    pairs = [(batch.images, batch.labels) for batch in data.test_dataloader()]
    images, labels = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
    return train, images, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--only", default="*", help='pattern of "NETWORK METHOD BUDGET"')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/shrink.csv"))
    arguments = parser.parse_args()
    done: set[tuple[str, ...]] = set()
    if arguments.out.exists():
        with arguments.out.open(newline="", encoding="utf-8") as file:
            done = {tuple(row[field] for field in FIELDS[:4]) for row in csv.DictReader(file)}
    train, images, labels = read_images(arguments.root)
    generator = torch.Generator().manual_seed(arguments.seed)
    calibration = normalize(train[torch.randperm(len(train), generator=generator)[:SAMPLES]])
    for depth in (20, 56):
        model = ResNet(depth).eval()
        model.load_state_dict(load_file(arguments.weights / f"resnet{depth}.safetensors"))
        jobs = [("original", 1.0, None)]
        jobs += [(name, share, run) for share in BUDGETS for name, run in METHODS.items()]  # type: ignore[misc]
        for name, share, run in jobs:
            key = (f"resnet{depth}", name, str(share), str(arguments.seed))
            if key in done or not fnmatchcase(" ".join(key[:3]), arguments.only):
                continue
            start = time.perf_counter()
            try:
                small = model if run is None else run(model, share, calibration)
            except ValueError as error:
                print(*key, "skipped:", error)
                continue
            seconds = time.perf_counter() - start
            parameters = sum(p.numel() for p in small.parameters())
            report = getattr(small, "phnn_report", None)
            share_kept = share if report is None else parameters / report.parameters_before
            accuracy = measure_accuracy(phnn.to_dense(small), images, labels)
            row = [*key, f"{accuracy:.2f}", parameters, f"{share_kept:.4f}", f"{seconds:.1f}"]
            append(arguments.out, row)
            print(*row, flush=True)


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def append(path: Path, row: list[object]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow([*FIELDS, "commit", "made by"])
        writer.writerow([*row, commit(), provenance()])


if __name__ == "__main__":
    main()
