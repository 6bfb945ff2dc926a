"""The lines of a comparison's table: each variant over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from phnn.lab.comparison import Comparison, Variant
from phnn.lab.runs import Run
from phnn.lab.tasks import Score, Task, find_task
from phnn.lab.training.energy import PAPER_POWER, estimate_co2

MEGABYTE = 10**6


class Spread(NamedTuple):
    """A score over the seeds.

    Attributes:
        mean: In the score's unit.
        std: Standard deviation; None with one run.
    """

    mean: float
    std: float | None


@dataclass(frozen=True)
class Line:
    """One variant of a table, over its seeds.

    Attributes:
        family: The recipe.
        variant: The variant's name.
        task: What it was trained for.
        seeds: Of the runs that have ended.
        failed: Number of runs that failed.
        waiting: Number of runs that have not ended yet.
        parameters: Number of parameters.
        parameters_percent: Of the baseline's.
        conv_parameters: Number of parameters of the convolutions, where the task tells it.
        conv_parameters_percent: Of the baseline's.
        storage_mb: Size of the saved file in megabytes.
        scores: On the test part, by name; none before a run has ended.
        paper: The paper's primary score, as printed.
        p_value: Of a paired t-test of the primary score against the baseline; None where it is
            undefined.
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
    task: Task
    seeds: tuple[int, ...]
    failed: int
    waiting: int
    parameters: int | None = None
    parameters_percent: float | None = None
    conv_parameters: int | None = None
    conv_parameters_percent: float | None = None
    storage_mb: float | None = None
    scores: Mapping[str, Spread] = field(default_factory=dict)
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

    @property
    def score(self) -> Spread | None:
        """The task's primary score; None before a run has ended."""
        return self.scores.get(self.task.primary.name)

    def to_row(self) -> dict[str, Any]:
        """Returns the line for files: its task by name, each score as NAME and NAME_std."""
        row: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            if name == "scores":
                for score in self.task.scores:
                    spread = self.scores.get(score.name, (None, None))
                    row[score.name], row[f"{score.name}_std"] = spread
            else:
                row[name] = getattr(self, name)
        return {**row, "task": self.task.name}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Line:
        """Returns the line that `to_row` wrote."""
        task = find_task(row["task"])
        scores = {
            score.name: Spread(row[score.name], row[f"{score.name}_std"])
            for score in task.scores
            if row[score.name] is not None
        }
        plain = {f.name: row[f.name] for f in fields(cls) if f.name != "scores"}
        return cls(**{**plain, "task": task, "seeds": tuple(row["seeds"]), "scores": scores})


def summarize(
    comparison: Comparison, outcomes: Sequence[Run], power: float = PAPER_POWER
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
        _line(comparison.task, variant, outcomes, baselines.get(variant.family, {}), power)
        for variant in comparison.variants
    ]


def _results(variant: Variant, outcomes: Sequence[Run]) -> dict[int, dict[str, Any]]:
    """Returns the results of a variant by their seeds."""
    mine = [run for run in outcomes if _is_of(run, variant)]
    return {run.seed: run.result for run in mine if run.result is not None}


def _is_of(run: Run, variant: Variant) -> bool:
    return (run.family, run.variant) == (variant.family, variant.name)


def _line(
    task: Task,
    variant: Variant,
    outcomes: Sequence[Run],
    baseline: dict[int, dict[str, Any]],
    power: float,
) -> Line:
    results = _results(variant, outcomes)
    failed = sum(_is_of(run, variant) and run.error is not None for run in outcomes)
    waiting = len(variant.seeds) - len(results) - failed
    if not results:
        return Line(variant.family, variant.name, task, (), failed, waiting, paper=variant.paper)
    runs = list(results.values())
    whole = next(iter(baseline.values()), {})
    seconds = sum(run["train_seconds"] for run in runs)
    return Line(
        family=variant.family,
        variant=variant.name,
        task=task,
        seeds=tuple(results),
        failed=failed,
        waiting=waiting,
        parameters=runs[0]["parameters"],
        parameters_percent=_percent(runs[0], whole, "parameters"),
        conv_parameters=runs[0].get("conv_parameters"),
        conv_parameters_percent=_percent(runs[0], whole, "conv_parameters"),
        storage_mb=runs[0]["storage_bytes"] / MEGABYTE,
        scores={score.name: _spread(results, score) for score in task.scores},
        paper=variant.paper,
        p_value=None
        if variant.baseline
        else paired_p_value(_values(results, task.primary), _values(baseline, task.primary)),
        train_seconds_per_100=_mean(runs, "train_seconds_per_100"),
        train_seconds_per_100_std=_mean(runs, "train_seconds_per_100_std"),
        test_seconds=_mean(runs, "test_seconds"),
        hours=seconds / 3600,
        energy_kwh=_total(runs, "energy_kwh"),
        co2_kg=_total(runs, "co2_kg"),
        co2_kg_paper=estimate_co2(seconds, power),
        threads=runs[0]["threads"],
    )


def _values(results: Mapping[int, dict[str, Any]], score: Score) -> dict[int, float]:
    """Returns a score by seed, in its unit."""
    return {seed: score.scale * run[f"test_{score.name}"] for seed, run in results.items()}


def _spread(results: Mapping[int, dict[str, Any]], score: Score) -> Spread:
    values = list(_values(results, score).values())
    return Spread(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)


def _percent(part: Mapping[str, Any], whole: Mapping[str, Any], key: str) -> float | None:
    return 100 * part[key] / whole[key] if key in part and key in whole else None


def _mean(runs: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run[key] is not None]
    return statistics.mean(values) if values else None


def _total(runs: Sequence[dict[str, Any]], key: str) -> float | None:
    """Returns the sum, or None when a run lacks the value: a part would look like the whole."""
    values = [run[key] for run in runs]
    return None if None in values else sum(values)


def paired_p_value(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float | None:
    """Returns the p-value of a paired t-test over the seeds that both have.

    Args:
        ours: Scores by seed.
        theirs: Scores by seed.

    Returns:
        None with fewer than two pairs, or when all differences are equal: it is undefined then.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if len({ours[seed] - theirs[seed] for seed in seeds}) < 2:
        return None
    from scipy.stats import ttest_rel

    return float(ttest_rel([ours[s] for s in seeds], [theirs[s] for s in seeds]).pvalue)
