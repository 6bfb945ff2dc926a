"""Which distribution should a learned algebra start from? A small network says.

A convolutional network with n = 4 is trained from four starts of A: independent normal entries,
orthonormal terms, the quaternions with noise, and the quaternions themselves. Everything else is
equal: F gives H the variance of torch's default in each.

    python benchmarks/algebra_start.py [--data cifar10 --root DIR] [--out results/algebra-start.md]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import phnn
from measure import provenance
from phnn import init
from phnn.algebra import quaternion
from phnn.lab.tasks.images import load_images
from phnn.nn import PHLayer


def noisy_quaternion_(A: Tensor, noise: float) -> Tensor:
    with torch.no_grad():
        A.copy_(quaternion.structure)
        A.add_(noise * torch.randn_like(A))
        return A.mul_(4 / A.norm())


STARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda A: init.algebra_(A, "normal"),
    "orthonormal": lambda A: init.algebra_(A, "orthonormal"),
    "quaternion + 0.3 noise": lambda A: noisy_quaternion_(A, 0.3),
    "quaternion": lambda A: noisy_quaternion_(A, 0.0),
}


def build(start: Callable[[Tensor], Tensor], classes: int, norm: bool) -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        conv = phnn.PHConv2d(inputs, outputs, 3, stride, 1, bias=not norm, n=4)
        return [conv, *([nn.BatchNorm2d(outputs)] if norm else []), nn.ReLU()]

    layers = [
        nn.ZeroPad3d((0, 0, 0, 0, 1, 0)),
        *block(4, 32, 1),
        *block(32, 64, 2),
        *block(64, 128, 2),
        *block(128, 128, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    ]
    model = nn.Sequential(*layers)
    for layer in model:
        if isinstance(layer, PHLayer):
            start(layer.A)
            init.filters_(layer.F, layer.A, std=(3 * layer.weight[0].numel()) ** -0.5)
    return model


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        predictions = torch.cat([model(part).argmax(1) for part in images.split(500)])
    return 100 * (predictions == labels).double().mean().item()


def train(
    model: nn.Module, images: Tensor, labels: Tensor, epochs: int, seed: int, rate: float
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-4)
    steps = epochs * (len(images) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        for batch in order[: len(images) // 128 * 128].split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root", help="local folder of the data set")
    parser.add_argument("--images", type=int, default=8000, help="training images")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the table here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load_images(options.data, options.root)
    parts = []
    for part in (data.train.take(torch.arange(min(options.images, len(data.train)))), data.test):
        images = part.images.float()
        parts.append(((images - images.mean()) / images.std(), part.labels))
    (images, labels), test = parts
    lines = [
        f"`{options.data}`, {len(images)} images, {options.epochs} epochs, seeds 0 to "
        f"{options.seeds - 1}. {provenance()}",
        "",
        "| start of A | batch norm | test accuracy, mean ± std (%) | each seed |",
        "|---|---|---|---|",
    ]
    for norm, rate in ((True, 0.2), (False, 0.05)):
        for name, start in STARTS.items():
            scores = []
            for seed in range(options.seeds):
                torch.manual_seed(seed)
                model = build(start, len(data.train.classes), norm)
                train(model, images, labels, options.epochs, seed, rate)
                scores.append(accuracy(model, *test))
                print(name, norm, seed, f"{scores[-1]:.2f}", flush=True)
            each = ", ".join(f"{score:.1f}" for score in scores)
            spread = statistics.stdev(scores) if len(scores) > 1 else float("nan")
            yes = "yes" if norm else "no"
            lines.append(
                f"| {name} | {yes} | {statistics.mean(scores):.2f} ± {spread:.2f} | {each} |"
            )
            if options.out:
                options.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
