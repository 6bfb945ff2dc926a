"""Summaries of variants over their seeds: the rows of a comparison's table."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from phnn.lab.comparison import TIMES, Comparison
from phnn.lab.paper.emissions import POWER, estimate_co2
from phnn.lab.runs import RESULT, Run, RunFolderError
from phnn.lab.tasks import Score, Task
from phnn.lab.tasks.task import resolve

MEBIBYTE = 2**20
NEEDED = ("parameters", "storage_bytes", "train_seconds")  # numbers of a result, beside its scores
COUNTS = ("parameters", "conv_parameters")  # of which there is one at least
OPTIONAL = (
    "conv_parameters", "train_seconds_per_100", "train_seconds_per_100_std", "test_seconds",
    "energy_kwh", "co2_kg", "threads",
)  # fmt: skip
LARGEST = 1e30  # of any number of a result


class Spread(NamedTuple):
    """A score over the seeds.

    Attributes:
        mean: The mean, in the score's unit.
        std: The standard deviation; None with one run.
    """

    mean: float
    std: float | None


@dataclass(frozen=True)
class Summary:
    """One variant of a table, over its seeds.

    Attributes:
        family: The recipe.
        variant: The network.
        task: The task of the network.
        seeds: The seeds of the runs that have ended.
        failed: The number of runs that failed.
        waiting: The number of runs that have not ended yet.
        baseline: Whether the others of the family are compared with it.
        parameters: The number of parameters.
        parameters_percent: The same in percent of the baseline's.
        conv_parameters: The number of parameters of the convolutions, where the task counts it.
        conv_parameters_percent: The same in percent of the baseline's.
        storage_mib: The size of the saved file in MiB, as the paper has it.
        scores: The scores on the test split, by name; empty before a run has ended.
        validation: The validation score of the tested epoch; None without a validation split.
        validation_name: What the validation score is.
        paper: What the paper prints: scores by name, and times as `Variant` has them.
        options: The options of the learner that tables of this task name.
        p_value: The p-value of a paired t-test of the primary score against the baseline; None
            where it is undefined.
        train_seconds_per_100: Seconds for 100 iterations, mean over an epoch and the seeds.
        train_seconds_per_100_std: The standard deviation over the iterations of an epoch.
        val_seconds: Seconds for an iteration on the validation split.
        test_seconds: Seconds for the test split.
        hours: Hours of training, all seeds together.
        energy_kwh: Energy measured by codecarbon, all seeds together.
        co2_kg: CO2 measured by codecarbon, all seeds together.
        co2_kg_paper: The paper's estimate of CO2: hours × power × 0.445 kg/kWh.
        threads: The CPU threads of a run.
    """

    family: str
    variant: str
    task: Task
    seeds: tuple[int, ...]
    failed: int
    waiting: int
    baseline: bool = False
    parameters: int | None = None
    parameters_percent: float | None = None
    conv_parameters: int | None = None
    conv_parameters_percent: float | None = None
    storage_mib: float | None = None
    scores: Mapping[str, Spread] = field(default_factory=dict)
    validation: Spread | None = None
    validation_name: str | None = None
    paper: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    p_value: float | None = None
    train_seconds_per_100: float | None = None
    train_seconds_per_100_std: float | None = None
    val_seconds: float | None = None
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
        """Return the summary for files: the task by its name, each score as NAME and NAME_std.

        The paper's primary score is `paper`, its other numbers are `paper_NAME`.
        """
        row: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            if name == "scores":
                for score in self.task.scores:
                    spread = self.scores.get(score.name, (None, None))
                    row[score.name], row[f"{score.name}_std"] = spread
            elif name == "validation":
                row[name], row[f"{name}_std"] = self.validation or (None, None)
            elif name == "paper":
                for column, key in _paper_columns(self.task).items():
                    row[column] = self.paper.get(key)
            elif name == "options":
                row |= {option: self.options.get(option) for option in self.task.shown}
            else:
                row[name] = getattr(self, name)
        return {**row, "task": self.task.name}


class Row(NamedTuple):
    """What a row of a comparison's table stands for, before any run.

    Attributes:
        family: The recipe.
        variant: The network.
        baseline: Whether the others of the family are compared with it.
        paper: What the paper prints, see `Summary`.
    """

    family: str
    variant: str
    baseline: bool
    paper: Mapping[str, str]

    @classmethod
    def read(cls, row: Mapping[str, Any], task: Task) -> Row:
        """Return the row of a summary that `Summary.to_row` wrote."""
        printed = {key: row.get(column) for column, key in _paper_columns(task).items()}
        paper = {key: text for key, text in printed.items() if text is not None}
        baseline = row.get("baseline", row["parameters_percent"] == 100)  # older rows have none
        return cls(row["family"], row["variant"], baseline, paper)


def _paper_columns(task: Task) -> dict[str, str]:
    """Return the names of the columns with the paper's numbers, and what they are."""
    others = [*(score.name for score in task.scores[1:]), *TIMES]
    return {"paper": task.primary.name, **{f"paper_{name}": name for name in others}}


def summarize(comparison: Comparison, runs: Sequence[Run], power: float = POWER) -> list[Summary]:
    """Return a summary of each variant of a comparison.

    Args:
        comparison: Gives the variants, their baselines and the paper's scores.
        runs: The runs of the comparison.
        power: The power of the hardware in watts, for the paper's estimate of CO2.
    """
    rows = [Row(v.family, v.name, v.baseline, v.paper) for v in comparison.variants]
    return summarize_rows(comparison.task, rows, runs, power)


