"""What a study optimizes: scores on the validation split, and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from phnn._names import check_choices
from phnn.lab.files import FileError, read_number
from phnn.lab.runs import METRICS
from phnn.lab.tasks.task import Score, Task

# what a network costs, and where the outcome of a run has it
COSTS = {
    "parameters": (Score("parameters", "parameters", digits=0, higher=False), "parameters"),
    "time": (Score("time", "training time", "s", digits=1, higher=False), "train_seconds"),
}


@dataclass(frozen=True)
class Objective:
    """A number to make large or small.

    Attributes:
        score: Its name, its unit and its direction.
        cost: Where the outcome of a run has it; None for a score of the validation split.
    """

    score: Score
    cost: str | None = None

    @property
    def name(self) -> str:
        """The name, as the user gives it."""
        return self.score.name

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """The direction, by Optuna's words."""
        return "maximize" if self.score.higher else "minimize"

    def measure(self, folder: Path, outcome: Mapping[str, Any]) -> float:
        """Return the number of a run.

        Args:
            folder: The folder of the run.
            outcome: The contents of its `validation.json`.
        """
        if self.cost is not None:
            return float(outcome[self.cost])
        from phnn.lab.training.epochs import MetricsFile  # Lightning takes seconds to import

        path = folder / METRICS
        for row in MetricsFile(path).read():
            if read_number(path, row, "epoch") == outcome["best_epoch"]:
                return read_number(path, row, f"val_{self.name}")
        raise FileError(f"{path} has no epoch {outcome['best_epoch']}")


def read_objectives(text: str | None, task: Task) -> tuple[Objective, ...]:
    """Return what to optimize.

    Args:
        text: Names, separated by commas; the task's primary score by default.
        task: The task, for its scores.
    """
    scores = {score.name: Objective(score) for score in task.scores}
    scores["loss"] = Objective(Score("loss", "loss", digits=4, higher=False))
    known = {**scores, **{name: Objective(*cost) for name, cost in COSTS.items()}}
    names = [task.primary.name] if text is None else [name.strip() for name in text.split(",")]
    check_choices("objective", names, known)
    if len(set(names)) < len(names):
        raise ValueError(f"objectives={text} names one twice; give each one once")
    return tuple(known[name] for name in names)
