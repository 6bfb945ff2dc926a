"""What does a training step of recurrent PH layers cost, compared with torch's?

A step is forward and backward, with the gradient of the input as inside a network. The layers take
turns in one thread, and the least CPU time of each counts.

    python benchmarks/recurrent.py [--out results/recurrent.csv] [--seconds 10]
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import phnn
from measure import provenance
from phnn.lab.training.provenance import find_commit

FEATURES, STEPS, BATCH = 256, 100, 16
LAYERS: dict[str, tuple[Callable[..., nn.Module], Callable[..., nn.Module]]] = {
    "RNN": (nn.RNN, phnn.PHRNN),
    "GRU": (nn.GRU, phnn.PHGRU),
    "LSTM": (nn.LSTM, phnn.PHLSTM),
}
CHOICES: dict[str, dict[str, Any]] = {
    "n=2": {"n": 2},
    "n=4": {"n": 4},
    "n=8": {"n": 8},
    "quaternion": {"algebra": "quaternion"},
    "n=4 rank=7": {"n": 4, "rank": 7},
}
FIELDS = ("layer", "choice", "parameters", "step ms", "ratio", "commit", "made by")


def main() -> None:
    """Race the layers of each kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/recurrent.csv"))
    parser.add_argument("--seconds", type=float, default=10.0, help="for each kind of layer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for kind, (dense, ph) in LAYERS.items():
        layers = {"torch": dense(FEATURES, FEATURES)}
        layers |= {name: ph(FEATURES, FEATURES, **choice) for name, choice in CHOICES.items()}
        times = race({name: make_step(layer) for name, layer in layers.items()}, options.seconds)
        for name, layer in layers.items():
            size = sum(p.numel() for p in layer.parameters())
            ratio = times[name] / times["torch"]
            print(f"{kind:5} {name:12} {times[name] * 1e3:8.1f} ms {ratio:6.3f}", flush=True)
            values = (kind, name, size, f"{times[name] * 1e3:.2f}", f"{ratio:.3f}")
            rows.append((*values, find_commit(), provenance()))
        with options.out.open("w", newline="") as file:
            csv.writer(file).writerows([FIELDS, *rows])


def make_step(layer: nn.Module) -> Callable[[], object]:
    """Return a training step without the optimizer's part."""
    x = torch.randn(STEPS, BATCH, FEATURES, requires_grad=True)
    gradient = torch.randn(STEPS, BATCH, FEATURES)

    def call() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x)[0].backward(gradient)

    return call


def race(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the least CPU seconds of each contender; they take turns."""
    for call in [*calls.values()] * 2:
        call()
    least = dict.fromkeys(calls, float("inf"))
    rounds, end = 0, time.process_time() + seconds
    while rounds < 5 or time.process_time() < end:
        for name, call in calls.items():
            start = time.process_time()
            call()
            least[name] = min(least[name], time.process_time() - start)
        rounds += 1
    return least


if __name__ == "__main__":
    main()
