"""convert, inspect and export."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import phnn
from phnn import cli
from phnn.cli.parser import translate


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ("--n 2", "PHConv2d n=2"),
        ("--n 4 --terms 3 --share-algebra", "PHConv2d n=4 terms=3"),
        ("--algebra complex --exclude conv1,fc", "PHConv2d complex"),
        ("--algebra complex --learn-algebra --include layer1.*", "PHConv2d complex learned"),
        ("--budget 0.6 --start nearest", "PHConv2d n="),
    ],
)
def test_convert(dense, call, options, kind):
    small = dense.with_name("small.safetensors")
    code, out, _ = call("convert", dense, *options.split(), "-o", small)
    assert code == 0
    assert "layers replaced" in out
    assert f"wrote {small}, {small.stat().st_size:,} bytes" in out
    code, out, _ = call("inspect", small)
    assert code == 0
    assert kind in out
    assert f"{small.stat().st_size:,} bytes in {small}" in " ".join(out.split())
    assert phnn.load(small).phnn_metadata == phnn.load(dense).phnn_metadata


def test_convert_names_and_functions(here, call):
    assert call("convert", "resnet20", "--n", 4, "--start", "random", "-o", "zoo")[0] == 0
    assert phnn.load(here / "zoo").layer1[0].conv1.n == 4
    assert call("convert", "mynetworks:make", "--n", 4, "-o", "own.safetensors")[0] == 0
    import mynetworks

    assert phnn.load(here / "own.safetensors", model=mynetworks.make)[0].n == 4


def test_inspect_a_name(call):
    for options, count in (
        ("", "272,474"),
        ("--n 4", "71,162"),
        ("--algebra quaternion", "69,818"),
    ):
        code, out, _ = call("inspect", "resnet20", *options.split())
        assert code == 0
        assert f"resnet20: {count}" in out


@pytest.mark.parametrize(
    ("format", "suffix", "options"),
    [("onnx", "onnx", ""), ("torch", "pt2", "--fold --shape 2,3,8,8 --no-dynamic-batch")],
)
def test_export(dense, call, format, suffix, options):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    file = dense.parent / "new" / f"model.{suffix}"
    code, out, _ = call("export", dense, "--format", format, "-o", file, *options.split())
    assert code == 0
    assert out.startswith(f"wrote {file}: {file.stat().st_size:,} bytes; the outputs differ")
    assert "bytes with --fold" in out


def test_export_for_a_runtime(here, call, refuse):
    pytest.importorskip("onnxruntime")
    code = "import phnn\n\ndef make():\n    return phnn.PHLinear(64, 64, n=2)\n"
    (here / "ph.py").write_text(code)
    np.save(here / "rows.npy", torch.randn(9, 64).numpy())
    plan = {"runtime": "onnxruntime", "layers": {"": {"form": "cp_rows", "rank": 3}}}
    (here / "plan.json").write_text(json.dumps(plan))
    argv = ["export", "ph:make", "-o", "a.onnx", "--shape", "2,64"]
    small = ["--runtime", "onnxruntime", "--plan", "plan.json", "--storage", "int8", "--opset", 20]
    code, out, _ = call(*argv, *small)
    assert code == 0
    assert "1 cp_rows" in out
    assert 64 * 32 < (here / "a.onnx").stat().st_size < 64 * 32 + 6000
    code, out, _ = call(*argv, "--quantize", "static", "--calibration", "rows.npy")
    assert code == 0
    assert "of the largest" in out
    assert "runtime must be one of torch, compile, " in refuse(*argv, "--runtime", "tpu")
    assert "give --calibration" in refuse(*argv, "--quantize", "static")


def test_export_a_name(here, call):
    argv = ["export", "resnet20", "--n", 2, "--shape", "1,3,8,8", "--format", "torch"]
    assert call(*argv, "-o", "a.pt2")[0] == 0
    assert torch.export.load(here / "a.pt2").module()(torch.randn(3, 3, 8, 8)).shape == (3, 10)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("convert {dense} --n 2", "arguments are required: -o/--out"),
        ("convert --n 2 -o x.safetensors", "arguments are required: MODEL"),
        ("convert {dense} more --n 2 -o x.safetensors", "one argument too many: more"),
        ("convert {dense} -o x.safetensors", "give --n, --algebra, --budget"),
        ("convert {dense} --n 2 --budget 0.5 -o x.safetensors", "leave --n, --terms and --alg"),
        (
            "convert {dense} --n 0 -o x.safetensors",
            "--n: '0' is neither a whole number of at least 1 nor a pair such as 16x4",
        ),
        ("convert {dense} --n 2 --terms 9 -o x.safetensors", "terms must be between 1 and n²=4"),
        ("convert {dense} --budget 2 -o x.safetensors", "a share of the parameters in (0, 1)"),
        ("convert {dense} --budget much -o x.safetensors", "--budget: invalid float value: 'much'"),
        ("convert {dense} --algebra quaternoin -o x.safetensors", "did you mean quaternion"),
        ("convert {dense} --n 3 --algebra complex -o x.safetensors", "contradicts --n 3"),
        (
            "convert {dense} --n 3 --indivisible raise -o x.safetensors",
            "does not divide the 4 and 3 channels; use --indivisible skip or --indivisible shrink",
        ),
        ("convert {dense} --indivisible drop -o x.safetensors", "invalid choice: 'drop'"),
        ("convert {dense} --n 2 --include fd -o x.safetensors", "'fd' matches none"),
        ("convert {dense} --n 2 -o x.pt", "--out x.pt must end in .safetensors, or be a folder"),
        ("convert none --n 2 -o file/x.safetensors", "file is a file, not a folder"),
        ("inspect none.safetensors", "there is no file"),
        ("inspect resnet20 --n 3", "must divide the width 16 of layer1"),
        ("export none -o x.pt", "'onnx' must end in .onnx, got --out x.pt"),
        ("export none -o file/x.pt2 --format torch", "file is a file, not a folder"),
        ("export {dense} --format tflite -o x.onnx", "invalid choice: 'tflite'"),
        ("export {dense} --folded -o x.onnx", "there is no option --folded; did you mean --fold"),
        ("bench none -o .", ". is a folder; name a file"),
    ],
)
def test_mistakes(dense, refuse, argv, message):
    (dense.parent / "file").touch()
    assert message in refuse(*argv.format(dense=dense).split())


def test_a_program_that_cannot_be_written(here, call):
    (here / "branches.py").write_text(
        "from torch import nn\n\nclass Branches(nn.Module):\n"
        "    def forward(self, x):\n        return x if len(x) == 4 else -x\n"
    )
    argv = ["export", "branches:Branches", "--shape", "2,3", "--format", "torch", "-o", "a.pt2"]
    code, _, err = call(*argv)  # torch gives its reasons in several lines
    assert code == cli.USER_ERROR
    assert "--no-dynamic-batch may help" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("n=4 must divide 3", "--n 4 must divide 3"),
        ("give n=, or budget=", "give --n, or --budget"),
        ("n²=16, got n=0.5.", "n²=16, got --n 0.5."),
        ("fold=False may help; fold=True, too", "--no-fold may help; --fold, too"),
        ("use format=\"torch\" or format='onnx'", "use --format torch or --format onnx"),
        ("learn_n=3 and model.n=3 are others", "learn_n=3 and model.n=3 are others"),
        ("the folder runs/digits-n=4-seed0", "the folder runs/digits-n=4-seed0"),
        ("the variants 'real' and 'n=2'; n=3", "the variants 'real' and 'n=2'; --n 3"),
    ],
)
def test_words_of_the_command_line(message, words):
    options = {name: f"--{name}" for name in ("n", "budget", "fold", "format")}
    assert translate(message, options) == words


def test_control_characters_are_not_printed(here, call):
    model = nn.Sequential()
    model.add_module("\x1b[2J", nn.Linear(2, 2))
    path = phnn.save(model, here / "a.safetensors")
    code, out, _ = call("inspect", path)
    assert code == 0
    assert "\x1b" not in out
    assert "\x1b" not in call("inspect", "\x1b[2J.safetensors")[2]
