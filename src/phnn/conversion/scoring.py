"""The smallest network whose score the user accepts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from phnn.conversion.calibration import Calibration, evaluating
from phnn.conversion.candidates import Family
from phnn.conversion.decisions import Decision
from phnn.conversion.fitting import Progress
from phnn.conversion.opening import fuse_opened
from phnn.conversion.report import Point
from phnn.conversion.shrinking import Shrinker, Shrunk, summarize

__all__ = ["shrink_by_score"]

BUDGETS = (0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1)  # where the search begins
HALVINGS = 2  # steps between the last budget that is accepted and the first that is not
WRECKED = 0.5  # share of the outputs' variance that a network has lost when no score should rise


def shrink_by_score(
    model: nn.Module,
    decisions: Sequence[Decision],
    calibration: Calibration,
    evaluate: Callable[[nn.Module], float],
    tolerance: float,
    *,
    relative: bool,
    lower_is_better: bool,
    family: Family,
    cache: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> Shrunk:
    """Find the smallest network whose score falls by no more than the tolerance.

    Budgets are tried from large to small, and the interval between the last that is accepted and
    the first that is not is halved twice.
    """
    shrinker = Shrinker(model, decisions, calibration, family, cache, progress)
    original_model = fuse_opened(model)
    with evaluating(original_model):
        original = _score(evaluate, original_model)
    allowed = tolerance * abs(original) if relative else tolerance
    curve = [Point(1.0, shrinker.total, shrinker.multiplications, 0.0, original)]

    def attempt(budget: float) -> Shrunk | None:
        chosen = shrinker.choose(budget, None, lambda candidate: True)
        if chosen is None:
            return None
        shrinker.progress("searching budgets", len(curve), len(BUDGETS) + HALVINGS)
        fitted = shrinker.fit(chosen)
        network = fuse_opened(fitted.model)
        with evaluating(network):
            score = _score(evaluate, network)
        work = shrinker.count_work(chosen)
        size = shrinker.fixed + sum(candidate.parameters for candidate in chosen.values())
        curve.append(Point(budget, size, work["multiplications_after"], fitted.distance, score))
        fall = score - original if lower_is_better else original - score
        if fall < -allowed and fitted.distance > WRECKED:
            better = "lower" if lower_is_better else "higher"
            raise ValueError(
                f"the score goes from {original:.4g} to {score:.4g} with {budget:.0%} of the "
                f"parameters, which lose {fitted.distance:.0%} of the outputs' variance; a "
                f"{better} score should not be better: give "
                f"lower_is_better={not lower_is_better}, or another evaluate"
            )
        if fall > allowed:
            return None
        summary = {**summarize(fitted), **work, "done": ["layers fitted in order"]}
        return Shrunk(shrinker.decide(chosen), fitted.fits, summary=summary)

    best: Shrunk | None = None
    accepted, refused = 1.0, 0.0
    for budget in BUDGETS:
        found = attempt(budget)
        if found is None:
            refused = budget
            break
        best, accepted = found, budget
    for _ in range(HALVINGS if refused else 0):
        middle = (accepted + refused) / 2
        found = attempt(middle)
        if found is None:
            refused = middle
        else:
            best, accepted = found, middle
    if best is None:
        scores = ", ".join(f"{point.budget:.2f}: {point.score:.4g}" for point in curve)
        raise ValueError(
            f"no smaller network keeps the score within tolerance={tolerance} of {original:.4g} "
            f"(budget: score {scores}); raise the tolerance, or check that the score is better "
            f"when it is {'lower' if lower_is_better else 'higher'}"
        )
    points = tuple(replace(point, chosen=point.budget == accepted) for point in curve)
    return replace(best, summary={**best.summary, "curve": points})


def _score(evaluate: Callable[[nn.Module], float], model: nn.Module) -> float:
    value = evaluate(model)
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError(f"evaluate must return a finite number, got {value!r}")
    return score
