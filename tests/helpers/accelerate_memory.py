"""Accelerate a model of some layers; print the sizes and the peak of memory as JSON."""

import gc
import json
import resource
import sys

import torch
from torch import nn

import phnn

CHANNELS, SIZE = 512, 14  # a layer has 2.4 million parameters when it is folded


def measure(count: int) -> dict[str, int]:
    """Return the bytes of the folded model, of what is returned, and the peak beyond both."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [phnn.PHConv2d(CHANNELS, CHANNELS, 3, padding=1, n=4) for _ in range(count)]
    model = nn.Sequential(*layers).eval()
    x = torch.randn(1, CHANNELS, SIZE, SIZE)
    with torch.no_grad():
        model(x)  # what torch needs for any convolution
    gc.collect()
    dense = 4 * sum(layer.weight.numel() for layer in layers)
    before = current()
    fast = phnn.accelerate(model, x, rounds=1, seconds=1.0)
    returned = sum(parameter.nbytes for parameter in fast.parameters())
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"dense": dense, "returned": returned, "extra": peak - before - returned}


def current() -> int:
    """Return the bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
