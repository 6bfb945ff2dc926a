"""Images per second of the loader alone, beside those of a training step.

Run as `python benchmarks/loader.py [threads]`. The loader must be the faster by far: what it gives
here per second is the rate above which a device would wait for it.
"""

import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from phnn.lab.tasks.images import ImageData

SECONDS = 3.0  # of each measurement
BATCH = 128
AUGMENTATIONS: tuple[tuple[str, ...], ...] = ((), ("crop", "flip"), ("resized_crop", "flip"))


def small_network() -> nn.Sequential:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    layers = [*block(3, 16), *block(16, 32), *block(32, 64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def endless(data: ImageData) -> Iterator[tuple[Tensor, Tensor]]:
    loader = data.train_dataloader()
    epoch = 0
    while True:
        loader.set_epoch(epoch)
        for batch in loader:
            yield data.on_after_batch_transfer(batch, 0)
        epoch += 1


def images_per_second(
    batches: Iterator[tuple[Tensor, Tensor]], use: Callable[..., object]
) -> float:
    use(*next(batches))  # the first batch pays for memory
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        images, labels = next(batches)
        use(images, labels)
        count += len(images)
    return count / (time.perf_counter() - start)


def train_step() -> Callable[[Tensor, Tensor], None]:
    network = small_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step(images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    return step


def main(threads: int) -> None:
    torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {threads} threads, batches of {BATCH}, 32x32 RGB")
    print("| what | images/s |\n|---|---:|")
    for names in AUGMENTATIONS:
        data = ImageData("digits", batch_size=BATCH, augment=names)
        data.setup()
        rate = images_per_second(endless(data), lambda *_: None)
        print(f"| loader, {' + '.join(names) or 'no augmentation'} | {rate:,.0f} |", flush=True)
    rate = images_per_second(endless(data), train_step())
    print(f"| loader and training step, 24k parameters | {rate:,.0f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
