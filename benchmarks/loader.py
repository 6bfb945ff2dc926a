"""Images per second of our loaders, compared with torch's DataLoader and the same transforms.

Run as `python benchmarks/loader.py --out results/loader.csv`. A turn is a whole epoch, and the
contenders take turns: what a loader prepares in advance is counted in its own turn, and ratios hold
on a busy machine, too. The last row has a training step beside the loader: a device that is faster
than the loader alone would wait for it.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from measure import provenance
from phnn.lab.tasks.batches import Plan
from phnn.lab.tasks.images import ImageData
from phnn.lab.tasks.images.augment import augment, count_draws
from phnn.lab.tasks.images.batches import DRAW_LIMIT
from phnn.lab.tasks.images.sources import Rows, open_source
from phnn.lab.tasks.images.stream import StreamBatches

BATCH = 128
AUGMENTATIONS: tuple[tuple[str, ...], ...] = ((), ("crop", "flip"), ("resized_crop", "flip"))
FILES, IMAGES, SIDE = 8, 256, 256  # of the stream: JPEG files like those of ImageNet
CROP = 160

Epoch = Callable[[int], Iterator[tuple[Tensor, Tensor]]]  # the batches of an epoch


class InMemory(Dataset[tuple[Tensor, int]]):
    """Samples one by one, as DataLoader takes them, with the transforms of ours."""

    def __init__(self, images: Tensor, labels: Tensor, names: tuple[str, ...]) -> None:
        self.images, self.labels, self.names = images, labels, names

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index : index + 1]
        if self.names:
            draws = torch.randint(DRAW_LIMIT, (1, count_draws(self.names)))
            image = augment(image, draws, self.names)
        return image[0], int(self.labels[index])


class Streamed(IterableDataset[tuple[Tensor, int]]):
    """Rows of a stream, decoded in the workers of a DataLoader.

    `datasets` gives each worker its own files.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        plan = Plan(BATCH, shuffle=True)
        self.decoder = StreamBatches(rows, plan, image_size=CROP, random_crop=True)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for position, encoded in enumerate(self.rows.shuffled(0, 0)):
            decoded = self.decoder._decode(encoded, position)
            assert decoded is not None
            yield decoded


def ours(data: ImageData) -> Epoch:
    loader = data.train_dataloader()

    def read(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        loader.set_epoch(epoch)
        return (data.on_after_batch_transfer(batch, 0) for batch in loader)

    return read


def theirs(data: ImageData, source: Dataset[Any], workers: int) -> Epoch:
    normalise = data._require_setup()[2]
    shuffle = None if isinstance(source, IterableDataset) else True
    loader: DataLoader[Any] = DataLoader(
        source, BATCH, shuffle=shuffle, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda epoch: ((normalise(images), labels) for images, labels in loader)


def race(contenders: dict[str, Epoch], use: Callable[..., object], turns: int) -> dict[str, float]:
    """Return the median rate of each contender; they take turns."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, read in contenders.items():
            start, count = time.perf_counter(), 0
            for images, labels in read(turn):
                use(images, labels)
                count += len(images)
            if turn:  # the first epoch pays for memory and processes
                rates[name].append(count / (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in rates.items()}


def write_stream(root: Path) -> None:
    """Write parquet files of JPEG images, each a random pattern of large patches."""
    names = [str(number) for number in range(10)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    )
    rng = np.random.default_rng(0)
    for file in range(FILES):
        images = []
        for _ in range(IMAGES):
            patches = rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
            picture = Image.fromarray(patches).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=90)
            images.append({"bytes": buffer.getvalue(), "path": None})
        table = datasets.Dataset.from_dict(
            {"image": images, "label": [number % 10 for number in range(IMAGES)]}, features=features
        )
        for split in ("train", "validation"):
            table.to_parquet(root / f"{split}-{file:05}-of-{FILES:05}.parquet")


def train_step() -> Callable[[Tensor, Tensor], None]:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    layers = [*block(3, 16), *block(16, 32), *block(32, 64)]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step(images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    return step


def ignore(*_: Tensor) -> None:
    """Do nothing with a batch."""


def measure(workers: int, turns: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the rates of each table by contender."""
    several = f"DataLoader, {workers} workers"
    for names in AUGMENTATIONS:
        data = ImageData("digits", batch_size=BATCH, augment=names)
        data.setup()
        train = data._splits.sets["train"]  # type: ignore[attr-defined]
        source = InMemory(train.images, train.labels, names)
        contenders = {
            "ours": ours(data),
            "DataLoader": theirs(data, source, 0),
            several: theirs(data, source, workers),
        }
        yield f"32x32, {' + '.join(names) or 'no augmentation'}", race(contenders, ignore, turns)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        datasets.disable_progress_bars()
        write_stream(root)
        options: dict[str, Any] = {"batch_size": BATCH, "validation": 0, "image_size": CROP}
        stream = ImageData("imagenet", root, augment=("resized_crop",), **options)
        stream.setup()
        rows = open_source("imagenet", root).open(streaming=True).splits["train"]
        contenders = {"ours": ours(stream), several: theirs(stream, Streamed(rows), workers)}
        yield f"stream of {SIDE}x{SIDE} JPEG, random pieces", race(contenders, ignore, turns)
    yield "32x32, with a training step", race({"ours": ours(data)}, train_step(), turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--workers", type=int, default=2, help="of a DataLoader")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    made_by = provenance()
    rows = []
    for title, rates in measure(arguments.workers, arguments.turns):
        others = [rate for name, rate in rates.items() if name != "ours"]
        for name, rate in rates.items():
            ratio = f"{rate / max(others):.2f}" if others and name == "ours" else ""
            rows.append([title, name, f"{rate:.0f}", ratio, made_by])
            print(*rows[-1][:-1], sep=", ", flush=True)
    if arguments.out is not None:
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            head = ["images", "loader", "images per second", "ours / the best other", "made by"]
            writer.writerows([head, *rows])


if __name__ == "__main__":
    main()
