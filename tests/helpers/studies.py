"""Studies whose trials take place in the process of the test, with or without training."""

import csv
import os
import sys

from helpers.comparisons import replace_popen
from phnn.lab.runs import Run, public, write_json
from phnn.lab.tuning import __main__ as child
from phnn.lab.tuning.searching import Search, search
from phnn.lab.tuning.space import read_space

EPOCHS = 4


def find_score(recipe):
    """Return a score that is best for n = 4 and a rate of 0.1."""
    n, rate = recipe.model.get("n") or 1, recipe.optimizer.lr
    return 1 - abs(n - 4) / 8 - abs(rate - 0.1)


def pretend(recipe, folder, *, judge, names, score=find_score, **rest):
    """Write what a trial writes, without training."""
    Run.make(folder, recipe, **names).write()
    final, given_up = score(recipe), False
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["epoch", "val_accuracy", "val_loss"])
        writer.writeheader()
        for epoch in range(EPOCHS):
            reached = final * (epoch + 1) / EPOCHS
            row = {"epoch": epoch, "val_accuracy": reached, "val_loss": 1 - reached}
            writer.writerow(row)
            if judge(row) and epoch + 1 < EPOCHS:
                given_up = True
                break
    outcome = {"parameters": 1000 // (recipe.model.get("n") or 1), "train_seconds": 1.5}
    outcome |= {"recipe": public(recipe), "best_epoch": epoch, "given_up": given_up}
    write_json(folder / "validation.json", outcome)


def run_trials_here(monkeypatch, train=pretend, before=lambda number: None):
    """Let trials take place here.

    Returns:
        The numbers of the trials, as they are started.
    """
    started = []
    if train is not None:
        monkeypatch.setattr(child, "train", train)

    class Process:
        def __init__(self, command, env, **options):
            *python, folder, description = command
            assert python == [sys.executable, "-m", "phnn.lab.tuning"]
            number = int(folder.rpartition("-")[2])
            before(number)
            started.append(number)
            monkeypatch.setitem(os.environ, child.STORAGE, env[child.STORAGE])
            try:
                self.returncode = child.main(folder, description)
            except (RuntimeError, ValueError) as error:  # a process would write it
                write_json(child.Path(folder) / "failure.json", {"error": str(error)})
                self.returncode = 1

        def poll(self):
            return self.returncode

    replace_popen(monkeypatch, Process)
    return started


def tune(out, space, recipe=None, **options):
    tree = recipe or {
        "model": {"name": "resnet20", "widths": [8, 16, 16]},
        "data": {"name": "digits"},
    }
    what = Search(recipe=tree, family="mine", out=out, space=read_space(space), **options)
    return search(what, lambda done, total, best: None)
