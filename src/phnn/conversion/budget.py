"""Which size of each layer keeps a network within its limits at the least total error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phnn.conversion.candidates import Candidate

__all__ = ["Limits", "choose"]

RATIOS = tuple(4.0**k for k in range(-6, 7))  # prices of a multiplication against a parameter


@dataclass(frozen=True)
class Limits:
    """What the converted layers may have together; infinite where nothing limits them."""

    parameters: float = math.inf
    multiplications: float = math.inf

    def hold(self, chosen: Mapping[str, Candidate]) -> bool:
        """Return whether a choice stays within both limits."""
        return (
            sum(c.parameters for c in chosen.values()) <= self.parameters
            and sum(c.multiplications for c in chosen.values()) <= self.multiplications
        )


def choose(
    candidates: Mapping[str, Sequence[Candidate]], limits: Limits
) -> dict[str, Candidate] | None:
    """Choose a size for each layer; None when the smallest sizes exceed the limits.

    The cost of a choice is the sum over its layers. With a price on parameters and on
    multiplications each layer takes its own optimum, and the lowest prices that meet the limits are
    found by bisection. What the last step leaves over is spent on the best offers.
    """
    ratios: tuple[float, ...] = RATIOS
    if math.isinf(limits.multiplications):
        ratios = (0.0,)
    elif math.isinf(limits.parameters):
        ratios = (math.inf,)
    best: dict[str, Candidate] | None = None
    for ratio in ratios:
        chosen = _bisect(candidates, limits, ratio)
        if chosen is None:
            continue
        chosen = _spend(candidates, limits, chosen)
        if best is None or _total(chosen) < _total(best):
            best = chosen
    if best is None:
        chosen = _repair(candidates, limits)
        best = None if chosen is None else _spend(candidates, limits, chosen)
    return best


def _total(chosen: Mapping[str, Candidate]) -> float:
    return sum(candidate.cost for candidate in chosen.values())


def _bisect(
    candidates: Mapping[str, Sequence[Candidate]], limits: Limits, ratio: float
) -> dict[str, Candidate] | None:
    most = _largest(candidates)

    def weigh(candidate: Candidate) -> float:
        parameters = candidate.parameters / most[0]
        multiplications = candidate.multiplications / max(most[1], 1)
        return multiplications if math.isinf(ratio) else parameters + ratio * multiplications

    def at(price: float) -> dict[str, Candidate]:
        return {
            name: min(options, key=lambda c: (c.cost + price * weigh(c), weigh(c)))
            for name, options in candidates.items()
        }

    low, high = 1e-9, 1e12
    found = at(high)
    if not limits.hold(found):
        return None
    for _ in range(60):
        middle = math.sqrt(low * high)
        chosen = at(middle)
        if limits.hold(chosen):
            high, found = middle, chosen
        else:
            low = middle
    return found


def _repair(
    candidates: Mapping[str, Sequence[Candidate]], limits: Limits
) -> dict[str, Candidate] | None:
    """Look for any choice within the limits, where no price leads to one: layer by layer."""
    parameters, multiplications = max(limits.parameters, 1), max(limits.multiplications, 1)

    def excess(chosen: Mapping[str, Candidate]) -> float:
        size = sum(c.parameters for c in chosen.values()) / parameters
        work = sum(c.multiplications for c in chosen.values()) / multiplications
        return max(size - 1, 0) + max(work - 1, 0)

    chosen = {
        name: min(
            options, key=lambda c: c.parameters / parameters + c.multiplications / multiplications
        )
        for name, options in candidates.items()
    }
    for _ in range(len(candidates)):
        for name, options in candidates.items():
            chosen[name] = min(options, key=lambda c, name=name: excess({**chosen, name: c}))  # type: ignore[misc]
        if limits.hold(chosen):
            return chosen
    return None


def _largest(candidates: Mapping[str, Sequence[Candidate]]) -> tuple[float, float]:
    return (
        sum(max(c.parameters for c in options) for options in candidates.values()),
        sum(max(c.multiplications for c in options) for options in candidates.values()),
    )


def _spend(
    candidates: Mapping[str, Sequence[Candidate]], limits: Limits, chosen: dict[str, Candidate]
) -> dict[str, Candidate]:
    """Take the step that saves the most for what it takes of the limits, as long as one fits."""
    chosen = dict(chosen)
    while True:
        parameters = limits.parameters - sum(c.parameters for c in chosen.values())
        multiplications = limits.multiplications - sum(c.multiplications for c in chosen.values())
        best: tuple[float, str, Candidate] | None = None
        for name, options in candidates.items():
            now = chosen[name]
            for option in options:
                more = option.parameters - now.parameters
                work = option.multiplications - now.multiplications
                gain = now.cost - option.cost
                if gain <= 0 or more > parameters or work > multiplications:
                    continue
                taken = max(more / max(parameters, 1), work / max(multiplications, 1), 1e-9)
                if best is None or gain / taken > best[0]:
                    best = gain / taken, name, option
        if best is None:
            return chosen
        chosen[best[1]] = best[2]
