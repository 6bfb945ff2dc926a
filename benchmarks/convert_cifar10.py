"""What a trained network is worth after conversion: accuracy at once, and after fine-tuning.

Starts from the real network of `phnn compare cifar10-short` and makes it smaller in three ways: PH
layers nearest to its weights, PH layers from scratch, and the usual alternative, convolutions of
low rank by truncated SVD at the same number of parameters. All are trained alike for three epochs.

    python benchmarks/convert_cifar10.py RUN --root FOLDER [--only PATTERN] [--out
    results/convert-cifar10.csv]

RUN is the folder of the trained network, FOLDER that of CIFAR-10. Each finished row is appended to
the table; a row that is there already is not computed again.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import phnn
from low_rank import low_rank
from measure import provenance
from phnn.lab.tasks.images import ImageData
from phnn.nn import PHLayer

EPOCHS, REPORTED = 3, (0, 1, 3)
RATES = {"nearest": 0.02, "low rank": 0.02, "scratch": 0.1}  # a trained start wants smaller steps
SIZES: dict[str, dict[str, float]] = {
    "n=4": {"n": 4},
    "n=2": {"n": 2},
    "budget 0.5": {"budget": 0.5},
    "budget 0.3": {"budget": 0.3},
}


def nearest(model: nn.Module, **size: Any) -> nn.Module:
    return phnn.convert(model, **size)


def scratch(model: nn.Module, **size: Any) -> nn.Module:
    """The layers that `nearest` makes, with new starting values for the whole network."""
    small = phnn.convert(model, start="random", **size)
    for module in small.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d | PHLayer):
            module.reset_parameters()
    return small


WAYS: dict[str, Callable[..., nn.Module]] = {
    "nearest": nearest,
    "low rank": low_rank,
    "scratch": scratch,
}


@torch.no_grad()
def test_accuracy(model: nn.Module, data: ImageData) -> float:
    model.eval()
    right = total = 0
    for batch in data.test_dataloader():
        x, y = data.on_after_batch_transfer(batch, 0)
        right += int((model(x.contiguous(memory_format=torch.channels_last)).argmax(1) == y).sum())
        total += len(y)
    return 100 * right / total


def train(model: nn.Module, data: ImageData, rate: float) -> dict[int, float]:
    """Test accuracy before training and after the reported epochs."""
    loader = data.train_dataloader()
    optimizer = torch.optim.SGD(
        model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=EPOCHS * len(loader)
    )
    accuracies = {0: test_accuracy(model, data)}
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        model.train()
        for batch in loader:
            x, y = data.on_after_batch_transfer(batch, 0)
            x = x.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            loss: Tensor = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch + 1 in REPORTED:
            accuracies[epoch + 1] = test_accuracy(model, data)
    return accuracies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("--root", required=True)
    parser.add_argument("--only", default="*", help="pattern of the rows to compute")
    parser.add_argument("--out", type=Path, default=Path("results/convert-cifar10.csv"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = ImageData(
        "cifar10", options.root, augment=("crop", "flip"), validation=0, seed=options.seed
    )
    data.setup()
    done = set()
    if options.out.exists():
        rows = csv.DictReader(options.out.open())
        done = {row["network"] for row in rows if row["seed"] == str(options.seed)}
    for size, way in product(SIZES, WAYS):
        name = f"{way}, {size}"
        if name in done or not fnmatchcase(name, options.only):
            continue
        torch.manual_seed(options.seed)
        model = WAYS[way](phnn.load(options.run), **SIZES[size])
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        start = time.perf_counter()
        accuracies = train(model, data, RATES[way])
        row = {
            "network": name,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            **{f"after {epoch} epochs": f"{accuracies[epoch]:.2f}" for epoch in REPORTED},
            "minutes": f"{(time.perf_counter() - start) / 60:.1f}",
            "seed": options.seed,
            "made by": provenance(),
        }
        print(row, flush=True)
        is_new = not options.out.exists()
        with options.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if is_new:
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()
