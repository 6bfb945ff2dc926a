"""One trial in its own process: python -m phnn.lab.tuning FOLDER DESCRIPTION.

It is `python -m phnn.lab.training` with a judge, which asks the study after each epoch whether the
trial is hopeless. The storage is in the environment, where other users cannot read its password.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna import Trial

from phnn.lab.recipe import build_recipe
from phnn.lab.training import Stopped, train
from phnn.lab.training.__main__ import WAIT_SECONDS, end_with_parent
from phnn.lab.training.status import StatusFile
from phnn.lab.tuning.study import STORAGE, Pruner, load_study


class StudyJudge:
    """Report the scores of a trial to its study, which says whether to give it up.

    Args:
        study: The name of the study.
        trial: The trial, by Optuna's id.
        score: The column of metrics.csv that is optimized.
        pruner: Which trials are given up.
    """

    def __init__(self, study: str, trial: int, score: str, pruner: Pruner) -> None:
        self.name = study
        self.id = trial
        self.score = score
        self.pruner = pruner

    def __call__(self, row: Mapping[str, Any]) -> bool:
        """Report an epoch."""
        if self.pruner == "none":
            return False
        study = load_study(os.environ[STORAGE], self.name, self.pruner)
        trial = Trial(study, self.id)
        with warnings.catch_warnings():  # a run that resumes may report an epoch again
            warnings.simplefilter("ignore", UserWarning)
            trial.report(row[self.score], row["epoch"])
        return trial.should_prune()


def main(folder: str, description: str) -> int:
    """Carry out a trial.

    Args:
        folder: The folder of the run.
        description: The recipe, the names and the command of the run, and its trial, as JSON.

    Returns:
        The exit code.
    """
    given = json.loads(description)
    recipe = build_recipe(given.pop("recipe"))
    judge = StudyJudge(**given.pop("judge"))
    progress = given.pop("visible") or StatusFile(Path(folder))
    try:
        train(recipe, Path(folder), wait=WAIT_SECONDS, progress=progress, judge=judge, **given)
    except Stopped as stopped:
        print(f"stopped by {stopped.name}", file=sys.stderr)
        return stopped.exit_code
    return 0


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.basicConfig(format="%(message)s")
    sys.exit(main(sys.argv[1], sys.argv[2]))
