"""What a model keeps at several sizes, before one of them is chosen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn

from phnn.conversion.calibration import Calibration, Forward, evaluating
from phnn.conversion.converting import convert
from phnn.conversion.fitting import Progress
from phnn.conversion.report import Point, Report

__all__ = ["BUDGETS", "tradeoff"]

BUDGETS = (0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1)


def tradeoff(
    model: nn.Module,
    budgets: Sequence[float] = BUDGETS,
    *,
    calibration: Any,
    forward: Forward | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[Point]:
    """Convert a model to several budgets and yield what each costs and keeps, as it comes.

    Nothing is chosen and no model is returned. `phnn.lab.draw_tradeoff` draws the points.

    Args:
        model: Any model; it is not changed.
        budgets: Shares of its parameters; those that cannot be met are left out.
        calibration: Data without labels, as `convert` takes them.
        forward: How a batch of the data is fed.
        evaluate: A function of a model that returns its score.
        cache: A folder that keeps what was measured of the layers; a temporary one by default.
        progress: Called with what is done, how far, and of how much.
        options: More options of `convert`, such as `kinds` or `exclude`.

    Yields:
        The original, then one point for each budget.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        >>> points = tradeoff(model, [0.5, 0.25], calibration=torch.randn(64, 64))
        >>> [point.parameters for point in points][0]
        16576
    """
    for budget in budgets:
        if not 0 < budget < 1:
            raise ValueError(f"budgets are shares of the parameters in (0, 1), got {budget}")
    if not budgets:
        raise ValueError("give at least one budget")
    # once: an iterator of batches is empty the second time
    calls = Calibration(model, calibration, forward).calls
    options = {**options, "calibration": calls, "forward": forward, "progress": progress}
    return _convert_each(model, list(budgets), evaluate, cache, options)


def _convert_each(
    model: nn.Module,
    budgets: list[float],
    evaluate: Callable[[nn.Module], float] | None,
    cache: str | os.PathLike[str] | None,
    options: dict[str, Any],
) -> Iterator[Point]:
    original: Point | None = None
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if cache is None else cache
        refusal: ValueError | None = None
        for budget in sorted(budgets, reverse=True):
            try:
                small = convert(model, budget=budget, cache=folder, **options)
            except ValueError as error:
                if "cannot be met" not in str(error):
                    raise
                refusal = error
                break  # nor can smaller ones
            report = small.phnn_report
            assert isinstance(report, Report)
            if original is None:
                score = _score(evaluate, model)
                original = Point(
                    1.0, report.parameters_before, report.multiplications_before, 0.0, score
                )
                yield original
            yield Point(
                budget,
                report.parameters_after,
                report.multiplications_after,
                report.distance,
                _score(evaluate, small),
            )
        if original is None and refusal is not None:
            raise refusal


def _score(evaluate: Callable[[nn.Module], float] | None, model: nn.Module) -> float | None:
    if evaluate is None:
        return None
    with evaluating(model):
        return float(evaluate(model))
