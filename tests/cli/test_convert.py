"""phnn convert: calibration data, scores, curves and progress."""

import csv

import numpy as np
import pytest
import torch

import phnn
from phnn import _screen
from phnn.cli import calibration
from phnn.cli.calibration import read_calibration

SCORES = """
import torch
from mynetworks import make

x = torch.randn(64, 4, 4, 4, generator=torch.Generator().manual_seed(0))
torch.manual_seed(0)
original = make().eval()

def network():
    return original

def inputs():
    return x

def agreement(model):
    return (model(x).argmax(1) == original(x).argmax(1)).float().mean()

def error(model):
    return (model(x) - original(x)).square().mean().sqrt()

def text(model):
    return "good"

def fails(model):
    raise KeyError("labels")
"""
MODEL = "scores:network"


@pytest.fixture
def scores(here, monkeypatch):
    monkeypatch.setattr(_screen, "QUIET", 1e9)  # a slow machine would report
    (here / "scores.py").write_text(SCORES)
    np.save(here / "x.npy", np.random.default_rng(0).normal(size=(64, 4, 4, 4)))
    return here


def convert(call, *options):
    return call("convert", MODEL, "-o", "small.safetensors", *options)


@pytest.mark.parametrize("data", ["x.npy", "scores:inputs"])
def test_a_budget_with_data(scores, call, data):
    code, out, err = convert(call, "--budget", 0.5, "--calibration", data, "--cache", "kept")
    assert code == 0, err
    assert "multiplications for a sample" in " ".join(out.split())
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("wrote"))
    assert list((scores / "kept").iterdir())
    import scores as module

    small = phnn.load(scores / "small.safetensors", model=module.make)
    assert sum(p.numel() for p in small.parameters()) <= 0.5 * 828


def test_kinds(scores, call):
    argv = ["--budget", 0.5, "--calibration", "x.npy", "--kinds", "low rank,square"]
    code, out, err = convert(call, *argv)
    assert code == 0, err
    assert "n=4x2" not in out


@pytest.mark.parametrize(
    "options",
    [
        "--evaluate scores:agreement --tolerance 0.7",
        "--evaluate scores:agreement --tolerance 0.7 --relative",
        "--evaluate scores:error --tolerance 2 --lower-is-better",
    ],
)
def test_a_score(scores, call, options):
    argv = [*options.split(), "--calibration", "x.npy", "--curve", "curve.csv"]
    code, out, err = convert(call, *argv)
    assert code == 0, err
    assert "wrote curve.csv" in out
    with (scores / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["budget"] for row in rows][:2] == ["1.0", "0.8"]
    (chosen,) = (row for row in rows if row["chosen"] == "True")
    import scores as module

    small = phnn.load(scores / "small.safetensors", model=module.make).eval()
    assert sum(p.numel() for p in small.parameters()) == int(chosen["parameters"])


def test_a_curve_of_budgets(scores, call, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("phnn.conversion.tradeoffs.BUDGETS", (0.7, 0.001))
    argv = ["--budget", 0.5, "--calibration", "x.npy", "--curve", "new/curve.png"]
    code, _, err = convert(call, *argv)
    assert code == 0, err
    assert (scores / "new/curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "give --n, --algebra, --budget, --compute or --tolerance"),
        ("--tolerance 0.1", "--tolerance searches among fitted models; give --calibration"),
        ("--evaluate scores:text --calibration x.npy", "smallest model; give --tolerance as well"),
        ("--compute 0.5", "--compute counts multiplications for real inputs; give --calibration"),
        ("--budget 0.5 --curve a.png", "--curve needs sizes to compare; give --calibration"),
        ("--budget 0.5 --calibration x.npy --curve a.pdf", "--curve a.pdf must end in .csv, .png"),
        ("--budget 0.5 --calibration y.npy", "there is no file y.npy"),
        ("--budget 0.5 --calibration y", "there is no file or folder y; --calibration takes arr"),
        (
            "--budget 0.5 --calibration training",
            "is neither the folder of a run nor",
        ),
        ("--budget 0.5 --calibration photos", "is neither the folder of a run nor"),
        ("--budget 0.5 --calibration scores:none", "scores has no function 'none'"),
        ("--budget 0.5 --calibration x.npy --samples 0", "'0' is not a whole number of at least 1"),
        ("--budget 0.5 --calibration x.npy --kinds flat", "unknown kind of structure 'flat'"),
        ("--budget 0.01 --calibration x.npy", "--budget 0.01 of 828 parameters cannot be met"),
        (
            "--n 4 --tolerance 0.1 --calibration x.npy",
            "finds the size; leave --n out",
        ),
        ("--tolerance 0.1 --calibration x.npy", "--evaluate validation needs to know how the"),
        (
            "--evaluate scores:text --tolerance 0.1 --calibration x.npy",
            "evaluate must return a finite number, got 'good'",
        ),
        (
            "--evaluate scores:fails --tolerance 0.1 --calibration x.npy",
            "scores:fails fails: KeyError: 'labels'; PHNN_DEBUG=1 shows where",
        ),
        (
            "--evaluate accuracy --tolerance 0.1 --calibration x.npy",
            "--evaluate accuracy is neither package.module:function nor validation",
        ),
        (
            "--evaluate scores:agreement --tolerance -1 --calibration x.npy",
            "at least 0, got --tolerance -1.0",
        ),
        (
            "--evaluate scores:error --tolerance 0 --calibration x.npy",
            "no smaller network keeps the score within --tolerance 0.0",
        ),
    ],
)
def test_mistakes(scores, refuse, options, message):
    (scores / "photos").mkdir()
    argv = ["convert", MODEL, "-o", "small.safetensors", *options.split()]
    if "scores:error" in options:  # falls where it should rise: lower is better was forgotten
        argv = [*argv, "--lower-is-better"]
    assert message in refuse(*argv)
    assert not (scores / "small.safetensors").exists()


def test_samples_are_drawn_by_seed(scores):
    model = torch.nn.Linear(4, 4).half()
    np.savez(scores / "two.npz", a=np.arange(50.0), b=np.arange(50))
    first, again, other = (read_calibration("two.npz", "", model, 10, seed) for seed in (0, 0, 1))
    assert [len(array) for array in first] == [10, 10]
    assert torch.equal(first[0].long(), first[1])
    assert first[0].dtype == torch.float16
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1])
    np.savez(scores / "two.npz", a=np.arange(5), b=np.arange(6))
    with pytest.raises(ValueError, match=r"counts the same samples, got \(5,\) and \(6,\)"):
        read_calibration("two.npz", "", model, 10, 0)


def test_images_are_read_as_in_training(scores, call):
    pytest.importorskip("lightning")
    from PIL import Image

    (scores / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(7):
        pixels = rng.integers(0, 255, (9, 11, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(scores / "photos" / f"{i}.png")
    model = phnn.create_model("resnet20", widths=[4, 4, 4], num_classes=2)
    about = {"classes": ["a", "b"], "image_size": [8, 8], "crop": 1.0}
    about |= {"mean": [0.5] * 3, "std": [0.25] * 3, "task": "images"}
    phnn.save(model, "net.safetensors", metadata=about)
    (batch,) = calibration.read_calibration("photos", "net.safetensors", model, 5, 0)
    assert batch.shape == (5, 3, 8, 8)
    assert -2 <= batch.min() < -1 < 1 < batch.max() <= 2
    argv = ["convert", "net.safetensors", "--budget", 0.7, "--calibration", "photos"]
    assert call(*argv, "-o", "small.safetensors")[0] == 0
