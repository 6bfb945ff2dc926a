"""What the command line imports, and what it does without."""

import importlib.util
import subprocess
import sys

import pytest

import phnn
from phnn import cli

BLOCKED = ["lightning", "yaml", "jsonargparse", "datasets", "PIL", "matplotlib", "sklearn"]
BLOCKED += ["torchmetrics", "tensorboard", "captum", "codecarbon", "soundfile", "tqdm", "rich"]
WITHOUT = '''
import sys

class Without:
    """A finder that does not know some packages, as if nobody had installed them."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *args):
        hidden = name.partition(".")[0] in sys.argv[1].split(",")
        return None if hidden else self.finder.find_spec(name, *args)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path = [Without(finder) for finder in sys.meta_path]
from phnn import cli

for command in sys.argv[2:]:
    print("$", command, cli.main(command.split()), file=sys.stderr)
'''
REPORT = """
import atexit, sys, time
from phnn import cli

def report():
    heavy = "torch numpy yaml jsonargparse lightning safetensors PIL matplotlib".split()
    print("IMPORTED", *[name for name in heavy if name in sys.modules], file=sys.stderr)
    print("SECONDS", time.process_time(), file=sys.stderr)

atexit.register(report)
sys.exit(cli.main(sys.argv[1:]))
"""


def run_without(here, *commands):
    """Runs commands in one process without the extras; returns exit codes and errors."""
    arguments = [sys.executable, "-c", WITHOUT, ",".join(BLOCKED), *commands]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=here)
    assert "Traceback" not in done.stderr, done.stderr
    codes = {
        line[2:-2]: int(line[-1]) for line in done.stderr.splitlines() if line.startswith("$ ")
    }
    return codes, done.stderr


def run_watched(here, *argv):
    """Runs a command; returns it, the heavy packages it imported, and its processor time."""
    arguments = [sys.executable, "-c", REPORT, *map(str, argv)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=here)
    lines = dict(line.partition(" ")[::2] for line in done.stderr.splitlines())
    return done, lines["IMPORTED"].split(), float(lines["SECONDS"])


@pytest.mark.parametrize(
    "argv",
    ["--help", "-h", "", "--version", *(f"{command} --help" for command in cli.LIBRARY)],
)
def test_help_needs_neither_torch_nor_anything_else(tmp_path, argv):
    done, imported, seconds = run_watched(tmp_path, *argv.split())
    assert done.returncode == 0
    assert "phnn" in done.stdout
    assert imported == []
    assert seconds < 1


def test_the_help_lists_every_command(tmp_path):
    out = run_watched(tmp_path, "--help")[0].stdout
    assert all(f"\n  {command:8}  " in out for command in [*cli.LIBRARY, *cli.LAB])
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("trian digits", "there is no command trian; did you mean train"),
        ("convert x --nn 3", "there is no option --nn; did you mean --n"),
        ("convert x --n 3", "required: -o/--out; see phnn convert --help"),
        ("bench x --rounds 0", "argument --rounds: '0' is not a whole number of at least 1"),
        ("export x -o x.onnx --shape 1,x", "'1,x' is not a list of sizes such as 1,3,32,32"),
    ],
)
def test_mistakes_are_answered_before_torch_is_imported(tmp_path, argv, message):
    done, imported, seconds = run_watched(tmp_path, *argv.split())
    assert done.returncode == cli.USER_ERROR
    assert message in done.stderr
    assert imported == []
    assert seconds < 1


@pytest.mark.parametrize(
    "argv",
    ["train digits --optimizer.rl 1", "train digits --optimizer.lr fast", "train", "test --help"],
)
def test_mistakes_in_the_lab_are_answered_before_lightning_is_imported(tmp_path, argv):
    _, imported, _ = run_watched(tmp_path, *argv.split())
    assert "lightning" not in imported
    assert "torch" not in imported or "--help" in argv  # which lists options of networks and data


def test_a_command_does_not_import_the_lab(dense):
    done, imported, _ = run_watched(dense.parent, "inspect", dense)
    assert done.returncode == 0
    assert not {"lightning", "yaml", "jsonargparse", "matplotlib", "PIL"} & set(imported)


def test_the_library_commands_need_no_extra(dense):
    commands = [
        "convert dense.safetensors --n 2 -o small.safetensors",
        "inspect small.safetensors",
        "inspect mynetworks:make",
        "convert mynetworks:make --n 4 -o own.safetensors",
        "export mynetworks:make --shape 1,4,4,4 -o small.pt2 --format torch",
        "bench mynetworks:make --rounds 1 --no-training --shape 1,4,4,4 -o bench.csv",
    ]
    if importlib.util.find_spec("onnxruntime") is not None:
        commands.append("export mynetworks:make --shape 1,4,4,4 -o small.onnx")
    codes, errors = run_without(dense.parent, *commands)
    assert codes == dict.fromkeys(commands, 0), errors
    written = [command.partition("-o ")[2].split()[0] for command in commands if "-o" in command]
    assert all((dense.parent / name).exists() for name in written)


def test_a_missing_extra_is_named(tmp_path):
    (tmp_path / "x.ckpt").touch()
    commands = [*cli.LAB, "export x.ckpt -o x.pt2 --format torch"]
    codes, errors = run_without(tmp_path, *commands)
    assert codes == dict.fromkeys(commands, cli.USER_ERROR)
    assert errors.count('pip install "phnn[train]"') == len(commands)
    assert "x.ckpt is a checkpoint of phnn train, and reading it needs " in errors


def test_onnx_needs_the_export_extra(here, refuse, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = refuse("export", "mynetworks:make", "--shape", "1,4,4,4", "-o", "a.onnx")
    assert 'pip install "phnn[export]", or use --format torch' in message


def test_a_runtime_that_is_missing_or_too_old_names_its_extra(refuse, monkeypatch):
    argv = ("bench", "resnet20", "--runtime", "openvino")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        assert 'pip install "phnn[openvino]"' in refuse(*argv)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1")
    message = refuse(*argv)
    assert "0.1 is too old" in message
    assert 'pip install -U "phnn[openvino]"' in message


def test_the_package_is_the_command():
    argv = [sys.executable, "-m", "phnn", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"phnn {phnn.__version__}\n"
