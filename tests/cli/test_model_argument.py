"""MODEL, the argument that convert, inspect, export and bench share."""

import sys

import pytest
import torch
from torch import nn

import phnn
from phnn.cli.model_argument import find_file, find_model

COMMANDS = ["convert {} --n 2 -o out.safetensors", "inspect {}"]
COMMANDS += ["export {} --shape 1,4 --format torch -o out.pt2", "bench {} --shape 1,4 --rounds 1"]


def test_the_name_of_a_network(here):
    found = find_model("resnet20", n=4, algebra=None)
    assert found.model.config["n"] == 4
    assert not found.model.training
    (here / "vgg11").mkdir()
    assert find_model("vgg11").model.config["name"] == "vgg11"  # ./vgg11 is the folder


def test_a_file(dense):
    found = find_model(str(dense))
    assert found.metadata == {"image_size": [8, 8]}
    assert found.shape == (3, 8, 8)
    assert find_file(str(dense)) == dense


def test_a_folder(here):
    phnn.save(phnn.create_model("resnet20", widths=[4, 4, 4]), here / "run")
    assert find_file("run").name == "model.safetensors"
    assert find_model("run").shape is None


@pytest.mark.parametrize("size", [[30000, 30000], [0, 8], [-8, -8], [8], "8", [8.5, 8], [True, 8]])
def test_sizes_that_cannot_be_meant(here, size):
    model = phnn.create_model("resnet20", widths=[4, 4, 4])
    path = phnn.save(model, here / "a.safetensors", metadata={"image_size": size})
    assert find_model(str(path)).shape is None


@pytest.mark.parametrize("name", ["make", "model", "Embeds"])
def test_a_function_a_module_or_a_class(here, name):
    before = list(sys.path)
    found = find_model(f"mynetworks:{name}")
    assert isinstance(found.model, nn.Module)
    assert not found.model.training
    assert sys.path == before


def test_a_function_in_a_package(here):
    (here / "package").mkdir()
    (here / "package" / "deep.py").write_text(
        "import torch\n\ndef make():\n    import mynetworks\n    return mynetworks.make()\n"
    )
    assert len(find_model("package.deep:make").model) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resnet21", "there is no network, file or folder resnet21; did you mean resnet20"),
        ("none.safetensors", "there is no file or folder none.safetensors; give the name of"),
        ("none/of/them", "there is no file or folder none/of/them"),
        ("x.pt", "x.pt is a pickle of torch, which may run code"),
        ("x.pth", "load it in a function of yours, put its weights into a model"),
        ("x.wav", "x.wav is a recording, not a model"),
        ("x.png", "x.png is an image, not a model"),
        ("x.npy", "x.npy is an array, not a model; give the name of a network"),
        ("x.yaml", "x.yaml is a recipe, not a model; phnn train"),
        ("x.onnx", "x.onnx is an exported program, not a model; give the model"),
        ("x.bmp", "x.bmp is truncated or not a .safetensors file"),
        ("x.safetensors", "x.safetensors is truncated or not a .safetensors file"),
        ("empty", "empty is an empty folder; give the name of"),
        ("stopped", "the run in stopped has not ended; continue it with phnn train, or give"),
        ("others", "the folder others holds no model.safetensors; give the name of"),
        ("runs", "holds no model.safetensors; give a run inside it, such as runs/a"),
        ("nowhere:make", "nowhere:make: there is no module nowhere"),
        ("mynetworks:maek", "mynetworks has no function 'maek'; did you mean make?"),
        ("mynetworks:", "mynetworks has no function ''; give the name of one after the colon"),
        ("mynetworks:number", "mynetworks:number is a int, not a function"),
        ("mynetworks:needs", "needs needs arguments, (width, height=3); give a function that"),
        ("mynetworks:nothing", "mynetworks:nothing returns NoneType, not a torch.nn.Module"),
        ("mynetworks:fails", "mynetworks:fails fails: KeyError: 'width'; PHNN_DEBUG=1 shows"),
        (
            "broken:make",
            "the import of broken fails: ModuleNotFoundError: No module named 'absent'",
        ),
        ("wrong:make", "the import of wrong fails: SyntaxError: "),
    ],
)
def test_what_is_no_model(here, refuse, text, message):
    for suffix in ("pt", "pth", "wav", "png", "npy", "yaml", "onnx", "bmp", "safetensors"):
        (here / f"x.{suffix}").write_bytes(b"not what it seems")
    for folder in ("empty", "stopped/checkpoints", "others", "runs/a"):
        (here / folder).mkdir(parents=True)
    (here / "stopped" / "checkpoints" / "last.ckpt").touch()
    (here / "others" / "notes.txt").touch()
    (here / "runs" / "a" / "model.safetensors").touch()
    (here / "broken.py").write_text("import absent")
    (here / "wrong.py").write_text("def make(:")
    for command in COMMANDS:
        assert message in refuse(*command.format(text).split())
    assert not list(here.glob("out*"))


def test_a_file_that_needs_the_code_of_its_model(here, own, refuse, call):
    for command in (COMMANDS[0], *COMMANDS[2:]):
        message = refuse(*command.format("own.safetensors").split())
        assert "give --build package.module:function, which builds the original" in message
    assert call("inspect", own)[0] == 0
    (here / "builds.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Linear(4, 4))\n"
    )
    for command in (COMMANDS[0], COMMANDS[2], f"{COMMANDS[3]} --n 2"):
        line = command.format("own.safetensors --build builds:make")
        assert call(*line.split())[0] == 0
    x = torch.randn(2, 4)
    program = torch.export.load(here / "out.pt2").module()
    with torch.no_grad():
        assert torch.allclose(program(x), phnn.load(own, model=nn.Sequential(nn.Linear(4, 4)))(x))


def test_build_is_for_files_that_need_it(dense, refuse):
    message = refuse(*COMMANDS[2].format("resnet20 --build mynetworks:make").split())
    assert "--build mynetworks:make is for a file of a converted model" in message
    message = refuse(*COMMANDS[2].format(f"{dense} --build mynetworks:make").split())
    assert "says how to build its model; leave out --build" in message


@pytest.mark.parametrize("text", ["dense.safetensors", "mynetworks:make"])
def test_options_for_names_alone(dense, refuse, text):
    for option in ("--n 4", "--algebra quaternion"):
        message = refuse("inspect", text, *option.split())
        assert f"{option} is for the name of a network, and {text} is not one" in message
