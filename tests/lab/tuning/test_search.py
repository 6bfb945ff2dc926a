"""Studies whose trials do not train: what is searched, skipped, given up and continued."""

import json
import re
import time
from functools import partial

import pytest
import yaml

from helpers.studies import find_score, pretend, run_trials_here, tune
from phnn import cli
from phnn.lab.packaged import read_recipe
from phnn.lab.reports.figures import draw_figures
from phnn.lab.reports.report import write_report
from phnn.lab.runs import Run, RunFolderError

optuna = pytest.importorskip("optuna")
from phnn.lab.tuning import trials as tuning_trials  # noqa: E402
from phnn.lab.tuning.study import SeededSampler, hide, load_study, open_storage  # noqa: E402

SPACE = ["model.n=[1,2,3,4]", "optimizer.lr=log(0.01,1)"]


def read(out):
    return json.loads((out / "study.json").read_text())


def test_the_best_is_found_and_what_cannot_be_built_is_never_started(tmp_path, monkeypatch):
    started = run_trials_here(monkeypatch)
    found = tune(tmp_path, SPACE, trials=12, pruner="none")
    content = read(tmp_path)
    (best,) = found.best
    assert best.params["model.n"] == 4
    assert len(started) == len(found.trials) == 12
    skipped = [trial for trial in content["trials"] if trial["state"] == "skipped"]
    assert skipped
    for trial in skipped:
        assert trial["options"]["model.n"] == 3
        assert "n=3 must divide the width 8" in trial["reason"]
        assert not (tmp_path / "runs" / f"trial-{trial['number']}").exists()
    values = {t["number"]: t["values"] for t in content["trials"] if t["state"] == "finished"}
    assert max(values, key=lambda number: values[number]["accuracy"]) == best.number
    recipe = read_recipe(tmp_path / "best" / f"trial-{best.number}.yaml")
    assert recipe["model"]["n"] == 4
    assert recipe["optimizer"]["lr"] == best.params["optimizer.lr"]
    run = Run.open(tmp_path / "runs" / f"trial-{best.number}")
    assert (run.comparison, run.family, run.variant) == ("mine", "mine", f"trial {best.number}")
    assert sum(content["importance"]["accuracy"].values()) == pytest.approx(1)


def test_the_same_seed_searches_alike(tmp_path, monkeypatch):
    run_trials_here(monkeypatch)
    both = [tune(tmp_path / name, SPACE, trials=4, pruner="none") for name in ("a", "b")]
    assert [t.params for t in both[0].trials] == [t.params for t in both[1].trials]


def test_hopeless_trials_are_given_up(tmp_path, monkeypatch):
    run_trials_here(monkeypatch)
    tune(tmp_path, SPACE, trials=14)
    given_up = [t for t in read(tmp_path)["trials"] if t["state"] == "given up"]
    assert given_up
    for trial in given_up:
        assert len(trial["scores"]) < 4
        assert trial["values"] is None


def test_several_objectives_have_a_front(tmp_path, monkeypatch):
    def score(recipe):  # the larger the network, the better
        return 1 - (recipe.model["n"] or 1) / 10

    run_trials_here(monkeypatch, partial(pretend, score=score))
    space = ["model.n=[1,2,4,8]", "optimizer.lr=uniform(0.1,0.2)"]
    found = tune(tmp_path, space, trials=10, objectives="accuracy,parameters")
    front = {trial.params["model.n"] for trial in found.best}
    assert front == {trial.params["model.n"] for trial in found.trials}
    assert len(found.best) == len(front)  # one of those that are equally good
    page = write_report(tmp_path).read_text()
    assert "The Pareto front" in page
    names = {path.name for path in draw_figures([tmp_path], tmp_path / "figures")}
    assert {"pareto-accuracy-parameters.png", "history-accuracy.svg"} <= names
    with pytest.raises(ValueError, match="pruner=asha gives trials up by one validation score"):
        tune(tmp_path / "b", SPACE, objectives="accuracy,time", pruner="asha")


def test_the_report_of_a_study(tmp_path, monkeypatch):
    run_trials_here(monkeypatch)
    tune(tmp_path, [*SPACE, "model.rank=[null,<b>]"], trials=5, command="phnn tune mine")
    assert cli.main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "phnn tune mine" in page
    assert "combinations were skipped" in page
    assert "<b>" not in page
    (tmp_path / "study.json").write_text('{"objectives": 3}')
    with pytest.raises(ValueError, match=r"study\.json is damaged"):
        write_report(tmp_path)


