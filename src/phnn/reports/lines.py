"""The lines of a comparison's table: each variant over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phnn.tasks.compare import Comparison, Outcome, Variant
from phnn.tasks.training.energy import PAPER_POWER, estimate_co2

MEGABYTE = 10**6


@dataclass(frozen=True)
class Line:
    """One variant of a table, over its seeds.

    Attributes:
        family: The recipe.
        variant: The variant's name.
        seeds: Of the runs that have ended.
        failed: Number of runs that failed.
        waiting: Number of runs that have not ended yet.
        parameters: Number of parameters.
        parameters_percent: Of the baseline's.
        storage_mb: Size of the saved file in megabytes.
        accuracy: On the test part, in percent, mean over the seeds.
        accuracy_std: Standard deviation over the seeds; None with one run.
        paper: The paper's accuracy, as printed.
        p_value: Of a paired t-test against the baseline; None where it is undefined.
        train_seconds_per_100: Seconds for 100 iterations, mean over an epoch and the seeds.
        train_seconds_per_100_std: Standard deviation over the iterations of an epoch.
        test_seconds: Seconds to answer for the test part.
        hours: Of training, all seeds together.
        energy_kwh: Measured by codecarbon, all seeds together.
        co2_kg: Measured by codecarbon, all seeds together.
        co2_kg_paper: By the paper's estimate: hours × power × 0.445 kg/kWh.
        threads: CPU threads of a run.
    """

    family: str
    variant: str
    seeds: tuple[int, ...]
    failed: int
    waiting: int
    parameters: int | None = None
    parameters_percent: float | None = None
    storage_mb: float | None = None
    accuracy: float | None = None
    accuracy_std: float | None = None
    paper: str | None = None
    p_value: float | None = None
    train_seconds_per_100: float | None = None
    train_seconds_per_100_std: float | None = None
    test_seconds: float | None = None
    hours: float | None = None
    energy_kwh: float | None = None
    co2_kg: float | None = None
    co2_kg_paper: float | None = None
    threads: int | None = None


def summarize(
    comparison: Comparison, outcomes: Sequence[Outcome], power: float = PAPER_POWER
) -> list[Line]:
    """Returns the lines of a comparison's table.

    Args:
        comparison: What was compared.
        outcomes: What became of its runs.
        power: Of the hardware in watts, for the paper's estimate of CO2.
    """
    baselines = {
        variant.family: _results(variant, outcomes)
        for variant in comparison.variants
        if variant.baseline
    }
    return [
        _line(variant, outcomes, baselines.get(variant.family, {}), power)
        for variant in comparison.variants
    ]


def _results(variant: Variant, outcomes: Sequence[Outcome]) -> dict[int, dict[str, Any]]:
    """Returns the results of a variant by their seeds."""
    mine = [outcome for outcome in outcomes if outcome.run.variant == variant]
    return {outcome.run.seed: outcome.result for outcome in mine if outcome.result is not None}


def _line(
    variant: Variant,
    outcomes: Sequence[Outcome],
    baseline: dict[int, dict[str, Any]],
    power: float,
) -> Line:
    results = _results(variant, outcomes)
    failed = sum(o.run.variant == variant and o.error is not None for o in outcomes)
    waiting = len(variant.seeds) - len(results) - failed
    if not results:
        return Line(variant.family, variant.name, (), failed, waiting, paper=variant.paper)
    runs = list(results.values())
    accuracies = [100 * run["test_accuracy"] for run in runs]
    whole = next((run["parameters"] for run in baseline.values()), None)
    seconds = sum(run["train_seconds"] for run in runs)
    return Line(
        family=variant.family,
        variant=variant.name,
        seeds=tuple(results),
        failed=failed,
        waiting=waiting,
        parameters=runs[0]["parameters"],
        parameters_percent=None if whole is None else 100 * runs[0]["parameters"] / whole,
        storage_mb=runs[0]["storage_bytes"] / MEGABYTE,
        accuracy=statistics.mean(accuracies),
        accuracy_std=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        paper=variant.paper,
        p_value=None if variant.baseline else paired_p_value(results, baseline),
        train_seconds_per_100=_mean(runs, "train_seconds_per_100"),
        train_seconds_per_100_std=_mean(runs, "train_seconds_per_100_std"),
        test_seconds=_mean(runs, "test_seconds"),
        hours=seconds / 3600,
        energy_kwh=_total(runs, "energy_kwh"),
        co2_kg=_total(runs, "co2_kg"),
        co2_kg_paper=estimate_co2(seconds, power),
        threads=runs[0]["threads"],
    )


def _mean(runs: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run[key] is not None]
    return statistics.mean(values) if values else None


def _total(runs: Sequence[dict[str, Any]], key: str) -> float | None:
    """Returns the sum, or None when a run lacks the value: a part would look like the whole."""
    values = [run[key] for run in runs]
    return None if None in values else sum(values)


def paired_p_value(
    results: dict[int, dict[str, Any]], baseline: dict[int, dict[str, Any]]
) -> float | None:
    """Returns the p-value of a paired t-test over the seeds that both have.

    Args:
        results: By seed.
        baseline: By seed.

    Returns:
        None with fewer than two pairs, or when all differences are equal: it is undefined then.
    """
    seeds = sorted(results.keys() & baseline.keys())
    ours = [results[seed]["test_accuracy"] for seed in seeds]
    theirs = [baseline[seed]["test_accuracy"] for seed in seeds]
    if len({a - b for a, b in zip(ours, theirs, strict=True)}) < 2:
        return None
    from scipy.stats import ttest_rel

    return float(ttest_rel(ours, theirs).pvalue)
