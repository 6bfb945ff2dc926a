"""Records of runs and studies that somebody altered: named, and never a traceback."""

import json
import random
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from attack.harm import alter
from phnn import cli
from phnn._screen import Screen
from phnn.lab import trained
from phnn.lab.comparison import load_comparison
from phnn.lab.files import FileError
from phnn.lab.reports import figures, report, study
from phnn.lab.reports.curves import read_curve
from phnn.lab.reports.shipped import _show_speed
from phnn.lab.reports.summaries import Row, summarize_row
from phnn.lab.runs import Run, RunFolderError
from phnn.lab.tasks import find_task
from phnn.lab.tasks.images.report.answers import _read
from phnn.lab.training.epochs import MetricsFile

STUDY = Path(__file__).parents[3] / "results" / "tune-cifar10" / "study.json"
METRICS = "epoch,step,train_loss,seconds\n0,4,1.0,1.0\n1,8,0.9,2.0\n"


def test_a_study_of_wrong_types_is_named(tmp_path):
    sound = json.loads(STUDY.read_text())
    messages = []
    for seed in range(150):
        tree = deepcopy(sound)
        alter(random.Random(seed), tree)
        (tmp_path / "study.json").write_text(json.dumps(tree))
        try:
            found = study.read_study(tmp_path)
        except ValueError as error:
            messages.append(str(error))
            continue
        study._show_best(found)
        study._show_trials(found)
        study._show_provenance(found)
    assert 50 < len(messages) < 150
    assert all("study.json is damaged" in message for message in messages)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("best", [99], "best trials"),
        ("objectives", [], "no objectives"),
        ("importance", {"x": {}}, "no objective"),
        ("importance", {"accuracy": 3}, "accuracy is a int"),
        ("trials", [3], "expected a mapping, found int"),
        ("seed", True, "seed is a bool"),
    ],
)
def test_what_is_wrong_with_a_study_is_told(tmp_path, key, value, message):
    (tmp_path / "study.json").write_text(json.dumps(json.loads(STUDY.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=rf"study\.json.*{message}"):
        study.read_study(tmp_path)


def test_every_choice_of_a_study_has_its_tick(tmp_path):
    tree = json.loads(STUDY.read_text())
    tree["space"]["optimizer.lr"] = "[0.12345,none]"
    for trial in tree["trials"]:
        trial["options"]["optimizer.lr"] = 0.12345
    (tmp_path / "study.json").write_text(json.dumps(tree))
    panel = study.draw_slice(study.read_study(tmp_path), "optimizer.lr").axes[0]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["0.12345", "none"]


@pytest.mark.parametrize(
    "content",
    [
        METRICS + "x" * 200_000 + ",1,1,1\n",
        METRICS.replace("0.9", "abc"),
        METRICS.replace("\n1,", "\nq,"),
        "\ufffe".encode("utf-16"),
    ],
)
def test_a_log_of_wrong_values_is_named(tmp_path, content):
    path = tmp_path / "metrics.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileError, match=r"metrics\.csv"):
        read_curve(tmp_path)


def test_a_log_that_is_continued(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(METRICS + "2,12\n")  # torn
    log = MetricsFile(path)
    log.rewind(1)
    log.append({"epoch": 1, "step": 8, "train_loss": 0.5, "seconds": 3.0})
    assert path.read_text() == "epoch,step,train_loss,seconds\n0,4,1.0,1.0\n1,8,0.5,3.0\n"
    path.write_text(METRICS.replace("epoch", "epox"))
    with pytest.raises(FileError, match=r"metrics\.csv has no column epoch"):
        log.rewind(1)


def test_a_benchmark_without_columns_is_named(tmp_path):
    (tmp_path / "bench.csv").write_text("form,runtime\na,b\n")
    with pytest.raises(FileError, match=r"bench\.csv has no column inference_seconds"):
        _show_speed(tmp_path / "bench.csv")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("parameters", 0),
        ("parameters", 10**400),
        ("conv_parameters", "x"),
        ("conv_parameters", 0),
        ("energy_kwh", "x"),
        ("val_accuracy", []),
        ("test_accuracy", float("inf")),
    ],
)
def test_a_result_of_wrong_numbers_is_named(key, value):
    result = {"parameters": 5, "storage_bytes": 1, "train_seconds": 1.0, "test_accuracy": 0.5}
    run = Run(Path("a"), "f", "real", 0, {}, {**result, key: value})
    with pytest.raises(RunFolderError, match=rf"result\.json is damaged \({key}"):
        summarize_row(find_task("images"), Row("f", "real", True, {}), [run], baseline=[run])


def test_an_unwritable_output_is_found_before_the_work(tmp_path, monkeypatch, capsys):
    def refuse(*given, **options):
        pytest.fail("the work has begun")

    monkeypatch.setattr(report, "_make_sections", refuse)
    monkeypatch.setattr(figures, "_draw_results", refuse)
    monkeypatch.setattr(trained, "load_trained", refuse)
    (tmp_path / "file").write_text("")
    inside, results = str(tmp_path / "file" / "a.csv"), str(STUDY.parents[1] / "digits")
    for argv in (["report", results], ["figures", results], ["predict", "m", "a.png"]):
        assert cli.main([*argv, "--out", inside]) == cli.USER_ERROR
        assert "is a file, not a folder" in capsys.readouterr().err
    for command in ("train", "compare"):
        assert cli.main([command, "digits", "--out", str(tmp_path / "file")]) == cli.USER_ERROR
        assert "is a file, or in a file; name a folder" in capsys.readouterr().err


def test_titles_and_errors_move_no_cursor(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text('title: "a\\e[2Jb"\nfamilies: {digits: {real: }}')
    assert load_comparison(path).title == "a\\x1b[2Jb"
    Screen(quiet=0.0).say("run failed: \x1b[2J")
    assert capsys.readouterr().err == "run failed: \\x1b[2J\n"


@pytest.mark.parametrize("change", [{"labels": np.array([0, 7])}, {"predictions": np.array([0])}])
def test_answers_that_do_not_fit_are_made_again(tmp_path, caplog, change):
    kept = {"labels": np.array([0, 1]), "predictions": np.array([1, 1])}
    kept |= {"classes": np.array(["a", "b"]), "probabilities": np.ones(2), "digest": "d"}
    np.savez(tmp_path / "a.npz", **kept)
    assert _read(tmp_path / "a.npz", "d").classes == ("a", "b")
    np.savez(tmp_path / "a.npz", **{**kept, **change})
    assert _read(tmp_path / "a.npz", "d") is None
    assert "is damaged" in caplog.text
