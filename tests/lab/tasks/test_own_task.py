"""A third task, added as docs/own-task.md says, word for word."""

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from helpers.comparisons import run_in_process
from phnn import cli
from phnn.lab.tasks import Data, Score, Task, find_task, list_tasks, register
from phnn.lab.trained import evaluate, load_trained

PAGE = Path(__file__).parents[3] / "docs" / "own-task.md"


def write_files(folder):
    """Write the files of the page, and what pip writes when it installs their package."""
    for name, text in re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    pyproject = (folder / "pyproject.toml").read_text()
    points = re.search(r'entry-points\."(.*?)"\]\n(.*)', pyproject, re.DOTALL)
    info = folder / "brightness-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brightness\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[{points[1]}]\n{points[2]}".replace('"', ""))
    Image.new("RGB", (40, 30), (255, 0, 0)).save(folder / "photo.png")


def read_commands():
    """Return the commands of the page, without the program."""
    (text,) = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [shlex.split(line)[2:] for line in text.splitlines() if line.startswith("$ phnn")]


@pytest.fixture
def package(tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_page_works_as_written(package, monkeypatch, capsys):
    assert "brightness" in list_tasks()
    started = run_in_process(monkeypatch)
    commands = read_commands()
    assert [command[0] for command in commands] == ["train", "test", "predict", "compare"]
    options = {"train": ["--trainer.accelerator", "cpu"], "compare": ["--jobs", "1"]}
    printed = []
    for name, *arguments in commands:
        assert cli.main([name, *arguments, *options.get(name, [])]) == 0
        printed.append(capsys.readouterr().out)
    summary = " ".join(printed[0].split())  # lines are wrapped to 80 columns
    assert re.search(r"test mean absolute error 0\.\d+ .* parameters; see runs/bright", summary)
    assert "test mean absolute error 0." in printed[1]
    with Path("brightness.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["image"] == "photo.png"
    assert f"photo.png: {float(row['brightness']):.3f}" in printed[2]
    assert started == ["bright-real-seed0", "bright-n=2-seed0"]
    assert "mean absolute error ↓" in printed[3]
    results = json.loads(Path("runs/sizes/results.json").read_text())
    assert results["task"] == "brightness"
    assert [run["status"] for run in results["runs"]] == ["finished", "finished"]


def test_its_networks_are_tested_as_others(package):
    assert cli.main(["train", "bright.yaml", "--trainer.max_epochs", "1", "--out", "run"]) == 0
    result = json.loads(Path("run/result.json").read_text())
    for path in ("run", "run/model.safetensors", "run/checkpoints/best.ckpt"):
        trained = load_trained(path)
        assert trained.task is find_task("brightness")
        overrides = {"data": {"count": 128, "batch_size": 16}}
        scores = evaluate(trained, overrides, progress=False)
        assert scores["test_error"] == pytest.approx(result["test_error"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.cuont", "3"], "there is no option --data.cuont; did you mean --data.count"),
        (["--data.count", "3"], "--data.count 3 must be at least 4"),
        (["--task", "brigthness"], "unknown task 'brigthness'; did you mean brightness"),
    ],
)
def test_mistakes_are_named(package, capsys, arguments, message):
    assert cli.main(["train", "bright.yaml", *arguments]) == cli.USER_ERROR
    assert message in capsys.readouterr().err


def test_mistakes_are_named_before_lightning_is_imported(package):
    code = (
        "import sys; sys.argv[1:] = ['train', 'digits', '--data.limit', '0']\n"
        "from phnn.lab.packaged import read_recipe\n"
        "from phnn.lab.recipe import build_recipe, merge\n"
        "from phnn.lab.training import train\n"
        "trees = {'digits': {'data': {'limit': 0}}, 'sednet-short': {'data': {'overlaps': 0}},\n"
        "         'bright.yaml': {'data': {'count': 0}}, 'cifar10-short': {'model': {'n': 77}}}\n"
        "for name, mistake in trees.items():\n"
        "    try:\n"
        "        train(build_recipe(merge(read_recipe(name), mistake)), 'out')\n"
        "        print(name, 'accepted')\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
        "print([name for name in ('lightning', 'torchmetrics') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    *errors, imported = done.stdout.splitlines()
    assert imported == "[]", done.stdout
    assert [error.split(" ")[0] for error in errors[:3]] == ["limit=0", "overlaps=0", "count=0"]
    assert "77" in errors[3]
    assert not Path("out").exists()


# --- the registry --------------------------------------------------------------------------------


def make_task(name, label="error"):
    return Task(
        name,
        scores=(Score("error", label),),
        data=Data,
        learner="brightness.learner:Regressor",
        network_options=lambda data: {},
    )


def test_registered_tasks():
    task = make_task("mine-alone")
    assert register(task) is task
    assert find_task("mine-alone") is task
    assert register(task) is task  # again, as when a notebook cell is run twice
    with pytest.raises(ValueError, match="there is a task 'images' already"):
        register(make_task("images"))


def test_the_tasks_of_the_package():
    assert list_tasks()[:2] == ["images", "sound"]
    assert find_task("images").primary.show(0.5) == "accuracy 50.00 %"
    with pytest.raises(ValueError, match="unknown task 'sounds'; did you mean sound"):
        find_task("sounds")
