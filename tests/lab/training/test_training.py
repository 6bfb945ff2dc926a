import errno
import json
import os
import random
import runpy
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import phnn.io
from helpers.training import assert_same_run, rows, run
from phnn.lab.packaged import list_recipes, read_recipe
from phnn.lab.recipe import OptimizerOptions, ScheduleOptions, build_recipe, merge
from phnn.lab.runs import BEST, LAST
from phnn.lab.tasks import optimization
from phnn.lab.tasks.learner import Learner
from phnn.lab.training import NonFiniteLossError, RunFolderError, check_recipe, checkpoints
from phnn.lab.training.build import build_data, build_learner
from phnn.nn import PHLinear

WORKER = Path(__file__).parents[2] / "helpers" / "train_worker.py"


class CrashError(Exception):
    pass


# --- what a run leaves behind --------------------------------------------------------------------


def test_folder_holds_everything(reference, images):
    result = json.loads((reference / "result.json").read_text())
    assert result["parameters"] > 0
    assert result["storage_bytes"] == (reference / "model.safetensors").stat().st_size
    assert result["epochs"] == 3
    assert result["selected"].startswith("best, epoch")
    assert 0 <= result["test_accuracy"] <= 1
    assert result["test_seconds"] > 0
    assert result["train_seconds"] > 0
    assert result["train_seconds_per_100"] > 0
    assert result["threads"] == 1
    assert result["energy_kwh"] is None
    assert set(result["versions"]) == {"python", "torch", "lightning", "phnn"}
    assert (reference / BEST).exists()
    assert list((reference / "tensorboard").glob("events*"))
    assert [row["epoch"] for row in rows(reference)] == ["0", "1", "2"]
    assert [row["step"] for row in rows(reference)] == ["4", "8", "12"]
    model = phnn.io.load(reference / "model.safetensors")
    assert model.phnn_metadata["classes"] == ["dark", "light"]
    assert str(images) not in json.dumps(
        model.phnn_metadata
    )  # a shared file names no private folder


def test_finished_run_is_not_repeated(reference, tiny):
    before = (reference / "result.json").stat().st_mtime_ns
    assert run(tiny, reference) == json.loads((reference / "result.json").read_text())
    assert (reference / "result.json").stat().st_mtime_ns == before


def test_folder_of_another_recipe_is_refused(reference, tiny):
    with pytest.raises(RunFolderError, match=r"model\.n: 2 → 4"):
        run(tiny, reference, model={"n": 4})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data": {"root": "elsewhere"}}, r"data\.root: .* → elsewhere.*if the data have moved"),
        ({"trainer": {"precision": "bf16-mixed"}}, "precision: 32-true → bf16-mixed"),
        ({"trainer": {"gradient_clip_val": 1.0}}, r"gradient_clip_val: None → 1\.0"),
    ],
)
def test_the_result_of_another_recipe_is_not_taken(reference, tiny, overrides, message):
    before = (reference / "config.yaml").read_bytes()
    with pytest.raises(RunFolderError, match=message):
        run(tiny, reference, **overrides)
    assert (reference / "config.yaml").read_bytes() == before
    run(tiny, reference, trainer={"threads": 2})  # how, not what
    run(tiny, reference, data={"root": tiny["data"]["root"] + "/."})  # the same folder
    assert (reference / "config.yaml").read_bytes() == before


