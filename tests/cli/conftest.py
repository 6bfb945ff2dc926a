import pytest
from torch import nn

import phnn
from phnn import cli

MODULE = """
from torch import nn

model = nn.Linear(4, 4)
number = 3

def make():
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )

def nothing():
    return None

def needs(width, height=3):
    return nn.Linear(width, height)

def fails():
    raise KeyError("width")

class Adds(nn.Module):
    def forward(self, x, y):
        return x + y

class Embeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Embedding(10, 4)

    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with a module of the user's."""
    (tmp_path / "mynetworks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def dense(here):
    """A saved network of real layers, which knows the size of its images."""
    model = phnn.create_model("resnet20", widths=[4, 4, 4], num_classes=2)
    return phnn.save(model, here / "dense.safetensors", metadata={"image_size": [8, 8]})


@pytest.fixture
def own(here):
    """A saved model that create_model did not make."""
    return phnn.save(nn.Sequential(nn.Linear(4, 4)), here / "own.safetensors")


@pytest.fixture
def call(capsys):
    """Runs the command line; returns the exit code, what was printed, and the errors."""

    def run(*argv):
        code = cli.main([str(argument) for argument in argv])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def refuse(call):
    """Runs the command line, which must answer with one line; returns it."""

    def run(*argv):
        code, out, err = call(*argv)
        assert code == cli.USER_ERROR
        assert err.startswith("phnn: ")
        assert err.count("\n") == 1
        assert "Traceback" not in out + err
        return err

    return run
