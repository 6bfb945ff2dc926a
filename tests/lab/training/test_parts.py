"""Parts of a comparison, networks of the user, and what their tables show."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import phnn
from helpers.comparisons import replace_popen, run_in_process
from phnn import cli
from phnn.cli import training
from phnn.lab import reports
from phnn.lab.comparison import choose, load_comparison, plan, run_all, with_seeds
from phnn.lab.recipe import build_recipe
from phnn.lab.tasks.batches import Plan
from phnn.lab.tasks.data import Data
from phnn.lab.trained import load_trained
from phnn.lab.training import check_recipe, processes, train

OWN = """
from torch import nn

def small(num_classes, width=4):
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, num_classes),
    )

def nothing():
    return 3
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PHNN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def comparison(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("a", "b"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    (tmp_path / "tiny.yaml").write_text(
        f"""
        model: {{name: resnet20, widths: [4, 4, 4]}}
        data: {{name: mine, root: {tmp_path / "images"}, batch_size: 4, validation: 0.3}}
        trainer: {{max_epochs: 1, threads: 1, energy: false, accelerator: cpu, logger: none}}
        """
    )
    (tmp_path / "ownnets.py").write_text(OWN)
    (tmp_path / "mine.yaml").write_text(
        """
        title: Tiny
        families:
          tiny.yaml: {real: , n=2: {paper: {accuracy: 90.0, train: 2.2 ± 0.1}}, "ownnets:small": }
        """
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.yaml"


def call(comparison, *argv):
    argv = ["compare", str(comparison), "--out", "out", "--jobs", "1", "--trust", *argv]
    return cli.main(argv)


def test_shares_meet_in_one_table(comparison, tmp_path, monkeypatch, capsys):
    started = run_in_process(monkeypatch)
    parts = ("--seeds", "0,1", "--only", "real,n=2")
    assert call(comparison, *parts, "--shard", "1/2") == 0
    assert started == ["tiny-real-seed0", "tiny-real-seed1"]
    assert "n=2" not in capsys.readouterr().out.partition("Tiny\n")[2].partition("wrote")[0]
    assert call(comparison, *parts, "--shard", "2/2") == 0
    assert started[2:] == ["tiny-n=2-seed0", "tiny-n=2-seed1"]
    table = json.loads((tmp_path / "out" / "results.json").read_text())["table"]
    assert [row["seeds"] for row in table] == [[0, 1], [0, 1], []]
    assert table[1]["paper"] == "90.000"
    assert table[1]["paper_train"] == "2.2 ± 0.1"
    assert table[0]["validation_name"] == "accuracy"
    page = (tmp_path / "out" / "results.md").read_text()  # a terminal may be too narrow for all
    for head in ("val accuracy %", "paper train s/100", "val s/1", "storage MiB"):
        assert head in page
    assert call(comparison, *parts) == 0  # collects, and does nothing again
    assert len(started) == 4


def test_networks_of_the_user(comparison, tmp_path, monkeypatch, capsys):
    run_in_process(monkeypatch)
    assert call(comparison, "--only", "ownnets:small") == 0
    folder = tmp_path / "out" / "runs" / "tiny-ownnets-small-seed0"
    result = json.loads((folder / "result.json").read_text())
    assert result["parameters"] == 4 * 27 + 4 + 10
    from ownnets import small  # the fixture wrote it

    loaded = phnn.load(folder / "model.safetensors", model=lambda: small(2))
    assert sum(p.numel() for p in loaded.parameters()) == result["parameters"]
    with pytest.raises(ValueError, match="pass model="):
        load_trained(folder)
    with pytest.raises(ValueError, match="ownnets:small, which phnn does not call for you"):
        load_trained(folder / "checkpoints" / "last.ckpt")
    assert cli.main(["report", "out"]) == 0  # without the sections that need networks
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "ownnets:missing"}, "has no function 'missing'"),
        ({"name": "nowhere:make"}, "there is no module nowhere"),
    ],
)
def test_functions_are_checked_before_the_work(comparison, model, message):
    with pytest.raises(ValueError, match=message):
        check_recipe(build_recipe({"model": model, "data": {"name": "digits"}}))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "ownnets:small", "depth": 3}, "ownnets:small has no argument depth"),
        ({"name": "ownnets:nothing"}, "ownnets:nothing returns int, not a torch.nn.Module"),
    ],
)
def test_functions_that_do_not_fit(comparison, tmp_path, model, message):
    (run, *_) = plan(load_comparison(comparison, trust=True), tmp_path / "out", {})
    with pytest.raises(ValueError, match=message):
        train(build_recipe({**run.recipe, "model": model}), tmp_path / "run", progress=False)


