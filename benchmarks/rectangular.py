"""Layers with n = (out, 1) and (1, in) against low-rank layers written by hand, in one run.

The rival of n = (out, 1) is a k×k convolution to `terms` channels and a 1×1 one, or two linear
layers; that of n = (1, in) is the 1×1 convolution first. Both take turns in one thread, and the
least CPU time counts: other processes disturb it little.

    python benchmarks/rectangular.py [--out results/rectangular.csv] [--only PATTERN]
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn

import phnn
from measure import provenance


@dataclass(frozen=True)
class Case:
    """One layer and its input.

    Attributes:
        kind: "conv", "mirror" for n = (1, in), or "linear".
        inputs: Input channels.
        outputs: Output channels.
        terms: Kronecker terms, which is the rank.
        batch: Samples.
        size: Height and width, or positions of a sequence.
        stride: Of a convolution.
        channels_last: Memory format.
    """

    kind: str
    inputs: int
    outputs: int
    terms: int
    batch: int
    size: int
    stride: int = 1
    channels_last: bool = False

    def __str__(self) -> str:
        last = " channels last" if self.channels_last else ""
        stride = f" stride {self.stride}" if self.stride > 1 else ""
        return (
            f"{self.kind} {self.inputs}-{self.outputs} terms {self.terms} batch {self.batch} "
            f"size {self.size}{stride}{last}"
        )

    def make(self) -> tuple[nn.Module, nn.Module, Tensor]:
        """Return the PH layer, the layer by hand with the same weights, and an input."""
        inputs, outputs, terms = self.inputs, self.outputs, self.terms
        layer: phnn.PHLinear | phnn.PHConv2d
        if self.kind == "linear":
            layer = phnn.PHLinear(inputs, outputs, n=(outputs, 1), terms=terms)
            first: nn.Module = nn.Linear(inputs, terms, bias=False)
            last: nn.Module = nn.Linear(terms, outputs)
            x = torch.randn(self.batch, self.size, inputs)
            weights = layer.F, layer.A[:, :, 0].mT
        else:
            n = (outputs, 1) if self.kind == "conv" else (1, inputs)
            layer = phnn.PHConv2d(inputs, outputs, 3, self.stride, 1, n=n, terms=terms)
            x = torch.randn(self.batch, inputs, self.size, self.size)
            if self.kind == "conv":
                first = nn.Conv2d(inputs, terms, 3, self.stride, 1, bias=False)
                last = nn.Conv2d(terms, outputs, 1)
                weights = layer.F, layer.A[:, :, 0].mT[:, :, None, None]
            else:
                first = nn.Conv2d(inputs, terms, 1, bias=False)
                last = nn.Conv2d(terms, outputs, 3, self.stride, 1)
                filters = layer.F.unflatten(0, (terms, outputs))[:, :, 0].transpose(0, 1)
                weights = layer.A[:, 0][:, :, None, None], filters
        with torch.no_grad():
            first.get_parameter("weight").copy_(weights[0])
            last.get_parameter("weight").copy_(weights[1])
            last.get_parameter("bias").copy_(layer.get_parameter("bias"))
        hand = nn.Sequential(first, last)
        if self.channels_last:
            layer, hand = (m.to(memory_format=torch.channels_last) for m in (layer, hand))  # type: ignore[call-overload]
            x = x.contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(layer(x), hand(x), rtol=1e-4, atol=1e-4)
        return layer, hand, x


CASES = [
    *(Case("conv", c, c, c // 8, 16, 3584 // c) for c in (64, 128, 256, 512)),
    Case("conv", 16, 16, 4, 128, 32),
    Case("conv", 64, 64, 8, 128, 8),
    Case("conv", 64, 64, 32, 1, 32),
    Case("conv", 64, 128, 16, 16, 28, stride=2),
    Case("conv", 128, 128, 16, 16, 28, channels_last=True),
    Case("mirror", 64, 64, 8, 16, 56),
    Case("mirror", 256, 256, 32, 16, 14),
    Case("mirror", 128, 128, 16, 16, 28, channels_last=True),
    Case("linear", 384, 384, 48, 32, 64),
    Case("linear", 1536, 384, 64, 32, 64),
    Case("linear", 512, 512, 64, 16, 1),
    Case("linear", 2048, 2048, 128, 1, 1),
]


def forward(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    def call() -> None:
        with torch.no_grad():
            layer(x)

    return call


def training_step(layer: nn.Module, x: Tensor, gradient: Tensor) -> Callable[[], object]:
    """Forward and backward, with the input's gradient as inside a network."""
    x = x.clone().requires_grad_()

    def call() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x).backward(gradient)

    return call


def race(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the least CPU seconds of each contender; they take turns."""
    for call in [*calls.values()] * 3:
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    spent = 0.0
    while spent < seconds or len(times["PH"]) < 15:
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
            spent += times[name][-1]
    return {name: min(values) for name, values in times.items()}


def measure(case: Case, seconds: float) -> dict[str, object]:
    layer, hand, x = case.make()
    row: dict[str, object] = {"case": str(case)}
    gradient = torch.randn_like(layer(x))
    for what, calls in {
        "forward": {"PH": forward(layer, x), "hand": forward(hand, x)},
        "step": {"PH": training_step(layer, x, gradient), "hand": training_step(hand, x, gradient)},
    }.items():
        times = race(calls, seconds)
        row[f"{what} by hand, ms"] = f"{1e3 * times['hand']:.3f}"
        row[f"{what}, ratio"] = f"{times['PH'] / times['hand']:.3f}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="*", help="pattern of the case")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each pair of contenders")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        if fnmatchcase(str(case), arguments.only):
            torch.manual_seed(0)
            rows.append(measure(case, arguments.seconds))
            print(*rows[-1].values(), sep=", ", flush=True)
    if arguments.out is not None:
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*rows[0], "made by"])
            writer.writerows([*row.values(), provenance()] for row in rows)


if __name__ == "__main__":
    main()