def test_a_killed_search_continues_its_trials(tmp_path, monkeypatch):
    def die(number):
        if number >= 2:
            raise SystemError("killed")

    first = run_trials_here(monkeypatch, before=die)
    with pytest.raises(SystemError):
        tune(tmp_path, ["optimizer.lr=log(0.01,1)"], trials=4, pruner="none")
    second = run_trials_here(monkeypatch)
    found = tune(tmp_path, ["optimizer.lr=log(0.01,1)"], trials=4, pruner="none")
    assert (first, second) == ([0, 1], [2, 3])
    assert [trial.state.name for trial in found.trials] == ["COMPLETE"] * 4
    unbroken = tune(tmp_path / "b", ["optimizer.lr=log(0.01,1)"], trials=4, pruner="none")
    assert [t.params for t in unbroken.trials] == [t.params for t in found.trials]


def test_a_study_that_searches_something_else(tmp_path, monkeypatch):
    run_trials_here(monkeypatch)
    tune(tmp_path, ["model.n=[1,2]"], trials=1)
    with pytest.raises(ValueError, match=r"searches something else \(space: .*another --out"):
        tune(tmp_path, ["model.n=[1,4]"], trials=2)
    with pytest.raises(ValueError, match="searches something else"):
        tune(tmp_path, ["model.n=[1,2]"], trials=2, objectives="parameters")


def test_a_space_that_is_exhausted(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning_trials, "SKIPS", 10)
    started = run_trials_here(monkeypatch)
    found = tune(tmp_path, ["model.n=[1,2]"], trials=9)
    assert sorted(t.params["model.n"] for t in found.trials) == [1, 2]
    assert len(started) == 2
    assert re.match(r"no further combination can be tried; the last: trial \d has", found.note)


