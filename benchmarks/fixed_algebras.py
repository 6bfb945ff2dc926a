"""A training step of 3×3 convolutions with known algebras, compared with that of the real one.

python benchmarks/fixed_algebras.py --out results/fixed-algebras.csv
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from torch import nn

import phnn
from layers import forward, training_step
from measure import provenance
from phnn.runtimes.timing import interleave, median_ratio

ALGEBRAS = ("complex", "quaternion", "matrix(2)")
FIELDS = ("algebra", "channels", "step / real", "step (median)", "inference / real", "provenance")


def measure(algebra: str, channels: int, batch: int, size: int, rounds: int) -> dict[str, str]:
    torch.manual_seed(0)
    layers: dict[str, nn.Module] = {
        "real": nn.Conv2d(channels, channels, 3, padding=1),
        "PH": phnn.PHConv2d(channels, channels, 3, padding=1, algebra=algebra),
    }
    x = torch.randn(batch, channels, size, size)
    gradient = torch.randn_like(x)
    steps = {name: training_step(layer, x, gradient) for name, layer in layers.items()}
    step = interleave(steps, rounds)
    inference = interleave({name: forward(layer, x) for name, layer in layers.items()}, rounds)
    return {
        "algebra": algebra,
        "channels": str(channels),
        "step / real": f"{step['PH'] / step['real']:.3f}",
        "step (median)": f"{median_ratio(steps['PH'], steps['real'], rounds):.3f}",
        "inference / real": f"{inference['PH'] / inference['real']:.3f}",
        "provenance": provenance(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("fixed-algebras.csv"))
    parser.add_argument("--channels", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for algebra in ALGEBRAS:
            for channels in arguments.channels:
                row = measure(algebra, channels, arguments.batch, arguments.size, arguments.rounds)
                print(*row.values(), flush=True)
                writer.writerow(row)
                file.flush()


if __name__ == "__main__":
    main()
