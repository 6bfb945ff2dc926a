"""Seconds of calls, side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def interleave(
    contenders: Mapping[Key, Callable[[], object]],
    rounds: int = 7,
    warmup: int = 2,
    seconds: float = 0.0,
    tick: Callable[[float], None] | None = None,
) -> dict[Key, float]:
    """Return the least seconds of each contender.

    They take turns, so that a busy machine hits all alike.

    Args:
        contenders: What to call.
        rounds: Timed calls of each.
        warmup: Calls of each before.
        seconds: Go on with more rounds until all together took as long: short calls are noisy.
        tick: Called after each round with the share of the work that is done.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got rounds={rounds}")
    for _ in range(warmup):
        for call in contenders.values():
            call()
    times: dict[Key, list[float]] = {key: [] for key in contenders}
    done, spent = 0, 0.0
    while done < rounds or 0.0 < spent < seconds:
        for key, call in contenders.items():
            start = time.perf_counter()
            call()
            times[key].append(time.perf_counter() - start)
            spent += times[key][-1]
        done += 1
        if tick is not None:
            tick(min(done / rounds, spent / seconds if seconds else 1.0, 1.0))
    return {key: min(values) for key, values in times.items()}


def median_ratio(
    call: Callable[[], object], reference: Callable[[], object], rounds: int = 15
) -> float:
    """Return the median ratio of neighbouring measurements: drift of the machine cancels.

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