def test_a_space_without_a_network_makes_no_study(tmp_path):
    with pytest.raises(ValueError, match=r"none of 50 combinations .* n=3 must divide"):
        tune(tmp_path, ["model.n=[3]"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "trials=0 must be more than 0"),
        ({"minutes": -1.0}, "minutes=-1.0 must be"),
        ({"recipe": {"model": {"name": "resnet20"}, "data": {"validation": 0}}}, "validation 0.1"),
    ],
)
def test_searches_that_cannot_be(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        tune(tmp_path, ["optimizer.lr=log(0.1,1)"], **options)


def test_trials_that_all_fail_end_the_search(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise ValueError("no space left")

    started = run_trials_here(monkeypatch, fail)
    with pytest.raises(ValueError, match=r"first 3 trials have failed; trial 0: no space left"):
        tune(tmp_path, ["optimizer.lr=log(0.1,1)"])
    assert started == [0, 1, 2]


def test_a_trial_that_fails_is_no_end(tmp_path, monkeypatch):
    def fail_second(recipe, folder, **options):
        if folder.name == "trial-1":
            raise RuntimeError("the loss became nan")
        pretend(recipe, folder, **options)

    run_trials_here(monkeypatch, fail_second)
    found = tune(tmp_path, ["optimizer.lr=log(0.1,1)"], trials=3, pruner="none")
    assert [trial.state.name for trial in found.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert read(tmp_path)["trials"][1]["reason"] == "the loss became nan"


def test_a_score_belongs_to_one_study(tmp_path, monkeypatch):
    def refuse(recipe, folder, **options):
        raise RunFolderError("it holds a run of another recipe")

    run_trials_here(monkeypatch)
    tune(tmp_path, ["model.n=[4]", "optimizer.lr=[0.1]"], trials=1, pruner="none", name="a")
    space = ["model.n=[2]", "optimizer.lr=[0.9]"]
    run_trials_here(monkeypatch, refuse)
    found = tune(tmp_path, space, trials=1, pruner="none", name="b")
    assert [(trial.state.name, trial.values) for trial in found.trials] == [("FAIL", None)]
    # whatever the process says, another recipe's score is not taken
    run_trials_here(monkeypatch, lambda *args, **options: None)
    (tmp_path / "runs/trial-0/failure.json").unlink()
    again = tune(tmp_path, space, trials=1, pruner="none", name="c")
    assert [trial.state.name for trial in again.trials] == ["FAIL"]
    assert "model.n: 4 → 2" in read(tmp_path)["trials"][0]["reason"]


def test_a_failed_process_has_no_score(tmp_path, monkeypatch):
    def fail_late(recipe, folder, **options):
        pretend(recipe, folder, **options)
        raise RuntimeError("the disk is full")

    run_trials_here(monkeypatch, fail_late)
    found = tune(tmp_path, ["optimizer.lr=[0.1]"], trials=1, pruner="none")
    assert [trial.state.name for trial in found.trials] == ["FAIL"]
    assert read(tmp_path)["trials"][0]["reason"] == "the disk is full"


def test_the_trial_of_a_lost_machine_is_queued_again(tmp_path, monkeypatch):
    started = run_trials_here(monkeypatch)
    storage = str(tmp_path / "study.journal")
    space = ["optimizer.lr=log(0.1,1)"]
    tune(tmp_path / "one", space, trials=1, storage=storage)
    study = load_study(storage, "mine", "none")
    lost, busy = study.ask(), study.ask()
    lost.set_user_attr("worker", "elsewhere")
    busy.set_user_attr("worker", "elsewhere")
    rate = lost.suggest_float("optimizer.lr", 0.1, 1, log=True)
    now = time.time()
    busy.set_user_attr("alive", now + 10_000)
    monkeypatch.setattr(tuning_trials.time, "time", lambda: now + 2_000)
    found = tune(tmp_path / "two", space, trials=4, storage=storage)
    assert started == [0, 3, 4]
    states = {trial.number: trial.state.name for trial in found.trials}
    assert states == {0: "COMPLETE", 2: "RUNNING", 3: "COMPLETE", 4: "COMPLETE"}
    assert found.trials[2].params["optimizer.lr"] == rate


def test_workers_stop_at_the_limit_together(tmp_path, monkeypatch):
    """A worker that asks while another one reaches the limit leaves its trial out."""
    run_trials_here(monkeypatch)
    tune(tmp_path, ["optimizer.lr=log(0.1,1)"], trials=2)
    counts = iter([1])  # what it saw before the other one was done
    count = tuning_trials.Trials.count
    monkeypatch.setattr(
        tuning_trials.Trials,
        "count",
        lambda self, before=None: next(counts, None) or count(self, before),
    )
    found = tune(tmp_path, ["optimizer.lr=log(0.1,1)"], trials=2)
    assert len(found.trials) == 2
    assert read(tmp_path)["trials"][2]["reason"] == "other workers have done enough"


def test_the_command_line(tmp_path, monkeypatch, capsys):
    run_trials_here(monkeypatch)
    confirmed = []
    monkeypatch.setattr(
        "phnn.cli.tuning.compare_all", lambda *args, **options: confirmed.append(args) or 0
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("base: digits\nmodel: {widths: [8, 16, 16]}\n")
    argv = ["tune", "mine.yaml", "--space", *SPACE, "--trials", "4", "--confirm", "3"]
    assert cli.main([*argv, "--jobs", "1", "--seed", "5", "--out", "out"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^4 trials: ", output, re.MULTILINE)
    assert "scores are of the validation split" in output
    tree = yaml.safe_load((tmp_path / "out" / "confirm.yaml").read_text())
    assert tree["seeds"] == [6, 7, 8]
    (family,) = tree["families"]
    assert yaml.safe_load((tmp_path / "out" / family).read_text())["data"]["seed"] == 5
    assert confirmed[0][1:3] == ("out/confirm.yaml", tmp_path.__class__("out/confirm"))
    assert cli.main(["tune", "mine.yaml", "--space", "model.n=4"]) == cli.USER_ERROR


def test_passwords_are_hidden(tmp_path, capsys):
    url = "postgresql+psycopg://me:secret@127.0.0.1:9/none"
    assert "secret" not in hide(f"phnn tune digits --storage {url}")
    with pytest.raises(ValueError, match="cannot be opened") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)


def test_the_sampler_of_a_trial_does_not_depend_on_the_past_draws():
    def draw(skip):
        study = optuna.create_study(sampler=SeededSampler(3))
        values = []
        for number in range(3):
            trial = study.ask()
            if number not in skip:
                values.append((number, trial.suggest_float("x", 0, 1)))
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return dict(values)

    assert draw(())[2] == draw((0, 1))[2]


def test_scores_of_the_helper_have_one_peak():
    from phnn.lab.recipe import build_recipe

    def score(n, lr):
        return find_score(build_recipe({"model": {"n": n}, "optimizer": {"lr": lr}}))

    assert score(4, 0.1) > max(score(2, 0.1), score(8, 0.1), score(4, 0.2))
