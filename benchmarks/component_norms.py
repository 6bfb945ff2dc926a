"""Do norms and dropout over components help? A small network with n = 4 says.

Four PH convolutions, each followed by a norm and a ReLU, and perhaps a dropout before the last
layer. Everything but the norm and the dropout is equal.

    python benchmarks/component_norms.py [--data cifar10 --root DIR] [--out FILE]
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import phnn
from algebra_start import accuracy, train
from measure import provenance
from phnn.lab.tasks.images import load_images
from phnn.lab.training.provenance import find_commit

Norm = Callable[[int], nn.Module]
NORMS: dict[str, tuple[Norm, nn.Module]] = {
    "batch norm": (nn.BatchNorm2d, nn.Identity()),
    "one variance": (lambda c: phnn.ComponentBatchNorm(c, n=4), nn.Identity()),
    "whitening": (lambda c: phnn.WhiteningBatchNorm(c, n=4), nn.Identity()),
    "batch norm, dropout 0.2": (nn.BatchNorm2d, nn.Dropout(0.2)),
    "batch norm, component dropout 0.2": (nn.BatchNorm2d, phnn.ComponentDropout(0.2, n=4)),
}


def build(norm: Norm, drop: nn.Module, classes: int) -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        conv = phnn.PHConv2d(inputs, outputs, 3, stride, 1, bias=False, n=4)
        return [conv, norm(outputs), nn.ReLU()]

    return nn.Sequential(
        nn.ZeroPad3d((0, 0, 0, 0, 1, 0)),
        *block(4, 24, 2),
        *block(24, 48, 1),
        *block(48, 96, 2),
        *block(96, 96, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        drop,
        nn.Linear(96, classes),
    )


def prepare(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (images.float() - mean) / std


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root", type=Path, help="folder of the data")
    parser.add_argument("--images", type=int, default=6000, help="training images")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the rows here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load_images(options.data, options.root)
    chosen = data.train.take(torch.arange(min(options.images, len(data.train))))
    mean, std = chosen.images.float().mean(), chosen.images.float().std()
    images, test = (prepare(part.images, mean, std) for part in (chosen, data.test))
    rows = []
    about = provenance()
    for name, (norm, drop) in NORMS.items():
        scores = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            model = build(norm, drop, len(data.train.classes))
            train(model, images, chosen.labels, options.epochs, seed, 0.2)
            scores.append(accuracy(model, test, data.test.labels))
            size = sum(parameter.numel() for parameter in model.parameters())
            rows.append([name, size, seed, round(scores[-1], 2), find_commit(), about])
            if options.out:
                with options.out.open("w", newline="") as file:
                    head = ["norm", "parameters", "seed", "accuracy %", "commit", "made by"]
                    csv.writer(file).writerows([head, *rows])
        spread = statistics.stdev(scores) if len(scores) > 1 else float("nan")
        print(f"{name}: {statistics.mean(scores):.2f} ± {spread:.2f} {scores}", flush=True)


if __name__ == "__main__":
    main()
