"""What a call costs: seconds, side by side with others, and multiplications."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from phnn.surgery.calls import leaves

Output = TypeVar("Output")


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int = 7,
    warmup: int = 2,
    seconds: float = 0.0,
) -> dict[str, float]:
    """Least seconds of each contender; they take turns, so that a busy machine hits all alike.

    Args:
        contenders: What to call, by name.
        rounds: Timed calls of each.
        warmup: Calls of each before.
        seconds: Go on with more rounds until all together took as long: short calls are noisy.
    """
    for _ in range(warmup):
        for call in contenders.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    done, spent = 0, 0.0
    while done < rounds or 0.0 < spent < seconds:
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
            spent += times[name][-1]
        done += 1
    return {name: min(values) for name, values in times.items()}


def median_ratio(
    call: Callable[[], object], reference: Callable[[], object], rounds: int = 15
) -> float:
    """Median of the ratios of neighbouring measurements: drift of the machine cancels.

    Args:
        call: What is timed.
        reference: What it is compared with.
        rounds: Pairs of calls.
    """
    ratios = []
    for _ in range(rounds):
        times = interleave({"call": call, "reference": reference}, rounds=1, warmup=0)
        ratios.append(times["call"] / times["reference"])
    return statistics.median(ratios)


def count_multiplications(model: nn.Module, *inputs: Tensor) -> int:
    """Multiplications of convolutions and matrix products in one inference.

    Args:
        model: The model, in evaluation mode.
        inputs: What it runs on, one after the other.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        for x in inputs:
            model(x)
    return int(counter.get_total_flops()) // 2  # each comes with an addition


def wait(output: Output) -> Output:
    """Returns what a model returned when its device is done."""
    if any(tensor.device.type != "cpu" for tensor in leaves(output)):
        torch.accelerator.synchronize()
    return output