def test_every_process_knows_that_a_run_has_ended(reference, tiny, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert run(tiny, reference) == {}


def test_folder_in_use_is_refused(tiny, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError, match="another process is training"):
            run(tiny, tmp_path)


def test_without_validation_the_last_epoch_is_tested(tiny, tmp_path):
    result = run(tiny, tmp_path, data={"validation": 0}, trainer={"max_epochs": 1})
    assert result["selected"] == "last"
    assert not (tmp_path / "checkpoints/best.ckpt").exists()
    assert "val_loss" not in rows(tmp_path)[0]
    saved = load_file(tmp_path / "model.safetensors")
    last = torch.load(tmp_path / LAST, weights_only=True)["state_dict"]
    assert all(torch.equal(saved[name], last[f"model.{name}"]) for name in saved)


@pytest.mark.parametrize(("score", "best", "expected"), [
    (0.5, None, True), (float("nan"), None, False), (0.6, 0.5, True), (0.5, 0.5, False),
])  # fmt: skip
def test_what_improves(reference, tiny, score, best, expected):
    recipe = build_recipe(tiny)
    learner = build_learner(recipe, build_data(recipe))
    assert learner.improves(score, best) == expected


def test_the_best_epoch_is_tested(reference):
    best = torch.load(reference / BEST, weights_only=True)
    scores = [float(row["val_accuracy"]) for row in rows(reference)]
    assert best["epoch"] == scores.index(max(scores))
    saved = load_file(reference / "model.safetensors")
    assert all(torch.equal(saved[name], best["state_dict"][f"model.{name}"]) for name in saved)


@pytest.mark.parametrize(
    "options",
    [
        {"trainer": {"precision": "bf16-mixed", "channels_last": True}},
        {"trainer": {"gradient_clip_val": 0.1}, "optimizer": {"algebra_lr": 0.001}},
        {"optimizer": {"name": "adamw", "algebra_decay": 0.0}, "schedule": {"name": "step"}},
    ],
)
def test_options(tiny, tmp_path, options):
    result = run(tiny, tmp_path, **merge(options, {"trainer": {"max_epochs": 1}}))
    assert 0 <= result["test_accuracy"] <= 1


def test_energy(tiny, tmp_path):
    pytest.importorskip("codecarbon")
    result = run(tiny, tmp_path, trainer={"energy": True, "max_epochs": 1})
    assert result["energy_kwh"] > 0
    assert result["co2_kg"] > 0


def test_start_from_saved_weights(reference, tiny, tmp_path):
    frozen = {"optimizer": {"lr": 0.0}, "trainer": {"max_epochs": 1}}
    start = str(reference / "model.safetensors")
    run(tiny, tmp_path / "same", **frozen, start=start)
    old, new = load_file(start), load_file(tmp_path / "same/model.safetensors")
    assert all(
        torch.equal(old[name], new[name])
        for name in old
        if "running" not in name and "num_" not in name
    )
    with pytest.raises(
        ValueError,
        match="holds another network than the recipe: its n is 2, not 4; give --model",
    ):
        run(tiny, tmp_path / "other", model={"n": 4}, start=start)


def test_start_with_another_seed_is_warned_about(reference, tiny, caplog):
    recipe = build_recipe(merge(tiny, {"start": str(reference / "model.safetensors"), "seed": 1}))
    data = build_data(recipe)
    build_learner(recipe, data)
    assert "was trained with seed=0, this run has seed=1" in caplog.text
    caplog.clear()
    build_learner(replace(recipe, seed=0), data)
    build_learner(replace(recipe, data={**recipe.data, "seed": 0}), data)
    assert caplog.text == ""


# --- stopped and continued -----------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 3, 4, 5, 11])
def test_resume_is_bit_equal_at_every_step(reference, tiny, tmp_path, monkeypatch, step):
    original = Learner.training_step

    def fail_once(self, batch, batch_idx):
        if self.global_step == step:
            raise CrashError
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "training_step", fail_once)
        with pytest.raises(CrashError):
            run(tiny, tmp_path)
    assert json.loads((tmp_path / "failure.json").read_text())["error"].startswith("CrashError")
    result = run(tiny, tmp_path)
    assert result["resumed"] == (step > 0)
    assert not (tmp_path / "failure.json").exists()
    assert_same_run(reference, tmp_path)


def test_no_row_is_doubled_when_the_checkpoint_is_lost(reference, tiny, tmp_path, monkeypatch):
    def fail(self, trainer, path):
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Keeper, "_save", fail)
        with pytest.raises(CrashError):
            run(tiny, tmp_path, trainer={"checkpoint_steps": None})
    assert len(rows(tmp_path)) == 1  # the row is on disk, the checkpoint is not
    run(tiny, tmp_path, trainer={"checkpoint_steps": None})
    assert_same_run(reference, tmp_path)


