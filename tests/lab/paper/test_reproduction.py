"""The whole paper by one command."""

import json
import re

import pytest

from phnn import cli
from phnn.lab.comparison import load_comparison, plan
from phnn.lab.paper.sizes import derive_rows
from phnn.lab.reports.deviations import find_datasets
from phnn.lab.reports.printed import TABLES, draw_paper, parse_spread, summarize_paper
from phnn.lab.reports.summaries import Spread
from phnn.lab.reproduction import estimate_hours
from phnn.lab.reproduction.datasets import find_datasets as find_folders
from phnn.lab.reproduction.verdicts import judge_scores, judge_sizes


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PHNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Tensor Cores")
def test_a_dry_run_of_some_tables(tmp_path, capsys):
    only = "resnet18-cifar10 n=3,resnet20-svhn real,imagenet"
    argv = ["paper", "--tiny", "-o", "out", "--only", only]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    for line in ("resnet: 1 of 54 runs", "imagenet: 2 of 2 runs", "wrote out/paper.html"):
        assert line in printed
    page = (tmp_path / "out" / "paper.html").read_text()
    assert "This is a dry run with made data" in page
    assert page.count("ran (tiny)") > 3
    result = json.loads(next((tmp_path / "out/resnet").rglob("result.json")).read_text())
    accuracy = f'data-label="ours">{100 * result["test_accuracy"]:.3f}<'
    assert accuracy not in page  # no accuracy of a dry run is told
    table = (tmp_path / "out" / "resnet" / "results.md").read_text()
    assert table.startswith("# A dry run, without scores: ")
    assert "| paper % |" in table
    assert "| accuracy % |" not in table
    # again: nothing is repeated
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("result.json")}
    assert cli.main(argv) == 0
    assert {p: p.stat().st_mtime_ns for p in before} == before


@pytest.mark.slow
def test_a_dry_run_of_everything(tmp_path, capsys):
    assert cli.main(["paper", "--tiny", "-o", "out"]) == 0
    printed = capsys.readouterr().out
    for name in TABLES:
        found = re.search(rf"{name}: (\d+) of (\d+) runs", printed)
        assert found is not None
        assert found[1] == found[2]
    assert "not run" not in (tmp_path / "out" / "paper.html").read_text()


def test_without_a_gpu_it_says_how(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: None)
    (tmp_path / "data").mkdir()
    assert cli.main(["paper", "--data", "data", "-o", "out"]) == cli.USER_ERROR
    assert "give --tiny for a dry run, --estimate" in capsys.readouterr().err
    assert cli.main(["paper", "--data", "data", "-o", "out", "--estimate"]) == cli.USER_ERROR
    assert "holds none of the folders cifar10" in capsys.readouterr().err
    (tmp_path / "data" / "svhn").mkdir()
    argv = ["paper", "--data", "data", "-o", "out", "--estimate", "--only", "ablation-smallest"]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    assert re.search(r"ablation-smallest\s+10 of 10\s+\d+", printed)
    assert "not run: cifar10, cifar100, imagenet, l3das21" in printed
    assert not list((tmp_path / "out").rglob("result.json"))


def test_hours_are_those_of_the_paper(tmp_path):
    runs = plan(load_comparison("vgg"), tmp_path, {})
    real = [run for run in runs if (run.family, run.variant) == ("vgg16-cifar10", "real")]
    # 200 epochs of 391 iterations, 2.2 s for 100 of them
    assert estimate_hours(real[:1]).hours == pytest.approx(200 * 391 / 100 * 2.2 / 3600, rel=0.01)
    sound = plan(load_comparison("sednet"), tmp_path, {"data": {"root": "x"}})
    assert estimate_hours(sound[:1]).hours == pytest.approx(20)


def test_folders_of_data(tmp_path):
    for name in ("cifar-10-batches-py", "SVHN", "L3DAS21"):
        (tmp_path / name).mkdir()
    found = find_folders(tmp_path)
    assert {name: path.name for name, path in found.items()} == {
        "cifar10": "cifar-10-batches-py",
        "svhn": "SVHN",
        "l3das21": "L3DAS21",
    }
    (tmp_path / "svhn" / "cropped_digits").mkdir(parents=True)
    assert find_folders(tmp_path)["svhn"].name == "cropped_digits"


# --- verdicts ------------------------------------------------------------------------------------


def test_verdicts_on_sizes():
    found = list(judge_sizes(derive_rows("tab:sed_app", work=False)))
    wrong = [(v.row, v.column, v.paper, v.ours) for v in found if v.verdict == "differs"]
    assert wrong == [("PHSEDnet n=16", "reduction (%)", "-94", "-92.5")]
    assert sum(v.verdict == "agrees" for v in found) == 7


def test_verdicts_on_scores():
    from dataclasses import replace

    paper = summarize_paper(load_comparison("vgg"))
    family = [s for s in paper if s.family == "vgg16-cifar10"]
    equal = {v.verdict for v in judge_scores(family)}
    assert equal == {"agrees"}
    worse = [replace(s, scores={"accuracy": Spread(60.0, 0.1)}) for s in family]
    verdicts = {(v.row, v.column): v for v in judge_scores(worse)}
    assert verdicts["n=2", "accuracy %"].verdict == "differs"
    assert verdicts["n=2", "accuracy %"].deviation == "-26.510"
    assert verdicts["n=2", "train time / real"].paper == "1.45"
    waiting = [replace(s, scores={}, train_seconds_per_100=None, test_seconds=None) for s in family]
    assert {v.verdict for v in judge_scores(waiting)} == {"not run"}
    assert {v.ours for v in judge_scores(family, tiny=True)} == {""}


def test_every_printed_network_has_a_size():
    for name in TABLES:
        for summary in summarize_paper(load_comparison(name)):
            assert summary.parameters or summary.conv_parameters, (name, summary.variant)


def test_the_papers_figures():
    names = [picture.name for picture in draw_paper()]
    assert names[:3] == [
        "paper-deviation-svhn",
        "paper-deviation-cifar10",
        "paper-deviation-cifar100",
    ]
    assert {"paper-bubble-sednet", "paper-successes", "paper-radar"} < set(names)
    assert parse_spread("1.2") == Spread(1.2, None)
    groups = find_datasets(
        [s for name in ("vgg", "resnet") for s in summarize_paper(load_comparison(name))]
    )
    assert {s.family for s in groups["cifar10"]} >= {"vgg19-cifar10", "resnet152-cifar10"}
