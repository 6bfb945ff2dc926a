import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import phnn
from phnn import cli
from phnn.lab import reports
from phnn.lab.comparison import load_comparison, plan
from phnn.lab.packaged import read_recipe
from phnn.lab.recipe import build_recipe, merge
from phnn.lab.runs import BEST, Run
from phnn.lab.tasks import sound
from phnn.lab.tasks.learner import Learner
from phnn.lab.tasks.sound.detection import Event, Heard, find_events, merge_events
from phnn.lab.tasks.sound.report import draw_heard
from phnn.lab.trained import evaluate, load_trained
from phnn.lab.training import check_recipe, train

soundfile = pytest.importorskip("soundfile")

WORKER = Path(__file__).parents[2] / "helpers" / "train_worker.py"
RATE, SECONDS = 8000, 2.0
TONES = {"high": 2000.0, "low": 500.0}


def write_scene(folder, name, start, label):
    """Writes a recording of two microphones in which one tone sounds for a second."""
    time = np.arange(int(RATE * SECONDS)) / RATE
    heard = (time >= start) & (time < start + 1)
    tone = 0.5 * np.sin(2 * np.pi * TONES[label] * time) * heard
    noise = np.random.default_rng(len(name)).normal(0, 0.01, (len(time), 4))
    for microphone in "AB":
        path = folder / "data" / f"{name}_{microphone}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, tone[:, None] + noise, RATE)
    labels = folder / "labels" / f"label_{name}.csv"
    labels.parent.mkdir(exist_ok=True)
    labels.write_text(f"File,Start,End,Class\nx,{start},{start + 1},{label}\n")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    for split, count in (("train", 8), ("dev", 4)):
        for i in range(count):
            write_scene(root / split, f"s{i}", (i // 2 % 4) * 0.3, ("high", "low")[i % 2])
    return root


@pytest.fixture(scope="module")
def tiny(scenes):
    """A recipe of three steps an epoch: both microphones, so eight channels."""
    return {
        "task": "sound",
        "model": {"name": "sednet", "n": 4, "widths": [8, 8, 8, 8]},
        "data": {
            "root": str(scenes), "classes": list(TONES), "overlaps": 1, "microphones": 2,
            "batch_size": 4, "eval_batch_size": 1, "validation": 0.25, "segment": 1,
        },
        "optimizer": {"name": "adam", "lr": 0.003, "weight_decay": 0},
        "schedule": {"name": "constant"},
        "trainer": {"max_epochs": 8, "threads": 1, "energy": False, "accelerator": "cpu"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """The folder of a run that has ended."""
    root = tmp_path_factory.mktemp("run")
    recipe = root / "tiny.yaml"
    recipe.write_text(json.dumps(tiny))
    assert cli.main(["train", str(recipe), "--out", str(root / "out")]) == 0
    return root / "out"


def call(capsys, *argv):
    code = cli.main([str(argument) for argument in argv])
    out, err = capsys.readouterr()
    return code, out, err


def rows(out):
    """The log without its times, which no two runs share."""
    with (out / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


# --- train and test ------------------------------------------------------------------------------


def test_result(run):
    result = json.loads((run / "result.json").read_text())
    assert result["task"] == "sound"
    assert result["test_f"] > 0.5  # it has learned
    assert result["test_sed"] == pytest.approx((result["test_er"] + 1 - result["test_f"]) / 2)
    assert 0 <= result["test_recall"] <= 1
    assert 0 <= result["test_precision"] <= 1
    model = phnn.load(run)
    assert result["conv_parameters"] == sum(p.numel() for p in model.cnn.parameters())
    assert result["parameters"] == sum(p.numel() for p in model.parameters())
    assert model.config["in_channels"] == 8
    assert model.config["overlaps"] == 1


def test_the_epoch_of_the_lowest_loss_is_tested(run):
    losses = [float(row["val_loss"]) for row in rows(run)]
    best = torch.load(run / BEST, weights_only=True)
    assert best["epoch"] == losses.index(min(losses))
    result = json.loads((run / "result.json").read_text())
    assert result["val_loss"] == pytest.approx(min(losses))
    assert result["selected"] == f"best, epoch {best['epoch']}"


@pytest.mark.parametrize("name", ["", "model.safetensors", "checkpoints/best.ckpt"])
def test_test(run, scenes, capsys, name):
    result = json.loads((run / "result.json").read_text())
    code, out, _ = call(
        capsys, "test", run / name, "--data.root", scenes, "--trainer.accelerator", "cpu"
    )
    assert code == 0
    assert f"test F-score {result['test_f']:.3f}, ER {result['test_er']:.3f}, SED score " in out


def test_other_data_are_standardized_as_those_of_training(run, scenes, tmp_path):
    shutil.copytree(scenes, tmp_path / "other")
    for i in range(8):
        write_scene(tmp_path / "other" / "train", f"s{i}", 1, "low")
    trained, seen = load_trained(run), []
    trained.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    for root in (scenes, tmp_path / "other"):
        evaluate(trained, {"data": {"root": str(root)}}, progress=False)
    mine, others = torch.cat(seen).chunk(2)
    assert torch.equal(mine, others)


def test_other_channels_are_refused(run, scenes):
    options = {"root": str(scenes), "microphones": 1}
    with pytest.raises(ValueError, match="takes 8 channels, the data have 4; leave the options"):
        evaluate(load_trained(run), {"data": options}, progress=False)


class CrashError(Exception):
    pass


def test_resume_is_bit_equal(tiny, tmp_path, monkeypatch):
    original = Learner.training_step
    recipe = build_recipe(merge(tiny, {"trainer": {"max_epochs": 2, "checkpoint_steps": 1}}))

    def fail(self, batch, batch_idx):
        if self.global_step == 2:  # in the middle of an epoch
            raise CrashError
        return original(self, batch, batch_idx)

    train(recipe, tmp_path / "unbroken", progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "training_step", fail)
        with pytest.raises(CrashError):
            train(recipe, tmp_path / "resumed", progress=False)
    assert train(recipe, tmp_path / "resumed", progress=False)["resumed"]
    first, second = (load_file(tmp_path / x / "model.safetensors") for x in ("unbroken", "resumed"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert rows(tmp_path / "unbroken") == rows(tmp_path / "resumed")


@pytest.mark.slow
def test_two_processes_stay_identical(tiny, tmp_path):
    several = {"trainer": {"max_epochs": 1, "devices": 2, "strategy": "ddp"}}
    tree = merge(tiny, several, {"data": {"batch_size": 2}})
    command = [sys.executable, str(WORKER), json.dumps(tree), str(tmp_path)]
    subprocess.run(command, check=True, env=os.environ, timeout=240)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert json.loads((tmp_path / "result.json").read_text())["devices"] == 2


# --- predict -------------------------------------------------------------------------------------


def test_predict(run, scenes, tmp_path, capsys):
    table = tmp_path / "events.csv"
    scene = scenes / "dev/data/s2_A.wav"  # a high tone from 0.3 to 1.3 s
    code, out, _ = call(capsys, "predict", run, scene, "-o", table, "--pictures", tmp_path / "p")
    assert code == 0
    with table.open() as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["recording", "start", "end", "label", "probability", "track"]
    longest = max(found, key=lambda event: float(event["end"]) - float(event["start"]))
    assert longest["label"] == "high"
    assert 0.5 < float(longest["probability"]) <= 1
    assert f"{scene}: {float(found[0]['start']):.1f} to " in out
    assert (tmp_path / "p/s2_A-events.png").stat().st_size > 10_000


def test_predict_a_longer_recording(run, tmp_path, capsys):
    for microphone in "AB":
        silence = np.zeros((int(3.7 * RATE), 4))
        soundfile.write(tmp_path / f"long_{microphone}.wav", silence, RATE)
    code, out, _ = call(capsys, "predict", run, tmp_path)
    assert code == 0
    assert "long_A.wav" in out
    assert "long_B.wav" not in out


@pytest.mark.parametrize(
    ("name", "rate", "channels", "message"),
    [
        ("x_A.wav", RATE, 4, "there is no x_B.wav beside"),
        ("x_B.wav", RATE, 4, "the first, NAME_A.wav"),
        ("x_AB.wav", 16000, 4, "trained at 8000 Hz in 4 channels"),
        ("x_AB.wav", RATE, 1, "trained at 8000 Hz in 4 channels"),
        ("nothing.wav", None, None, "there is no recording"),
    ],
)
def test_recordings_that_do_not_fit(run, tmp_path, capsys, name, rate, channels, message):
    given = tmp_path / name.replace("AB", "A")
    for path in {given, tmp_path / name.replace("AB", "B")} if rate else ():
        soundfile.write(path, np.zeros((RATE, channels)), rate)
    code, _, err = call(capsys, "predict", run, given)
    assert code == cli.USER_ERROR
    assert message in err


def test_events_are_runs_of_active_frames():
    probabilities = torch.zeros(6, 4)  # two classes of two tracks
    probabilities[0:2, 0] = torch.tensor([0.6, 0.8])
    probabilities[1:6, 1] = 0.9
    probabilities[3, 3] = 0.5  # not above the threshold
    assert find_events(probabilities, ["a", "b"], 0.55) == [
        (0.0, 0.2, "a", pytest.approx(0.7), 1),
        (0.1, 0.55, "a", pytest.approx(0.9), 2),
    ]
    assert len(find_events(probabilities, ["a", "b"], 0.55, threshold=0.45)) == 3
    assert len(find_events(probabilities, ["a", "b"], 0.55, threshold=0.85)) == 1


def test_events_that_overlap():
    alone, second = Event(0.0, 1.0, "a", 0.6), Event(0.5, 2.0, "a", 0.9, track=2)
    later, other = Event(3.0, 4.0, "a", 0.7, track=3), Event(0.2, 5.0, "b", 0.8)
    assert merge_events([alone, other, second, later]) == [
        Event(0.0, 2.0, "a", 0.9), other, Event(3.0, 4.0, "a", 0.7)
    ]  # fmt: skip
    probabilities = torch.zeros(10, 3)
    probabilities[5:9, 2] = 0.9  # the third track alone
    (event,) = find_events(probabilities, ["a"], 1.0)
    assert event.track == 1


@pytest.mark.parametrize("truth", [None, (sound.Event(0.2, 0.9, "Knock"),)])
@pytest.mark.parametrize(
    "events",
    [
        (),
        (Event(0.1, 0.5, "Laughter", 0.8),),
        (Event(0.1, 0.5, "Knock", 0.8), Event(0.2, 0.6, "Knock", 0.8, track=2)),
    ],
)
def test_picture_of_events(events, truth):
    heard = Heard(Path("x_A.wav"), events, truth, torch.rand(256, 80), 1.0, RATE)
    figure = draw_heard(heard)
    spectrogram, roll, _ = figure.axes
    assert spectrogram.get_xlim() == (0, 1)
    assert spectrogram.get_ylim() == (0, RATE / 2)
    names = [label.get_text() for label in roll.get_yticklabels()]
    assert names == sorted({event.label for event in (*events, *(truth or ()))}, reverse=True)
    assert len(roll.patches) == len(events) + len(truth or ())
    bars = [(bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()) for bar in roll.patches]
    assert not any(a != b and _cover(a, b) for a in bars for b in bars)
    assert (roll.get_title() == "nothing was heard") == (not events)


def _cover(one, other):
    return all(
        one[i] < other[i] + other[i + 2] - 1e-9 and other[i] < one[i] + one[i + 2] - 1e-9
        for i in range(2)
    )


# --- recipes and tables --------------------------------------------------------------------------


def test_the_papers_recipes(tmp_path):
    recipes = [build_recipe(read_recipe(f"sednet-{channels}")) for channels in (4, 8, 16)]
    assert [recipe.data["microphones"] for recipe in recipes] == [1, 2, 2]
    assert [recipe.data.get("phase", False) for recipe in recipes] == [False, False, True]
    for recipe in recipes:
        check_recipe(replace(recipe, data={**recipe.data, "root": str(tmp_path)}))
        assert (recipe.optimizer.name, recipe.optimizer.lr) == ("adam", 1e-5)
        assert (recipe.data["batch_size"], recipe.trainer.max_epochs) == (16, 1000)
        assert recipe.schedule.name == "constant"


def result(n, f):
    return {
        "parameters": 8000 // n, "conv_parameters": 1000 // n, "storage_bytes": 10,
        "test_f": f, "test_er": 0.4, "test_sed": 0.35, "test_precision": 0.7, "test_recall": 0.6,
        "test_seconds": 1.0, "train_seconds": 1.0, "train_seconds_per_100": 1.0,
        "train_seconds_per_100_std": 0.1, "energy_kwh": None, "co2_kg": None, "threads": 1,
    }  # fmt: skip


def test_tables_have_the_papers_columns(tmp_path):
    comparison = load_comparison("sednet")
    assert len(comparison.variants) == 13
    outcomes = [
        Run(
            tmp_path,
            variant.family,
            variant.name,
            seed=0,
            result=result(variant.options.get("n", 1), 0.6 + i / 100),
        )
        for i, variant in enumerate(comparison.variants)
    ]
    reports.write_tables(comparison, outcomes, tmp_path)
    head, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (tmp_path / "results.md").read_text().splitlines()
        if line.startswith("|")
    )
    assert head[:3] == ["recipe", "variant", "counting"]
    wanted = ("conv parameters", "storage MiB", "F-score", "ER ↓", "SED score ↓", "P", "R")
    assert {*wanted, "paper F-score", "paper ER"} <= set(head)
    two = dict(zip(head, lines[2], strict=True))
    assert two["conv parameters"] == "500 (50 %)"
    assert (two["F-score"], two["paper F-score"]) == ("0.620", "0.680")
    last = dict(zip(head, lines[9], strict=True))  # the baseline of 16 channels
    assert (last["variant"], last["conv parameters"]) == ("quaternion", "1,000 (100 %)")
    page = (tmp_path / "results.md").read_text()
    assert "↓: lower is better" in page
    assert "--learner.counting chooses it" in page
    with (tmp_path / "results.csv").open() as file:
        row = next(csv.DictReader(file))
    assert (row["f"], row["f_std"], row["task"]) == ("0.6", "", "sound")
    assert json.loads((tmp_path / "results.json").read_text())["task"] == "sound"
    summarized = reports.summarize(comparison, outcomes)
    figure = reports.draw_bubbles(comparison.title, summarized)
    assert figure.axes[0].get_ylabel() == "test F-score"
    assert figure.axes[0].get_xlabel() == "parameters of the convolutions"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"model": {"name": "resnet20", "widths": "paper"}},
            "task=sound takes sednet",
        ),
        ({"task": "images", "data": {"root": None}}, "unknown data option 'classes'"),
        (
            {"data": {"microphone": 2}},
            "unknown data option 'microphone'; did you mean microphones",
        ),
        ({"task": "sounds"}, "unknown task 'sounds'; did you mean sound"),
    ],
)
def test_mistakes_are_named(tiny, overrides, message):
    with pytest.raises(ValueError, match=message):
        check_recipe(build_recipe(merge(tiny, overrides)))


def test_detectors_give_logits(tiny, tmp_path):
    recipe = build_recipe(merge(tiny, {"model": {"logits": False}}))
    with pytest.raises(ValueError, match="trained on logits"):
        train(recipe, tmp_path, progress=False)


def test_a_comparison_is_of_one_task(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("families: {digits: {real: }, sednet-4: {real: }}")
    with pytest.raises(ValueError, match="one task, not digits: images, sednet-4: sound"):
        load_comparison(path)
    with pytest.raises(ValueError, match="the comparison digits is of the task images"):
        plan(load_comparison("digits"), tmp_path, {"task": "sound"})
