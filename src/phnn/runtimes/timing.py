"""What a call costs: seconds, side by side with others, and multiplications."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from phnn.acceleration.calls import leaves

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
    if rounds < 1:
        raise ValueError(f"rounds is at least 1, got rounds={rounds}")
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


@contextmanager
def compiling(models: Mapping[str, nn.Module]) -> Iterator[dict[str, nn.Module]]:
    """The models, to be compiled when they are called first, inside.

    All of them, and each for its own sizes: of one class torch would leave those after the eighth
    as they are, and after a few it would guess that the sizes of all differ.
    """
    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    parts = 64  # of a model whose graph breaks, in evaluation and in training
    with config.patch({limit: parts * len(models)}):
        yield {
            name: cast("nn.Module", torch.compile(model, dynamic=False))
            for name, model in models.items()
        }


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
