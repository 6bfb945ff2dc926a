"""What a person sees of many runs at once."""

import io
from dataclasses import replace
from pathlib import Path

from phnn._screen import Screen
from phnn.cli.overview import Overview
from phnn.lab.runs import Run
from phnn.lab.tasks.task import Score
from phnn.lab.training.processes import _read_progress
from phnn.lab.training.status import StatusFile

RESULT = {"test_accuracy": 0.931, "train_seconds": 75.0}


def make(name, result=None, error=None):
    return Run(Path("runs") / name, "digits", name, 0, result=result, error=error)


def test_runs_that_end_leave_a_line_and_others_are_live():
    stream = io.StringIO()
    overview = Overview(Screen(stream, quiet=0.0), Score("accuracy", "accuracy", "%", scale=100))
    runs = [make("real", RESULT), make("n=2"), make("n=4")]
    overview.report(runs)
    assert stream.getvalue() == "1 of 3 runs had ended before\n"
    overview.watch({1: "epoch 1/3 step 4/9\nmore", 2: "starting"})
    assert stream.getvalue().splitlines()[1:] == [
        "1 of 3 runs have ended, 0 s so far",
        "digits n=2, seed 0: epoch 1/3 step 4/9",
        "digits n=4, seed 0: starting",
    ]
    runs[1] = replace(runs[1], result=RESULT)
    overview.report(runs)
    runs[2] = replace(runs[2], error="ValueError: no\x1b[2J")
    overview.report(runs)
    assert stream.getvalue().splitlines()[4:] == [
        "2 of 3: digits n=2, seed 0: accuracy 93.100 %, trained in 1:15",
        r"3 of 3: digits n=4, seed 0 failed: ValueError: no\x1b[2J",
    ]


def test_a_run_tells_how_far_it_is(tmp_path):
    run = Run(tmp_path, "digits", "n=4", 0)
    assert _read_progress(run) == "starting"
    status = StatusFile(tmp_path)
    status.phase("reading the data")
    assert _read_progress(run) == "reading the data"
    status.show("epoch 1/3")  # too soon after the last
    assert _read_progress(run) == "reading the data"
    status.show("epoch 2/3", now=True)
    assert _read_progress(run) == "epoch 2/3"