def test_full_disk_leaves_the_last_checkpoint(reference, tiny, tmp_path, monkeypatch):
    original, calls = torch.save, []

    def fill_up(content, path):
        calls.append(path)
        if len(calls) == 6:
            Path(path).write_bytes(b"half")
            patch.setattr(Path, "write_text", refuse)  # whatever is written later fails, too
            refuse()
        original(content, path)

    def refuse(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.torch, "save", fill_up)
        with pytest.raises(OSError, match=r"No space left.*make room"):
            run(tiny, tmp_path)
    torch.load(tmp_path / LAST, weights_only=True)
    run(tiny, tmp_path)
    assert_same_run(reference, tmp_path)


def test_half_written_checkpoint_is_ignored(reference, tiny, tmp_path):
    torn = tmp_path / "checkpoints/.last.ckpt.123.tmp"
    torn.parent.mkdir()
    torn.write_bytes(b"half")
    run(tiny, tmp_path)
    assert not torn.exists()
    assert_same_run(reference, tmp_path)


def start_worker(tree, out, *flags):
    return subprocess.Popen(
        [sys.executable, str(WORKER), json.dumps(tree), str(out), *flags],
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 6])
def test_killed_process_goes_on(reference, tiny, tmp_path, kills):
    checkpoint = tmp_path / LAST

    def written():
        return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

    killed = 0
    for _ in range(kills):
        before = written()
        process = start_worker(tiny, tmp_path)
        while process.poll() is None and written() == before:
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.2))
        process.kill()
        process.communicate()
        killed += process.returncode == -9
    assert killed
    finish(start_worker(tiny, tmp_path))
    assert_same_run(reference, tmp_path)


# --- several processes ---------------------------------------------------------------------------


def losses(out):
    return [float(row["train_loss"]) for row in rows(out)]


