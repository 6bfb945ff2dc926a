import csv
import json
import math
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from helpers.comparisons import replace_popen, run_in_process
from phnn import cli
from phnn.lab import reports
from phnn.lab.comparison import load_comparison, plan, run_all
from phnn.lab.packaged import list_comparisons
from phnn.lab.paper.emissions import estimate_co2
from phnn.lab.recipe import build_recipe
from phnn.lab.reports.bubbles import spread_out
from phnn.lab.runs import Run
from phnn.lab.stopping import Stopped
from phnn.lab.tasks.images.classifier import Classifier
from phnn.lab.training import check_recipe, processes, train


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PHNN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def comparison(tmp_path):
    """A comparison of tiny networks: real and n=2 with two seeds, quaternion with one."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("a", "b"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for i in range(6):
                Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(
                    folder / f"{i}.png"
                )
    (tmp_path / "tiny.yaml").write_text(
        f"""
        model: {{name: resnet20, widths: [4, 4, 4]}}
        data: {{name: mine, root: {tmp_path / "images"}, batch_size: 4, validation: 0}}
        trainer: {{max_epochs: 1, threads: 1, energy: false, accelerator: cpu}}
        """
    )
    path = tmp_path / "mine.yaml"
    path.write_text(
        """
        title: Tiny
        seeds: [0, 1]
        families:
          tiny.yaml: {real: 90.5 ± 0.1, n=2: , quaternion: {seeds: [0], paper: 91.250}}
        """
    )
    return path


def call(comparison, out, *argv):
    return cli.main(["compare", str(comparison), "--out", str(out), "--jobs", "1", *argv])


def test_table_and_picture(comparison, tmp_path, monkeypatch, capsys):
    started = run_in_process(monkeypatch)
    out = tmp_path / "out"
    assert call(comparison, out, "--optimizer.lr", "0.01") == 0
    # every variant once before the further seeds
    assert started == [
        "tiny-real-seed0", "tiny-n=2-seed0", "tiny-quaternion-seed0",
        "tiny-real-seed1", "tiny-n=2-seed1",
    ]  # fmt: skip
    printed = capsys.readouterr().out
    for name in ("results.csv", "results.json", "results.md", "bubble.png", "bubble.svg"):
        assert str(out / name) in printed
    with (out / "results.csv").open() as file:
        real, two, quaternion = csv.DictReader(file)
    assert float(real["parameters_percent"]) == 100
    assert float(two["parameters_percent"]) < 100
    assert real["seeds"] == "0 1"
    assert quaternion["p_value"] == ""
    assert quaternion["paper"] == "91.250"
    content = json.loads((out / "results.json").read_text())
    assert [run["status"] for run in content["runs"]] == ["finished"] * 5
    assert all(run["result"]["threads"] == 1 for run in content["runs"])
    page = (out / "results.md").read_text()
    assert "90.5 ± 0.1" in page
    assert "undefined" not in page
    with Image.open(out / "bubble.png") as picture:
        assert picture.width > 500
    ET.parse(out / "bubble.svg")

    started.clear()
    assert call(comparison, out, "--optimizer.lr", "0.01") == 0
    assert started == []  # everything has ended
    before = (out / "results.json").read_bytes()
    assert call(comparison, out, "--optimizer.lr", "0.02") == cli.USER_ERROR
    refused = capsys.readouterr().err
    assert "optimizer.lr: 0.01 → 0.02" in refused
    assert "so do 4 more folders" in refused
    assert (out / "results.json").read_bytes() == before


def test_failed_runs_are_listed_and_tried_again(comparison, tmp_path, monkeypatch, capsys):
    comparison.write_text("{seeds: [0, 1], families: {tiny.yaml: {real: }}}")
    broken, original = set(), Classifier.loss

    def break_real(folder):
        broken.clear()
        broken.update({folder} if "real-seed1" in folder else ())

    def lose(self, outputs, targets):
        return original(self, outputs, targets) * (math.nan if broken else 1)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "loss", lose)
        run_in_process(patch, break_real)
        assert call(comparison, out) == cli.FAILED_RUNS
    printed = capsys.readouterr().out
    assert "failed: " in printed
    assert "the loss became nan" in printed
    assert "the loss became nan" in (out / "results.md").read_text()
    assert "1, 1 failed" in printed
    # brought to its end with what the error advises
    folder = out / "runs" / "tiny-real-seed1"
    argv = ["train", str(folder / "config.yaml"), "--out", str(folder)]
    assert cli.main([*argv, "--trainer.gradient_clip_val", "1"]) == 0
    started = run_in_process(monkeypatch)
    assert call(comparison, out, "--data.root", f"{tmp_path}/./images/") == 0
    assert started == []
    assert "failed" not in (out / "results.md").read_text()


def test_a_folder_in_which_something_else_was_trained(comparison, tmp_path, monkeypatch, capsys):
    comparison.write_text("{seeds: [1], families: {tiny.yaml: {real: , n=2: }}}")
    run_in_process(monkeypatch)
    out = tmp_path / "out"
    assert call(comparison, out) == 0
    folder = out / "runs" / "tiny-real-seed1"
    # as when a run failed at once, and its folder was used for another
    config = folder / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace("seed: 1", "seed: 99"))
    assert call(comparison, out) == cli.USER_ERROR
    assert "seed: 99 → 1" in capsys.readouterr().err
    config.write_text("")  # as by a full disk
    assert call(comparison, out) == cli.USER_ERROR
    assert "config.yaml is not a recipe (it is empty)" in capsys.readouterr().err
    config.write_text(before)
    shutil.copy(out / "runs" / "tiny-n=2-seed1" / "result.json", folder)
    assert call(comparison, out) == cli.USER_ERROR
    error = capsys.readouterr().err
    assert "result.json belongs to another recipe (model.n: 2 → None)" in error


def test_interrupted_comparison_goes_on(comparison, tmp_path, monkeypatch):
    def interrupt(folder):
        if "quaternion" in folder:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        started = run_in_process(patch, interrupt)
        assert call(comparison, out) == 130
    assert started == ["tiny-real-seed0", "tiny-n=2-seed0", "tiny-quaternion-seed0"]
    states = [run["status"] for run in json.loads((out / "results.json").read_text())["runs"]]
    assert states == ["finished", "finished", "waiting", "waiting", "waiting"]
    started = run_in_process(monkeypatch)
    assert call(comparison, out) == 0
    assert started == ["tiny-quaternion-seed0", "tiny-real-seed1", "tiny-n=2-seed1"]


@pytest.mark.slow
def test_processes_side_by_side(comparison, tmp_path, capsys):
    argv = ["compare", str(comparison), "--out", str(tmp_path / "out"), "--jobs", "2"]
    assert cli.main(argv) == 0
    assert "5 of 5: tiny " in capsys.readouterr().err
    assert (tmp_path / "out/runs/tiny-real-seed0/train.log").exists()


def test_dead_process_is_a_failed_run(comparison, tmp_path, monkeypatch):
    dead = SimpleNamespace(returncode=-9, poll=lambda: -9)
    replace_popen(monkeypatch, lambda *_, **__: dead)
    runs = plan(load_comparison(comparison), tmp_path / "out", {})
    (ended,) = run_all(runs[:1], 1, lambda _: None)
    assert ended.error == "its process ended with exit code -9"


def test_a_result_of_somebody_else_is_no_result(comparison, tmp_path, monkeypatch):
    """While a run waits, another process trains something else in its folder."""
    (run, *_) = plan(load_comparison(comparison), tmp_path / "out", {})

    def train_another(folder):
        other = build_recipe({**run.recipe, "seed": 99})
        train(other, folder, progress=False)

    run_in_process(monkeypatch, before=train_another)
    (ended,) = run_all([run], 1, lambda _: None)
    assert ended.result is None
    assert "holds a run of another recipe (seed: 99 → 0)" in ended.error


def test_interrupt_leaves_no_process_behind(comparison, tmp_path, monkeypatch):
    sleepers = []

    def sleep(*_, **__):
        sleepers.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return sleepers[-1]

    def interrupt(_):
        raise KeyboardInterrupt

    replace_popen(monkeypatch, sleep)
    monkeypatch.setattr(processes, "sleep", interrupt)
    runs = plan(load_comparison(comparison), tmp_path / "out", {})
    with pytest.raises(KeyboardInterrupt):
        run_all(runs, 2, lambda _: None)
    assert [process.returncode for process in sleepers] == [-15, -15]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")
def test_a_terminated_comparison_ends_its_runs(comparison, tmp_path, monkeypatch, capsys):
    sleepers = []

    def sleep(*_, **__):
        sleepers.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return sleepers[-1]

    def stop(_):  # as the handler does; a real signal could end the process of all tests
        raise Stopped(signal.SIGTERM)

    replace_popen(monkeypatch, sleep)
    monkeypatch.setattr(processes, "sleep", stop)
    before = signal.getsignal(signal.SIGTERM)
    assert call(comparison, tmp_path / "out") == 143
    assert "stopped by SIGTERM; give the same command again" in capsys.readouterr().err
    assert [process.returncode for process in sleepers] == [-15]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"seed": 7}, "seed=7 cannot be given: the runs of the comparison mine differ in it"),
        ({"model": {"n": 8}}, r"model\.n=8 cannot be given"),
        ({"task": "sound"}, "the comparison mine is of the task images"),
    ],
)
def test_what_runs_differ_in_is_not_replaced(comparison, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        plan(load_comparison(comparison), tmp_path, overrides)


@pytest.mark.parametrize("name", list_comparisons())
def test_packaged_comparisons(name):
    comparison = load_comparison(name)
    runs = plan(comparison, Path("out"), {})
    assert len({run.folder for run in runs}) == len(runs)
    for run in runs[:: max(1, len(runs) // 5)]:
        build_recipe(run.recipe)
    ours = ("demo", "digits", "cifar10-fast", "cifar10-short", "cifar10-rank")
    ours += ("cifar10-vit-short", "sednet-short")
    if name not in ours:
        assert all(variant.paper for variant in comparison.variants)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_comparisons())
def test_packaged_comparisons_can_be_built(name, tmp_path):
    loaded = load_comparison(name)
    root = {"data": {"root": str(tmp_path)}} if loaded.task.name == "sound" else {}
    runs = plan(loaded, Path("out"), root)
    distinct = {json.dumps(run.recipe["model"]): run.recipe for run in runs}
    for recipe in distinct.values():
        check_recipe(build_recipe(recipe))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("families: {digits: {quaternoin: }}", "unknown variant 'quaternoin'; did you mean"),
        ("families: {digts: {real: }}", "unknown recipe 'digts'; did you mean digits"),
        ("family: {}", "unknown key of a comparison 'family'; did you mean families"),
        ("title: nothing", "has no families"),
        ("families: {digits: {}}", "the family digits of the comparison .* has no variants"),
        ("families: {digits: }", "the family digits of the comparison .* has no variants"),
        ("families: [digits, sednet-4]", "must map recipes to variants, .* not be .*'sednet-4'"),
        ("seeds: [0, 0]\nfamilies: {digits: {real: }}", "the seed 0 appears twice"),
        ("families: {digits: {real: {seeds: [1, 1]}}}", "the seed 1 appears twice"),
        ("seeds: 3\nfamilies: {digits: {real: }}", "seeds=3 must be a list of numbers"),
        ("seeds: [-1]\nfamilies: {digits: {real: }}", r"seeds=\[-1\] must be a list"),
        (
            "families: {digits: {4: {n: 2}, '4': {n: 4}}}",
            "variant of the family digits '4' appears twice",
        ),
        ("- a list", "must hold a mapping"),
        ("families: {", "is not YAML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        plan(load_comparison(path), tmp_path, {})


# --- arithmetic ----------------------------------------------------------------------------------


def results(*accuracies):
    return dict(enumerate(accuracies))


def test_p_value_is_that_of_the_paired_t_test():
    ours, theirs = (0.81, 0.84, 0.80), (0.79, 0.80, 0.79)
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = sum(differences) / 3
    std = math.sqrt(sum((d - mean) ** 2 for d in differences) / 2)
    t = mean / (std / math.sqrt(3))
    expected = 1 - t / math.sqrt(t * t + 2)  # Student's t with two degrees of freedom
    assert reports.paired_p_value(results(*ours), results(*theirs)) == pytest.approx(expected)


def test_p_value_is_undefined():
    assert reports.paired_p_value(results(0.8), results(0.7)) is None
    assert reports.paired_p_value(results(0.8, 0.9), {5: 0.7}) is None
    assert reports.paired_p_value(results(0.8, 0.9), results(0.8, 0.9)) is None


def test_co2_of_the_paper():
    assert estimate_co2(2000 * 3600) == pytest.approx(267)


def test_energy_of_a_part_is_not_told(tmp_path):
    loaded = load_comparison("digits")
    full = {
        "parameters": 10, "storage_bytes": 10, "test_accuracy": 0.5, "test_seconds": 1.0,
        "train_seconds": 1.0, "train_seconds_per_100": 1.0, "train_seconds_per_100_std": 0.1,
        "energy_kwh": None, "co2_kg": None, "threads": 1,
    }  # fmt: skip
    runs = [Run(tmp_path, v.family, v.name, seed=0, result=full) for v in loaded.variants]
    summaries = reports.summarize(loaded, runs)
    assert summaries[0].energy_kwh is None
    assert "kWh" not in reports.render_text(summaries)
    assert reports.render_text(summaries).count("\n") == len(summaries)


def test_labels_keep_their_distance():
    moved = spread_out([0.1, 0.11, 0.5, 0.97, 0.98, 0.99], 0.1)
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(moved))
    assert moved[0] >= 0
    assert moved[-1] <= 1


def test_the_papers_numbers_are_text(tmp_path):
    (tmp_path / "mine.yaml").write_text("families: {digits: {real: 94, n=2: 67.990, n=3: 9 ± 1}}")
    variants = load_comparison(tmp_path / "mine.yaml").variants
    printed = [variant.paper["accuracy"] for variant in variants]
    assert printed == ["94.000", "67.990", "9 ± 1"]
