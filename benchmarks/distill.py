"""What a shrunk network gains from a short distillation, for several learning rates.

    python benchmarks/distill.py --weights FOLDER --root FOLDER [--network resnet20] [--budget 0.3]
        [--lr 0.01 0.03] [--images 45000] [--epochs 1] [--out results/distill.csv]

The networks and the data are those of `shrink.py`. The network is shrunk with 1,024 training images
and distilled on training images without labels, shifted and mirrored. The score is the accuracy on
5,000 other training images. The original has seen their labels; the rates are compared by them, and
the test set stays untouched unless `--test` asks for it.X
again, and a distillation that was stopped goes on.
"""

from __future__ import annotations

import argparse
import copy
import csv
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import phnn
from measure import provenance
from phnn.lab import distill
from phnn.lab.tasks.images import ImageData
from phnn.lab.tasks.images.augment import crop, flip
from phnn.lab.tasks.images.batches import DRAW_LIMIT
from subjects import ResNet, normalize

BATCH = 128
HELD_OUT = 5000
FIELDS = ["network", "budget", "images", "epochs", "lr", "before", "after", "original"]


class Batches:
    """Shifted and mirrored images, in a new order each time."""

    def __init__(self, images: Tensor, seed: int = 0) -> None:
        self.images, self.generator = images, torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.images) // BATCH

    def __iter__(self) -> Iterator[Tensor]:
        order = torch.randperm(len(self.images), generator=self.generator)
        for rows in order[: len(self) * BATCH].split(BATCH):
            x = crop(self.images[rows], self._draw(2))
            yield normalize(flip(x, self._draw(1)))

    def _draw(self, count: int) -> Tensor:
        return torch.randint(DRAW_LIMIT, (BATCH, count), generator=self.generator)


def read_images(root: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Return training images, and held-out ones with their labels, as bytes."""
    data = ImageData(name="cifar10", root=str(root), batch_size=500, validation=0.0)
    data.setup()
    pairs = [(batch.images, batch.labels) for batch in data.train_dataloader()]
    images, labels = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    held, rest = order[:HELD_OUT], order[HELD_OUT:]
    return images[rest], images[held], labels[held]


@torch.no_grad()
def measure_accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the accuracy in percent."""
    model.eval()
    pairs = zip(images.split(250), labels.split(250), strict=True)
    right = sum(int((model(normalize(x)).argmax(1) == y).sum()) for x, y in pairs)
    return 100 * right / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--network", choices=["resnet20", "resnet56"], default="resnet20")
    parser.add_argument("--budget", type=float, default=0.3)
    parser.add_argument("--small", type=Path, help="a converted network, or where to save it")
    parser.add_argument("--lr", type=float, nargs="+", default=[0.01])
    parser.add_argument("--images", type=int, default=45_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--test", action="store_true", help="score the test set instead")
    parser.add_argument("--checkpoint", type=Path, help="a folder to go on from")
    parser.add_argument("--out", type=Path, default=Path("results/distill.csv"))
    options = parser.parse_args()
    images, x, y = read_images(options.root)
    if options.test:
        data = ImageData(name="cifar10", root=str(options.root), validation=0.0)
        data.setup()
        pairs = [(batch.images, batch.labels) for batch in data.test_dataloader()]
        x, y = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
    depth = int(options.network.removeprefix("resnet"))
    original = ResNet(depth).eval()
    original.load_state_dict(load_file(options.weights / f"{options.network}.safetensors"))
    small = shrink(original, depth, options.budget, options.small, images)
    scores = [f"{measure_accuracy(model, x, y):.2f}" for model in (small, original)]
    for lr in options.lr:
        student, start = copy.deepcopy(small), time.perf_counter()
        file = options.checkpoint and options.checkpoint / f"{options.network}-{lr}.ckpt"
        loader = Batches(images[: options.images])
        epochs = distill(
            student,
            original,
            loader,
            epochs=options.epochs,
            lr=lr,
            checkpoint=file,
            progress=lambda what, done, total: print(what, done, total, flush=True),
        )
        seconds = time.perf_counter() - start
        after = f"{measure_accuracy(student, x, y):.2f}"
        split = "test" if options.test else "held-out training images"
        row = [options.network, options.budget, options.images, options.epochs, lr]
        append(options.out, [*row, scores[0], after, scores[1], split, f"{seconds:.0f}"])
        print(*row, scores, after, [epoch.loss for epoch in epochs], flush=True)


def shrink(
    original: nn.Module, depth: int, budget: float, file: Path | None, images: Tensor
) -> nn.Module:
    """Return the converted network, from its file if there is one."""
    if file is not None and file.exists():
        loaded: nn.Module = phnn.load(file, model=lambda: ResNet(depth))
        return loaded.eval()
    small = phnn.convert(original, budget=budget, calibration=normalize(images[:1024]))
    if file is not None:
        phnn.save(small, file)
    return small


def append(path: Path, row: list[object]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow([*FIELDS, "split", "seconds", "made by"])
        writer.writerow([*row, provenance()])


if __name__ == "__main__":
    main()