def test_two_processes_learn_as_one(tiny, tmp_path, monkeypatch):
    # dropout differs between processes, so a network without it; 4 = 2 × 2 images a step
    tree = merge(
        tiny,
        {
            "model": {"name": "resnet20", "widths": [4, 4, 4]},
            "data": {"image_size": 8, "batch_size": 4, "drop_last": True},
            "trainer": {"max_epochs": 2},
        },
    )
    pair = merge(tree, {"data": {"batch_size": 2}, "trainer": {"devices": 2, "strategy": "ddp"}})
    alone, together = tmp_path / "alone", tmp_path / "together"
    finish(start_worker(pair, together, "plain"))
    with monkeypatch.context() as patch:
        runpy.run_path(str(WORKER))["leave_batch_norm_out"](patch.setattr)
        run(tree, alone)
    assert losses(together) == pytest.approx(losses(alone), rel=1e-4)
    first, second = (torch.load(together / f"rank{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    ends = [torch.load(out / LAST, weights_only=True) for out in (alone, together)]
    torch.testing.assert_close(ends[0]["state_dict"], ends[1]["state_dict"], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_replicas_with_batch_norm_are_identical(tiny, tmp_path):
    tree = merge(
        tiny,
        {
            "data": {"batch_size": 4},
            "trainer": {"max_epochs": 1, "devices": 2, "strategy": "ddp"},
        },
    )
    finish(start_worker(tree, tmp_path))
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert any("running_mean" in name for name in first)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len(rows(tmp_path)) == 1


# --- bad ends ------------------------------------------------------------------------------------


def test_stops_when_the_loss_is_not_a_number(tiny, tmp_path):
    with pytest.raises(
        NonFiniteLossError, match=r"epoch \d, step \d+, at learning rate .*--optimizer"
    ):
        run(tiny, tmp_path, optimizer={"lr": 1e30}, schedule={"name": "constant"})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"optimiser": {}}, "unknown section of a recipe 'optimiser'; did you mean optimizer"),
        ({"optimizer": {"learning": 1}}, "unknown optimizer option 'learning'"),
        ({"optimizer": {"lr": "fast"}}, "lr.*Expected a.*float.*fast"),
        ({"schedule": {"name": "cosin"}}, "cosin"),
        ({"schedule": {"warmup": 1.0}}, r"schedule\.warmup=1\.0 must be at least 0 and below 1"),
        ({"schedule": {"every": 0}}, r"schedule\.every=0 must be at least 1"),
        ({"trainer": {"max_epochs": 0}}, r"trainer\.max_epochs=0 must be at least 1"),
        ({"trainer": {"checkpoint_steps": 0}}, r"checkpoint_steps=0 must be at least 1"),
        ({"data": {"batchsize": 3}}, "unknown data option 'batchsize'; did you mean batch_size"),
        ({"model": {"name": "resnet21"}}, "did you mean"),
        ({"model": {"name": None}}, "None"),
    ],
)
def test_mistakes_are_named(tiny, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        run(tiny, tmp_path, **overrides)


# --- recipes and schedules -----------------------------------------------------------------------


@pytest.mark.parametrize("name", list_recipes())
def test_packaged_recipes_are_valid(name):
    recipe = build_recipe(read_recipe(name))
    assert recipe.model["name"] in phnn.models.list_models()
    if recipe.task == "images":
        assert recipe.data["name"] in name or name == "demo"


@pytest.mark.slow
@pytest.mark.parametrize("name", list_recipes())
def test_packaged_recipes_can_be_built(name):
    tree = read_recipe(name)
    root = {"data": {"root": "scenes"}} if tree.get("task") == "sound" else {}
    check_recipe(build_recipe(merge(tree, root)))


def test_the_papers_recipes():
    svhn, vgg = (build_recipe(read_recipe(name)) for name in ("resnet18-svhn", "vgg16-cifar100"))
    assert svhn.trainer.max_epochs == 50
    assert svhn.optimizer.lr == 0.1
    assert vgg.trainer.max_epochs == 200
    assert vgg.optimizer.lr == 0.01
    assert vgg.data["validation"] == 0
    assert {"resnet20-svhn", "vgg16real-cifar10", "resnet152s-cifar100"} < set(list_recipes())


def test_base(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: digits\nseed: 3\nmodel: {n: 2}\n")
    tree = read_recipe(tmp_path / "mine.yaml")
    assert tree == merge(read_recipe("digits"), {"seed": 3, "model": {"n": 2}})
    (tmp_path / "round.yaml").write_text("base: round.yaml\n")
    with pytest.raises(ValueError, match="based on itself"):
        read_recipe(tmp_path / "round.yaml")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ScheduleOptions("cosine"), [1, 1, 0.75, 0.75, 0.25, 0.25]),
        (ScheduleOptions("step", every=1, factor=0.5), [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (ScheduleOptions("constant"), [1] * 6),
        (ScheduleOptions("onecycle", warmup=0.5), [0.04, 0.28, 0.76, 1, 0.75, 0.25]),
        (
            ScheduleOptions("triangular", warmup=1 / 3, start=0.2, end=0.1),
            [0.2, 0.6, 1, 0.775, 0.55, 0.325],
        ),
    ],
)
def test_schedules(schedule, expected):
    rates = [optimization.rate(schedule, step, steps=2, epochs=3) for step in range(6)]
    assert rates == pytest.approx(expected)


def test_decay_that_does_not_depend_on_the_rate():
    options = OptimizerOptions(
        lr=2.0, algebra_scale=4, weight_decay=1e-3, decoupled=True, momentum=0.0
    )
    layer = PHLinear(4, 4, n=2)
    optimizer = optimization.make_optimizer(layer, options)
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for old, new in zip(before, layer.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), (1 - 1e-3) * old)
    with pytest.raises(ValueError, match=r"decoupled is for sgd and adamw"):
        OptimizerOptions(name="adam", decoupled=True)


def test_import_is_light():
    code = "import phnn, sys; print([m for m in ('lightning', 'datasets') if m in sys.modules])"
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert out.stdout.strip() == "[]"
