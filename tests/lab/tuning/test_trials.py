"""Trials that train: their folders, the test split, and processes that are killed."""

import json
import signal
import sys
from collections import Counter
from contextlib import ExitStack

import pytest
import yaml

from helpers import rules
from helpers.pictures import write_folders
from helpers.postgres import PostgresMissingError, running_server
from helpers.processes import PATIENCE, list_children, start, wait_for, wait_until_gone
from helpers.studies import run_trials_here, tune
from helpers.training import rows, run
from phnn.lab.packaged import read_recipe
from phnn.lab.recipe import build_recipe
from phnn.lab.runs import RunFolderError, public, write_json
from phnn.lab.tasks import registry
from phnn.lab.tasks.images.data import ImageData
from phnn.lab.training import train

optuna = pytest.importorskip("optuna")
from phnn.lab.tuning.study import load_study  # noqa: E402

TINY = {
    "model": {"name": "vgg11", "widths": [4] * 6},
    "data": {"name": "mine", "batch_size": 32, "validation": 0.25},
    "optimizer": {"lr": 0.01},
    "trainer": {
        "max_epochs": 2, "threads": 1, "energy": False, "accelerator": "cpu", "logger": "none",
        "checkpoint_steps": 1,
    },
}  # fmt: skip


@pytest.fixture
def small(tmp_path_factory, monkeypatch):
    """A recipe with few images in files: to draw the 10,000 of the demo takes seconds."""
    monkeypatch.setenv("PHNN_CACHE", str(tmp_path_factory.mktemp("cache")))
    root = write_folders(tmp_path_factory.mktemp("images"), count=48, size=32)
    tree = json.loads(json.dumps(TINY))
    tree["data"]["root"] = str(root)
    return tree


def test_a_trial_never_reads_the_test_split_and_is_a_run(small, tmp_path, monkeypatch):
    run_trials_here(monkeypatch, train=None)

    def refuse(self):
        raise AssertionError("a trial reads the test split")

    with monkeypatch.context() as patch:
        patch.setattr(ImageData, "test_dataloader", refuse)
        found = tune(tmp_path, ["model.n=[2]"], small, trials=1)
    folder = tmp_path / "runs" / "trial-0"
    outcome = json.loads((folder / "validation.json").read_text())
    assert not [name for name in outcome if name.startswith("test")]
    assert not (folder / "result.json").exists()
    best = max(rows(folder), key=lambda row: float(row["val_accuracy"]))
    assert found.best[0].values == [float(best["val_accuracy"])]
    # without a judge, the same run goes on to its test, and equals one that was never a trial
    tested = train(build_recipe(read_recipe(folder / "config.yaml")), folder, progress=False)
    plain = run(small, tmp_path / "plain", model={"n": 2})
    assert tested["test_accuracy"] == plain["test_accuracy"]
    assert rows(folder) == rows(tmp_path / "plain")


def test_a_judge_ends_a_run_that_can_go_on(small, tmp_path):
    seen = []

    def give_up(row):
        seen.append(row["epoch"])
        return True

    recipe = build_recipe(small)
    outcome = train(recipe, tmp_path, progress=False, judge=give_up)
    assert (seen, outcome["epochs"], outcome["given_up"]) == ([0], 1, True)
    assert train(recipe, tmp_path, progress=False, judge=give_up) == outcome
    assert seen == [0]
    assert train(recipe, tmp_path, progress=False)["epochs"] == 2


def test_the_dimension_behind_the_data_is_found(tmp_path, monkeypatch):
    """The data follow the rules of an unknown algebra of dimension 4; every n fits other rules."""
    run_trials_here(monkeypatch, train=None)
    monkeypatch.setitem(registry._tasks, "rules", rules.TASK)
    found = tune(tmp_path, ["model.n=[1,2,4,8]"], rules.RECIPE, trials=4, pruner="none")
    errors = {trial.params["model.n"]: trial.values[0] for trial in found.trials}
    assert errors[4] < 0.2 * min(errors[n] for n in (1, 2, 8))
    (best,) = found.best
    assert best.params["model.n"] == 4


def test_a_judged_run_of_another_recipe_is_refused(small, tmp_path):
    other = {"recipe": public(build_recipe({**small, "seed": 7})), "best_epoch": 1}
    write_json(tmp_path / "validation.json", other)
    with pytest.raises(RunFolderError, match=r"another recipe \(seed: 7 → 0\)"):
        train(build_recipe(small), tmp_path, progress=False, judge=lambda row: False)


@pytest.mark.slow
def test_a_trial_needs_a_validation_split(small, tmp_path):
    small["data"]["validation"] = 0
    with pytest.raises(ValueError, match=r"judged by the validation split.*--data\.validation"):
        train(build_recipe(small), tmp_path, progress=False, judge=lambda row: False)


def tune_digits(recipe, out, trials, *more):
    space = ["model.n=[1,2,4]", "optimizer.lr=log(0.001,0.1)"]
    argv = ["tune", recipe, "--space", *space, "--trials", trials, "--out", out, "--jobs", 1]
    return start(*argv, "--pruner", "none", *more)


@pytest.fixture
def recipe(small, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(small))
    return path


def finish(process):
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_study_survives_kills_and_is_shared_by_workers(recipe, tmp_path):
    """Killed and resumed on one machine, then continued by two workers of one PostgreSQL."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(running_server())
        except PostgresMissingError as error:
            pytest.skip(f"no PostgreSQL: {error}")
        storage = ["--storage", url]
        process = tune_digits(recipe, tmp_path / "one", 2, *storage)
        first = tmp_path / "one" / "runs" / "trial-0" / "checkpoints" / "last.ckpt"
        wait_for(first.exists, process)
        children = list_children(process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until_gone(children, 60)
        study = load_study(url, "tiny", "none")
        stack.callback(study._storage._backend.engine.dispose)
        assert [trial.state.name for trial in study.trials] == ["RUNNING"]
        finish(tune_digits(recipe, tmp_path / "one", 2, *storage))
        assert Counter(t.state.name for t in study.get_trials()) == {"COMPLETE": 2}
        outcome = json.loads((first.parents[1] / "validation.json").read_text())
        assert outcome["resumed"]
        workers = [tune_digits(recipe, tmp_path / name, 6, *storage) for name in ("one", "two")]
        for output in [finish(worker) for worker in workers]:
            assert "6 trials: " in output  # the last one may be open when the first worker ends
        counted = [t for t in study.get_trials() if "skipped" not in t.user_attrs]
    assert [trial.state.name for trial in counted] == ["COMPLETE"] * 6
    assert len({tuple(trial.params.items()) for trial in counted}) == 6
    folders = [
        path.name for name in ("one", "two") for path in (tmp_path / name / "runs").glob("trial-*")
    ]
    assert sorted(folders) == sorted(f"trial-{trial.number}" for trial in counted)
    assert list((tmp_path / "two" / "runs").glob("trial-*"))
    for summary in tmp_path.glob("*/study.json"):
        assert "nobody" not in summary.read_text()
