import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import phnn
from phnn import cli
from phnn.cli import training
from phnn.lab.recipe import build_recipe
from phnn.lab.runs import LAST
from phnn.lab.trained import evaluate, load_trained


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PHNN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def paint(path, level):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(level).integers(level, level + 60, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that has ended."""
    root = tmp_path_factory.mktemp("run")
    for i in range(10):
        for level, name in ((0, "dark"), (190, "light")):
            for part in ("train", "test"):
                paint(root / "images" / part / name / f"{i}.png", level + i // 2)
    recipe = root / "tiny.yaml"
    recipe.write_text(
        f"""
        model: {{name: resnet20, widths: [4, 4, 4]}}
        data: {{name: mine, root: {root / "images"}, batch_size: 6, validation: 0}}
        trainer: {{max_epochs: 4, threads: 1, energy: false, accelerator: cpu}}
        """
    )
    argv = ["train", str(recipe), "--out", str(root / "out"), "--model.n", "2", "--optimizer.lr"]
    assert cli.main([*argv, "0.05"]) == 0
    return root / "out"


def call(capsys, *argv):
    code = cli.main([str(argument) for argument in argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_train_takes_overrides(run):
    result = json.loads((run / "result.json").read_text())
    assert result["model"]["n"] == 2
    assert "lr: 0.05" in (run / "config.yaml").read_text()


def test_train_again_tells_the_result(run, capsys):
    config = run / "config.yaml"
    code, out, _ = call(capsys, "train", config, "--out", run)
    assert code == 0
    assert "test accuracy" in out
    assert "this run had ended before" in out


def test_what_is_told_of_a_run_names_no_private_folder(run, monkeypatch):
    told = [(run / "result.json").read_text(), str(phnn.load(run).phnn_metadata)]
    assert str(run.parent) not in "".join(told)
    home = Path.home()
    argv = ["phnn", "train", f"{home}/a.yaml", f"--data.root={home}/b", f"-o{home}/c", "--x"]
    monkeypatch.setattr(sys, "argv", argv)
    assert training.show_command() == "phnn train a.yaml --data.root=b -oc --x"
    others = {
        f'--data={{"root": "{home}/my/b", "name": "a/c"}}': '--data={"root": "b", "name": "a/c"}',
        f"[{home}/my/b,{home}/c]": "[b,c]",
        "https://a.org/b/c": "https://a.org/b/c",
    }
    assert {word: training._shorten(word) for word in others} == others


def test_the_seed_travels_with_a_network(run, tmp_path):
    assert load_trained(run / "model.safetensors").recipe.seed == 0
    recipe = build_recipe({"seed": 3, "data": {"name": "mine", "root": "x", "cache": "y"}})
    metadata = {**phnn.load(run).phnn_metadata, **recipe.describe()}
    saved = phnn.save(phnn.load(run), tmp_path / "a.safetensors", metadata=metadata)
    assert load_trained(saved).recipe.seed == 3
    assert load_trained(saved).recipe.data == {"name": "mine"}


def test_metadata_of_the_users_own(run, tmp_path, capsys):
    own = {**phnn.load(run).phnn_metadata, "seed": "first try", "data": "photos", "task": "mine"}
    saved = phnn.save(phnn.load(run), tmp_path / "a.safetensors", metadata=own)
    assert load_trained(saved).recipe.seed == 0
    assert load_trained(saved).recipe.data == {}
    argv = ["train", run.parent / "tiny.yaml", "--start", saved, "--out", tmp_path / "out"]
    assert call(capsys, *argv, "--model.n", 2, "--trainer.max_epochs", 1)[0] == 0


def test_a_network_that_was_saved_without_its_classes(run, tmp_path, capsys):
    saved = phnn.save(phnn.create_model("resnet20"), tmp_path / "a.safetensors")
    images = run.parent / "images"
    argv = ("test", saved, "--data.root", images, "--data.validation", 0)
    code, _, err = call(capsys, *argv, "--trainer.accelerator", "cpu")
    assert code == cli.USER_ERROR
    assert "was saved without classes and mean and std" in err


@pytest.mark.parametrize("name", ["", "model.safetensors", "checkpoints/last.ckpt"])
def test_test(run, capsys, name):
    result = json.loads((run / "result.json").read_text())
    root = run.parent / "images"
    code, out, _ = call(
        capsys, "test", run / name, "--data.root", root, "--trainer.accelerator", "cpu"
    )
    assert code == 0
    assert f"test accuracy {100 * result['test_accuracy']:.2f} %" in out


def test_other_data_are_standardized_as_those_of_training(run, tmp_path):
    shutil.copytree(run.parent / "images", tmp_path / "other")
    for name in ("dark", "light"):
        paint(tmp_path / "other" / "train" / name / "0.png", 100)
    trained, seen = load_trained(run), []
    trained.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    for root in (run.parent / "images", tmp_path / "other"):
        evaluate(trained, {"data": {"root": str(root)}}, progress=False)
    mine, others = torch.cat(seen).chunk(2)
    assert torch.equal(mine, others)


def test_predict(run, tmp_path, capsys):
    paint(tmp_path / "a.png", 0)
    Image.new("L", (30, 20), 250).save(tmp_path / "b.png")  # grey, and of another size
    table = tmp_path / "new" / "out.csv"
    code, out, _ = call(capsys, "predict", run, tmp_path / "a.png", tmp_path / "b.png", "-o", table)
    assert code == 0
    assert out.splitlines()[0].startswith(f"{tmp_path / 'a.png'}: dark (")
    with table.open() as file:
        found = list(csv.DictReader(file))
    assert [row["label"] for row in found] == ["dark", "light"]
    assert all(0.5 <= float(row["probability"]) <= 1 for row in found)


def test_predict_corrupt(run, tmp_path, capsys):
    paint(tmp_path / "a.png", 0)
    (tmp_path / "b.png").write_bytes(b"not an image")
    code, _, err = call(capsys, "predict", run, tmp_path, "-o", tmp_path / "out.csv")
    assert code == cli.USER_ERROR
    assert "b.png" in err
    assert not (tmp_path / "out.csv").exists()  # nothing was answered
    (tmp_path / "out.csv").write_text("kept")
    argv = ("predict", run, tmp_path / "c.png", "-o", tmp_path / "out.csv")
    assert call(capsys, *argv)[0] == cli.USER_ERROR
    assert (tmp_path / "out.csv").read_text() == "kept"
    code, out, _ = call(capsys, "predict", run, tmp_path, "--corrupt", "skip")
    assert code == 0
    assert len(out.splitlines()) == 1


def test_the_package_is_the_command():
    argv = [sys.executable, "-m", "phnn", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"phnn {phnn.__version__}\n"


def test_run_that_has_not_ended(run, tmp_path, capsys):
    (tmp_path / LAST).parent.mkdir()
    (tmp_path / LAST).write_bytes(b"half")
    code, _, err = call(capsys, "test", tmp_path)
    assert code == cli.USER_ERROR
    assert "has not ended" in err
    code, _, err = call(capsys, "test", tmp_path / LAST)
    assert code == cli.USER_ERROR
    assert "is damaged, or not a checkpoint" in err


@pytest.fixture
def dense(run, tmp_path):
    """A saved network of real layers, for the data of the run."""
    model = phnn.create_model("resnet20", widths=[4, 4, 4], num_classes=2)
    return phnn.save(model, tmp_path / "dense.safetensors", metadata=phnn.load(run).phnn_metadata)


def test_a_converted_network_is_trained_on(run, dense, tmp_path, capsys):
    small, out = tmp_path / "small.safetensors", tmp_path / "out"
    assert call(capsys, "convert", dense, "--n", 2, "-o", small)[0] == 0
    recipe = run.parent / "tiny.yaml"
    argv = ["train", recipe, "--start", small, "--out", out, "--trainer.max_epochs", 1]
    assert call(capsys, *argv)[0] == 0
    trained = phnn.load(out / "model.safetensors")
    assert trained.layer1[0].conv1.n == 2
    assert trained.config["n"] is None


def test_a_start_has_a_folder_of_its_own():
    names = [
        training._variant(build_recipe({"model": model, "start": start}))
        for model, start in (
            ({}, None),
            ({"n": 4}, None),
            ({}, "a/small.safetensors"),
            ({"n": 2}, "runs/b/model.safetensors"),
            ({}, "runs/lr0.1-seed0"),
        )
    ]
    assert names == ["real", "n=4", "real-from-small", "n=2-from-b", "real-from-lr0.1-seed0"]
    here = training._variant(build_recipe({"start": "model.safetensors"}))
    assert here == f"real-from-{Path.cwd().name}"


@pytest.mark.parametrize("name", ["", "model.safetensors", "checkpoints/last.ckpt"])
def test_a_run_is_a_model(run, tmp_path, capsys, name):
    file = tmp_path / "model.pt2"
    code, out, _ = call(capsys, "export", run / name, "--format", "torch", "-o", file)
    assert code == 0
    assert out.startswith(f"wrote {file}: {file.stat().st_size:,} bytes; the outputs differ")
    code, out, _ = call(capsys, "inspect", run / name)
    assert code == 0
    assert "layer1.0.conv1         PHConv2d n=2" in out
    small = tmp_path / "small.safetensors"
    assert (
        call(capsys, "convert", run / name, "--n", 2, "--terms", 1, "--include", "fc", "-o", small)[
            0
        ]
        == 0
    )
    assert phnn.load(small).phnn_metadata["classes"] == ["dark", "light"]


def test_tables(capsys):
    code, out, _ = call(capsys, "tables", "--format", "csv", "--only", "tab:img_img")
    assert code == 0
    assert "PHResNet50" in out


@pytest.mark.parametrize(
    "argv", [["--version"], ["--help"], ["train", "--help"], ["compare", "--help"], []]
)
def test_help(argv, capsys):
    try:
        code = cli.main(argv)
    except SystemExit as end:
        code = end.code
    assert code == 0
    out = capsys.readouterr().out
    assert (phnn.__version__ if "--version" in argv else "phnn") in out
    if argv[:1] == ["train"]:
        assert "resnet18-cifar10" in out
        assert "--trainer.devices" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("trian digits", "there is no command trian; did you mean train"),
        ("train digts", "unknown recipe 'digts'; did you mean digits"),
        ("train nowhere.yaml", "there is no recipe file nowhere.yaml"),
        ("train", "recipe"),
        (
            "train digits --optimizer.rl 1",
            "there is no option --optimizer.rl; did you mean --optimizer",
        ),
        ("train digits more", "one argument too many: more; see phnn train --help"),
        ("train digits --optimizer.lr fast", "Expected a float. Got value: fast"),
        ("train digits --model.n 5 --out {tmp}", "n=5 must divide"),
        ("train digits --model.algebra quaternoin --out {tmp}", "quaternion"),
        ("train digits --model.withs [4] --out {tmp}", "widths"),
        ("train digits --data.name cifra10 --out {tmp}", "did you mean cifar10"),
        ("train digits --data.nam x --out {tmp}", "unknown data option 'nam'; did you mean name"),
        ("train digits --start {tmp}/no.safetensors --out {tmp}", "no.safetensors"),
        ("compare digts", "unknown comparison 'digts'; did you mean digits"),
        ("compare digits --jobs 0", "jobs=0 must be at least 1"),
        ("compare digits --trainer.max_epoch 1", "did you mean --trainer.max_epochs"),
        ("test {tmp}/nothing", "there is no"),
        ("predict {tmp}/nothing a.png", "there is no"),
        ("tables --format html", "html"),
    ],
)
def test_mistakes_are_told_in_one_line(argv, message, tmp_path, capsys):
    code, out, err = call(capsys, *argv.format(tmp=tmp_path).split())
    assert code == cli.USER_ERROR
    assert message in err
    assert err.startswith("phnn: ")
    assert err.count("\n") == 1
    assert "Traceback" not in out + err


def test_our_own_mistakes_are_not_hidden(monkeypatch):
    def broken(*args):
        raise KeyError("a bug")

    monkeypatch.setattr("phnn.cli.reports.tables", broken)
    monkeypatch.setattr("phnn.cli.lab.parse", lambda function, argv: {})
    with pytest.raises(KeyError):
        cli.main(["tables"])
