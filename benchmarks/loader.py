"""Images per second of our loaders, compared with torch's DataLoader and the same transforms.

Run as `python benchmarks/loader.py [threads] [workers]`. The contenders of a table take turns, so
their ratios hold on a busy machine, too. The last table has a training step beside the loader: what
the loader gives per second is the rate above which a device would wait for it.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from phnn.lab.tasks.images import ImageData
from phnn.lab.tasks.images.augment import augment, count_draws
from phnn.lab.tasks.images.batches import DRAW_LIMIT
from phnn.lab.tasks.images.sources import Rows, open_source
from phnn.lab.tasks.images.stream import StreamBatches

SECONDS = 1.0  # of a turn
TURNS = 5
BATCH = 128
AUGMENTATIONS: tuple[tuple[str, ...], ...] = ((), ("crop", "flip"), ("resized_crop", "flip"))
FILES, IMAGES, SIDE = 8, 64, 256  # of the stream: JPEG files like those of ImageNet
CROP = 160

Pairs = Iterator[tuple[Tensor, Tensor]]


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
    """Rows of a stream, decoded in the workers of a DataLoader, each with its own files."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        worker = get_worker_info()
        rows: Any = self.rows
        if worker is not None:
            rows = rows.divide(worker.num_workers)[worker.id]
        decoder = StreamBatches(rows, _plan(), image_size=CROP, random_crop=True)
        for position, encoded in enumerate(rows.shuffled(0, 0)):
            decoded = decoder._decode(encoded, position)
            assert decoded is not None
            yield decoded


def _plan() -> Any:
    from phnn.lab.tasks.batches import Plan

    return Plan(BATCH, shuffle=True)


def ours(data: ImageData) -> Pairs:
    loader = data.train_dataloader()
    epoch = 0
    while True:
        loader.set_epoch(epoch)
        for batch in loader:
            yield data.on_after_batch_transfer(batch, 0)
        epoch += 1


def theirs(data: ImageData, source: Dataset[Any], workers: int) -> Pairs:
    normalise = data._require_setup()[2]
    shuffle = None if isinstance(source, IterableDataset) else True
    loader: DataLoader[Any] = DataLoader(
        source, BATCH, shuffle=shuffle, num_workers=workers, persistent_workers=workers > 0
    )
    while True:
        for images, labels in loader:
            yield normalise(images), labels


def race(contenders: dict[str, Pairs], use: Callable[..., object]) -> dict[str, float]:
    """Return the median rate of each contender; they take turns."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for batches in contenders.values():
        use(*next(batches))  # the first batch pays for memory and processes
    for _ in range(TURNS):
        for name, batches in contenders.items():
            start, count = time.perf_counter(), 0
            while time.perf_counter() - start < SECONDS:
                images, labels = next(batches)
                use(images, labels)
                count += len(images)
            rates[name].append(count / (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in rates.items()}


def show(title: str, rates: dict[str, float]) -> None:
    best = max((rate for name, rate in rates.items() if name != "ours"), default=None)
    for name, rate in rates.items():
        ratio = f"{rate / best:.2f}" if best is not None and name == "ours" else ""
        print(f"| {title} | {name} | {rate:,.0f} | {ratio} |", flush=True)


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


def main(threads: int, workers: int) -> None:
    torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {threads} threads, {workers} workers, batches of {BATCH}\n")
    print("| images | loader | images/s | ours by the best of the others |\n|---|---|---:|---:|")

    def ignore(*_: Tensor) -> None:
        return None

    for names in AUGMENTATIONS:
        data = ImageData("digits", batch_size=BATCH, augment=names)
        data.setup()
        stored = next(iter(islice(data._splits.batches("train", _plan()), 1)))
        sets: Any = data._splits
        source = InMemory(sets.sets["train"].images, sets.sets["train"].labels, names)
        assert stored.images.shape[1:] == source.images.shape[1:]
        contenders = {
            "ours": ours(data),
            "DataLoader": theirs(data, source, 0),
            f"DataLoader, {workers} workers": theirs(data, source, workers),
        }
        show(f"32x32, {' + '.join(names) or 'no augmentation'}", race(contenders, ignore))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_stream(root)
        stream = ImageData("imagenet", root, batch_size=BATCH, validation=0)
        stream.setup()
        rows = open_source("imagenet", root).open(streaming=True).splits["train"]
        contenders = {
            "ours": ours(stream),
            f"DataLoader, {workers} workers": theirs(stream, Streamed(rows), workers),
        }
        show(f"stream of {SIDE}x{SIDE} JPEG, random pieces", race(contenders, ignore))
    rates = race({"ours": ours(data)}, train_step())
    show("32x32, with a training step of 24k parameters", rates)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:3]]
    main(*(numbers + [1, 2][len(numbers) :]))
