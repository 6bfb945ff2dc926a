"""Runs and comparisons that are told to end, or are killed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from filelock import FileLock

from helpers.processes import list_children, start, wait_for, wait_until_gone
from helpers.training import assert_same_run, rows, run
from phnn.lab.comparison import hold
from phnn.lab.recipe import merge
from phnn.lab.runs import LAST
from phnn.lab.training import RunFolderError

SLOW = Path(__file__).parents[2] / "helpers" / "slow_cli.py"
HOW_TO_CONTINUE = "give the same command again to continue"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")


@pytest.fixture
def recipe(tiny, tmp_path):
    """A file with the tiny recipe, which writes no checkpoint within an epoch."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(merge(tiny, {"trainer": {"checkpoint_steps": None}})))
    return path


@pytest.fixture
def comparison(recipe, tmp_path):
    """A comparison whose runs do not end by themselves."""
    tree = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump(merge(tree, {"trainer": {"max_epochs": 100_000}})))
    path = tmp_path / "mine.yaml"
    path.write_text("families: {tiny.yaml: {real: , n=2: }}")
    return path


def count_rows(out):
    path = out / "metrics.csv"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize(
    ("signum", "code", "name"),
    [
        (signal.SIGTERM, 143, "SIGTERM"),
        pytest.param(signal.SIGINT, 130, "Ctrl-C", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_told_to_end(recipe, tiny, reference, tmp_path, signum, code, name):
    out = tmp_path / "out"
    process = start(SLOW, "train", recipe, "--out", out, module=None)
    wait_for(lambda: (out / LAST).exists(), process)
    time.sleep(0.5)  # in the second epoch, in which each step takes 0.3 s
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"stopped by {name}; {HOW_TO_CONTINUE}" in errors
    assert not (out / "failure.json").exists()
    step = torch.load(out / LAST, weights_only=True)["global_step"]
    assert 4 < step < 12  # the checkpoint is of the step, not of the epoch
    run(tiny, out)
    assert_same_run(reference, out)


@pytest.mark.slow
def test_a_run_that_is_told_twice_ends_at_once(recipe, tmp_path):
    process = start(SLOW, "train", recipe, "--out", tmp_path / "out", module=None)
    wait_for(lambda: count_rows(tmp_path / "out") > 1, process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, 143)  # whichever arrives first
    assert HOW_TO_CONTINUE in errors


SIGNALS = """
import signal
from phnn.lab.stopping import Stoppable, Stopped

for signum in (signal.SIGTERM, signal.SIGINT):
    before = signal.getsignal(signum)
    try:
        with Stoppable():
            signal.raise_signal(signum)
    except Stopped as stopped:
        print(stopped.code, signal.getsignal(signum) is before)
"""


def test_a_signal_outside_of_training_ends_the_work_at_once():
    # in a process of its own: a signal that is not caught would end that of all tests
    done = subprocess.run([sys.executable, "-c", SIGNALS], capture_output=True, text=True)
    assert done.stdout.split() == ["143", "True", "130", "True"], done.stderr


def test_a_killed_comparison_leaves_no_process_behind(comparison, tmp_path):
    out = tmp_path / "out"
    process = start("compare", comparison, "--out", out, "--jobs", 1)
    folder = out / "runs" / "tiny-real-seed0"
    wait_for(lambda: count_rows(folder) > 1, process)
    children = list_children(process)
    assert children
    process.kill()
    _, errors = process.communicate(timeout=60)  # those of the run, which shares the pipe
    wait_until_gone(children, 10)
    assert "stopped by SIGTERM" in errors
    assert (folder / LAST).exists()
    assert not (folder / "failure.json").exists()


@pytest.mark.slow
def test_a_killed_comparison_continues(comparison, tmp_path):
    out = tmp_path / "out"
    folder = out / "runs" / "tiny-real-seed0"
    for ending in (signal.SIGKILL, signal.SIGTERM):
        before = count_rows(folder)
        process = start("compare", comparison, "--out", out, "--jobs", 1)
        wait_for(lambda before=before: count_rows(folder) > before + 2, process)
        children = list_children(process)
        process.send_signal(ending)
        _, errors = process.communicate(timeout=90)
        if ending == signal.SIGTERM:
            assert process.returncode == 143
            assert HOW_TO_CONTINUE in errors
            wait_until_gone(children, 0)
    # at once after the kill: the second one waited for the children of the first
    assert [int(row["epoch"]) for row in rows(folder)] == list(range(len(rows(folder))))
    runs = json.loads((out / "results.json").read_text())["runs"]
    assert [each["status"] for each in runs] == ["waiting", "waiting"]


def test_two_comparisons_in_one_folder(tmp_path):
    refused = pytest.raises(RunFolderError, match="another comparison is running in")
    with FileLock(tmp_path / ".lock"), refused, hold(tmp_path):
        raise AssertionError("never held twice")