def summarize_rows(
    task: Task, rows: Sequence[Row], runs: Sequence[Run], power: float = POWER
) -> list[Summary]:
    """Return a summary of each row of a table.

    Args:
        task: The task of the networks.
        rows: The rows.
        runs: The runs of all rows.
        power: The power of the hardware in watts, for the paper's estimate of CO2.
    """
    members: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        members[run.family, run.variant].append(run)
    baselines = {row.family: members[row.family, row.variant] for row in rows if row.baseline}
    return [
        summarize_row(
            task,
            row,
            members[row.family, row.variant],
            baseline=baselines.get(row.family, ()),
            power=power,
        )
        for row in rows
    ]


def summarize_row(
    task: Task,
    row: Row,
    runs: Sequence[Run],
    *,
    baseline: Sequence[Run] = (),
    power: float = POWER,
) -> Summary:
    """Return the summary of a row.

    Args:
        task: The task of the network.
        row: The variant.
        runs: Its runs.
        baseline: The runs of the variant to compare with.
        power: The power of the hardware in watts, for the paper's estimate of CO2.
    """
    by_seed, others = _collect_results(runs, task), _collect_results(baseline, task)
    failed = sum(run.status == "failed" for run in runs)
    waiting = sum(run.status == "waiting" for run in runs)
    summary = Summary(
        row.family,
        row.variant,
        task,
        tuple(by_seed),
        failed,
        waiting,
        baseline=row.baseline,
        paper=row.paper,
    )
    if not by_seed:
        return summary
    results = list(by_seed.values())
    first, whole = results[0], next(iter(others.values()), {})
    seconds = sum(result["train_seconds"] for result in results)
    return replace(
        summary,
        parameters=first["parameters"],
        parameters_percent=_percent(first, whole, "parameters"),
        conv_parameters=first.get("conv_parameters"),
        conv_parameters_percent=_percent(first, whole, "conv_parameters"),
        storage_mib=first["storage_bytes"] / MEBIBYTE,
        scores={score.name: _spread(by_seed, score) for score in task.scores},
        **_summarize_validation(task, results),
        options=_find_options(task, first),
        p_value=paired_p_value(
            _get_scores(by_seed, task.primary), _get_scores(others, task.primary)
        ),
        train_seconds_per_100=_mean(results, "train_seconds_per_100"),
        train_seconds_per_100_std=_mean(results, "train_seconds_per_100_std"),
        val_seconds=_mean(results, "val_seconds"),
        test_seconds=_mean(results, "test_seconds"),
        hours=seconds / 3600,
        energy_kwh=_total(results, "energy_kwh"),
        co2_kg=_total(results, "co2_kg"),
        co2_kg_paper=estimate_co2(seconds, power),
        threads=first.get("threads"),
    )


def _collect_results(runs: Sequence[Run], task: Task) -> dict[int, dict[str, Any]]:
    """Return the results of finished runs by their seeds, with the numbers that a table needs.

    Raises:
        RunFolderError: A result lacks one.
    """
    found = {}
    for run in runs:
        if run.result is None:
            continue
        needed = (*NEEDED, *(f"test_{score.name}" for score in task.scores))
        given = [key for key in run.result if key.startswith("val_") or key in OPTIONAL]
        for key in (*needed, *(key for key in given if run.result[key] is not None)):
            value = run.result.get(key)
            if not _is_number(value, least=1 if key in COUNTS else -LARGEST):
                raise RunFolderError(
                    f"{run.folder / RESULT} is damaged ({key} is {str(value)[:80]}); delete it and "
                    "run again"
                )
        found[run.seed] = run.result
    return found


def _is_number(value: object, least: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value != value or least <= value <= LARGEST  # a score may be nan


def _get_scores(results: Mapping[int, dict[str, Any]], score: Score) -> dict[int, float]:
    """Return a score by seed, in its unit."""
    return {seed: score.scale * result[f"test_{score.name}"] for seed, result in results.items()}


def _spread(results: Mapping[int, dict[str, Any]], score: Score) -> Spread:
    values = list(_get_scores(results, score).values())
    return Spread(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)


def _percent(part: Mapping[str, Any], whole: Mapping[str, Any], key: str) -> float | None:
    both = part.get(key) is not None and whole.get(key) is not None
    return 100 * part[key] / whole[key] if both else None


def _mean(results: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [result[key] for result in results if result.get(key) is not None]
    return statistics.mean(values) if values else None


def _summarize_validation(task: Task, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the validation score that chose the tested epochs, where all runs have one."""
    names = [key for key in results[0] if key.startswith("val_") and key != "val_seconds"]
    if not names or any(result.get(names[0]) is None for result in results):
        return {}
    name = names[0].removeprefix("val_")
    scale = next((score.scale for score in task.scores if score.name == name), 1)
    values = [scale * result[names[0]] for result in results]
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"validation": Spread(statistics.mean(values), std), "validation_name": name}


def _find_options(task: Task, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the learner that tables name; older results have the defaults."""
    if not task.shown or task.learner_options is None:
        return {}
    given = (result.get("recipe") or {}).get("learner") or {}
    options = resolve(task.learner_options)(**given)
    return {name: getattr(options, name) for name in task.shown}


def _total(results: Sequence[dict[str, Any]], key: str) -> float | None:
    """Return the sum, or None when a run lacks the value: a partial sum would mislead."""
    values: list[Any] = [result.get(key) for result in results]
    return None if None in values else sum(values)


def paired_p_value(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float | None:
    """Return the p-value of a paired t-test over the seeds that both have.

    Args:
        ours: Scores by seed.
        theirs: Scores by seed.

    Returns:
        The p-value; None where it is undefined, with fewer than two pairs or equal differences.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if len({ours[seed] - theirs[seed] for seed in seeds}) < 2:
        return None
    from scipy.stats import ttest_rel

    return float(ttest_rel([ours[s] for s in seeds], [theirs[s] for s in seeds]).pvalue)
