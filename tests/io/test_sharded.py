"""Checkpoints in several files: converted tensor by tensor, loaded with the user's constructor."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import phnn
from phnn import cli
from phnn.io import ModelFileError, checkpoints
from phnn.io.checkpoints import Plan, convert_checkpoint

BIG = Path(__file__).parents[1] / "helpers" / "big_checkpoint.py"


class Net(nn.Module):
    """Weights of two to five axes, a lookup table that is tied to the output, and buffers."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(16, 8)
        self.conv1 = nn.Conv1d(8, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.conv3 = nn.Conv3d(4, 4, 2, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.odd = nn.Linear(8, 9)
        self.up = nn.Linear(8, 32)
        self.lm_head = nn.Linear(8, 16, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens):
        hidden = self.norm(self.conv1(self.embed_tokens(tokens).mT))
        return self.lm_head(hidden.mT), self.odd(hidden.mT), self.up(hidden.mT)


def write_shards(model, folder, tied=("lm_head.weight",)):
    """Write a checkpoint in three files, as transformers does: tied tensors once."""
    folder.mkdir()
    state = {k: v.contiguous() for k, v in model.state_dict().items() if k not in tied}
    names = list(state)
    places = {}
    for shard in range(3):
        file = f"model-0000{shard + 1}-of-00003.safetensors"
        part = {name: state[name] for name in names[shard::3]}
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def source(model, tmp_path):
    return write_shards(model, tmp_path / "source")


def test_a_checkpoint_becomes_what_convert_makes(model, source, tmp_path):
    out = tmp_path / "out"
    converted = convert_checkpoint(source, out, Plan(4, exclude=["conv3"]))
    assert set(converted.layers) == {"conv1", "conv2", "up"}  # not the table, and not what 4 skips
    assert converted.after < converted.before
    loaded = phnn.load(out, model=Net)
    expected = phnn.convert(model, 4, include=["conv1", "conv2", "up"])
    theirs = expected.state_dict()
    assert loaded.state_dict().keys() == theirs.keys()
    for name, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-6, msg=name)
    assert loaded.lm_head.weight is loaded.embed_tokens.weight
    tokens = torch.arange(6).view(1, 6)
    for ours, other in zip(loaded(tokens), expected(tokens), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)
    assert (out / "tokenizer.json").exists()
    assert not (out / ".convert.json").exists()
    names = {name for file in out.glob("*.safetensors") for name in load_file(file)}
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert names == set(index["weight_map"])


def test_embeddings_where_named(source, tmp_path):
    class Untied(Net):
        def __init__(self):
            super().__init__()
            self.lm_head = nn.Linear(8, 16, bias=False)

    model = Untied().eval()
    source = write_shards(model, tmp_path / "untied", tied=())
    convert_checkpoint(source, tmp_path / "out", Plan(4, include=["up"], embeddings=["embed*"]))
    loaded = phnn.load(tmp_path / "out", model=Untied)
    assert isinstance(loaded.embed_tokens, phnn.PHEmbedding)
    assert isinstance(loaded.up, phnn.PHLinear)
    assert type(loaded.lm_head) is nn.Linear


def test_a_stopped_conversion_continues(source, tmp_path, monkeypatch):
    out, plan = tmp_path / "out", Plan(2)
    whole = convert_checkpoint(source, tmp_path / "whole", plan)
    original, files = checkpoints._convert_file, []

    def convert(path, *args):
        files.append(path.name)
        if len(files) == 2:
            raise KeyboardInterrupt
        return original(path, *args)

    monkeypatch.setattr(checkpoints, "_convert_file", convert)
    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(source, out, plan)
    with pytest.raises(FileNotFoundError):  # no index: nothing that could be taken for a model
        phnn.load(out, model=Net)
    with pytest.raises(ValueError, match="unfinished conversion with another plan"):
        convert_checkpoint(source, out, Plan(4))
    again = convert_checkpoint(source, out, plan)
    assert [name[:11] for name in files] == [
        "model-00001",
        "model-00002",
        "model-00002",
        "model-00003",
    ]
    assert again == whole
    for file in out.glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "whole" / file.name).read_bytes()
    with pytest.raises(ValueError, match="holds a checkpoint already"):
        convert_checkpoint(source, out, plan)


def test_damage_is_told(source, tmp_path):
    out = tmp_path / "out"
    convert_checkpoint(source, out, Plan(2))
    with pytest.raises(ModelFileError, match="pass model="):
        phnn.load(out)
    with pytest.raises(ModelFileError, match="that phnn did not write"):
        phnn.load(source, model=Net)
    file = next(iter(out.glob("*.safetensors")))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelFileError, match="SHA-256 does not match"):
        phnn.load(out, model=Net)
    index = json.loads((source / "model.safetensors.index.json").read_text())
    index["weight_map"] = {"a.weight": "../elsewhere.safetensors"}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="not in this folder"):
        convert_checkpoint(source, tmp_path / "other", Plan(2))


def test_layers_that_were_misread_are_refused(tmp_path):
    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 8, 3, groups=2)
            self.fc = nn.Linear(8, 8)
            self.out = nn.Linear(8, 8)

    source = write_shards(Grouped(), tmp_path / "source", tied=())
    convert_checkpoint(source, tmp_path / "a", Plan(4))
    with pytest.raises(ModelFileError, match=r"conv is a Conv2d with 2 groups.*--exclude conv"):
        phnn.load(tmp_path / "a", model=Grouped)
    convert_checkpoint(source, tmp_path / "b", Plan(4, exclude=["conv"]))
    assert isinstance(phnn.load(tmp_path / "b", model=Grouped).fc, phnn.PHLinear)
    with pytest.raises(ModelFileError, match="the model has no layer"):
        phnn.load(tmp_path / "b", model=lambda: nn.Sequential(nn.Linear(8, 8)))


def test_half_precision_stays(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).bfloat16()
    source = write_shards(model, tmp_path / "source", tied=())
    convert_checkpoint(source, tmp_path / "out", Plan(2, terms=4))  # every weight is reproduced
    loaded = phnn.load(
        tmp_path / "out", model=lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in "abc")).bfloat16()
    )
    assert loaded[0].F.dtype == torch.bfloat16
    torch.testing.assert_close(loaded[0].weight, model[0].weight, rtol=0.05, atol=0.02)


def test_the_command_line(source, tmp_path, capsys):
    argv = ["convert", str(source), "-o", str(tmp_path / "out")]
    assert cli.main([*argv, "--n", "4", "--exclude", "conv3,odd"]) == 0
    assert "3 weights became PH layers" in capsys.readouterr().out
    for options, message in (
        (["--budget", "0.3"], "leave --budget out"),
        ([], "needs --n"),
        (["--n", "7"], "no weight of"),
        (["--n", "4", "--include", "none*"], "names no weight"),
    ):
        argv[-1] = str(tmp_path / "other")
        assert cli.main([*argv, *options]) == cli.USER_ERROR
        assert message in capsys.readouterr().err
    assert cli.main(["convert", "resnet20", "--n", "2", "--embeddings", "a", "-o", "x.safetensors"])
    assert "--embeddings is for a sharded checkpoint" in capsys.readouterr().err


@pytest.mark.slow
def test_memory_is_bounded_by_the_largest_tensor(tmp_path):
    """A synthetic checkpoint of 2 GB, in a process of its own; see the helper."""
    done = subprocess.run(
        [sys.executable, str(BIG), str(tmp_path), "2000"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bytes"] > 1.9e9
    assert found["peak"] <= 5 * found["largest"] + 10**9
    assert found["after"] < 0.4 * found["bytes"]