def test_each_job_has_a_device(comparison, tmp_path, monkeypatch):
    seen = []

    def start(*_, env=None, **__):
        seen.append(env and env["CUDA_VISIBLE_DEVICES"])
        return SimpleNamespace(returncode=1, poll=lambda: 1)

    replace_popen(monkeypatch, start)
    runs = plan(with_seeds(load_comparison(comparison, trust=True), [0, 1]), tmp_path / "out", {})
    run_all(runs, 2, lambda _: None, devices=("4", "7"))
    assert seen == ["4", "7", "4", "7", "4", "7"]
    seen.clear()
    run_all(runs[:1], 1, lambda _: None)
    assert seen == [None]


def test_devices_and_jobs(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "5,6")
    assert processes.find_devices() == ("5", "6")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert processes.find_devices() == ("0", "1")
    assert training.count_jobs(None, {}) == (2, ("0", "1"))
    assert training.count_jobs(3, {}) == (3, ("0", "1"))
    assert training.count_jobs(1, {"trainer": {"devices": 2}}) == (1, ())
    assert training.count_jobs(1, {"trainer": {"accelerator": "cpu"}}) == (1, ())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--only", "n=7"],
            "--only n=7 matches no run; the families are tiny, the variants 'real', ",
        ),
        (["--shard", "0/3"], "--shard 0/3 must be K/N with 1 ≤ K ≤ N"),
        (["--shard", "third"], "--shard third must be"),
        (["--seeds", "a,b"], "--seeds a,b must be numbers"),
        (["--seeds", "1,1"], "the seed 1 appears twice"),
    ],
)
def test_mistakes(comparison, argv, message, capsys):
    assert call(comparison, *argv) == cli.USER_ERROR
    assert message in capsys.readouterr().err


def test_shares_are_a_partition(comparison, tmp_path):
    runs = plan(with_seeds(load_comparison(comparison, trust=True), range(5)), tmp_path, {})
    shares = [choose(runs, shard=f"{i}/4") for i in range(1, 5)]
    assert sorted(run.folder for share in shares for run in share) == sorted(r.folder for r in runs)


def test_the_papers_sound_table():
    summaries = reports.summarize(load_comparison("sednet"), [])
    head, *rows = reports.tables.tabulate(summaries)
    row = dict(zip(head, rows[6], strict=True))  # sednet-8, n=2
    assert row["paper F-score"] == "0.669"
    assert row["paper train s/1"] == "1.091 ± 0.074"
    assert row["paper val s/1"] == "1.085"
    assert dict(zip(head, rows[0], strict=True))["paper R"] == "0.5505"


# --- the length of a run, and its batches --------------------------------------------------------


class NoData(Data):
    def setup(self):
        pass

    def metadata(self):
        return {}

    def train_dataloader(self):
        return []

    def test_dataloader(self):
        return []


def test_global_batches():
    data = NoData()
    data.rank, data.world_size = 1, 4
    plain = data.share(Plan(256, shuffle=True))
    assert (plain.batch_size, plain.global_batch) == (256, 1024)
    data.global_batch = True
    shared = data.share(Plan(256, shuffle=True))
    assert (shared.batch_size, shared.global_batch) == (64, 256)
    data.world_size = 3
    with pytest.raises(ValueError, match="3 processes cannot share batch_size=256 equally"):
        data.share(Plan(256, shuffle=True))
    assert data.share(Plan(256)).batch_size == 86  # evaluation: every sample once


def test_max_steps_end_within_an_epoch(comparison, tmp_path):
    (run, *_) = plan(load_comparison(comparison, trust=True), tmp_path / "out", {})
    trainer = {**run.recipe["trainer"], "max_epochs": 5, "max_steps": 3}
    recipe = build_recipe({**run.recipe, "trainer": trainer})
    result = train(recipe, tmp_path / "run", progress=False)
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    last = dict(zip(rows[0].split(","), rows[-1].split(","), strict=True))
    assert (last["step"], last["val_loss"]) == ("3", "nan")  # cut short, so not validated
    assert result["epochs"] == len(rows) - 1
    assert result["val_seconds"] > 0
