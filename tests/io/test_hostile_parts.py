"""Sharded checkpoints and adapters that somebody altered, with seals that hold."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import phnn
from helpers.files import read_parts, reseal
from phnn.io import ModelFileError
from phnn.io.checkpoints import PROGRESS, Plan, convert_checkpoint
from phnn.io.shards import INDEX, digest_index


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    torch.manual_seed(0)
    state = build().state_dict()
    where = {name: f"{name[0]}.safetensors" for name in state}
    for file in set(where.values()):
        save_file({k: v for k, v in state.items() if where[k] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


@pytest.fixture
def shards(source, tmp_path):
    convert_checkpoint(source, tmp_path / "out", Plan(2))
    return tmp_path / "out"


def rewrite(folder, seals=True, **changes):
    index = json.loads((folder / INDEX).read_text())
    index["phnn"] |= changes
    if seals:
        index["phnn_sha256"] = digest_index(index)
    (folder / INDEX).write_text(json.dumps(index))


LAYER = {"kind": "PHLinear", "n": 2, "terms": 2, "algebra": None, "learn_algebra": True}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": []}, "layers is a list"),
        ({"layers": {"0": 3}}, "layer '0' is a int"),
        ({"layers": {"0": {}}}, "kind is missing"),
        ({"layers": {"0": LAYER | {"n": "2"}}}, "n is a str"),
        ({"layers": {"0": LAYER | {"terms": True}}}, "terms is a bool"),
        ({"layers": {"0": LAYER | {"algebra": "cyclic(300)"}}}, "structure constants"),
        ({"layers": {"0": LAYER | {"algebra": [1]}}}, "algebra is a list"),
        ({"layers": {"0": LAYER | {"kind": "PHConv2d"}}}, "is for another model"),
        ({"layers": {"0": LAYER | {"terms": 10**8}}}, "is for another model"),
        ({"layers": {}}, "does not fit the model"),
        ({"sha256": []}, "sha256 is a list"),
        ({"sha256": {}}, "0.safetensors is missing"),
        ({"format": "9.0"}, "install a newer phnn"),
        ({"format": None}, "no format version"),
    ],
)
def test_an_index_is_checked_before_the_model_is_touched(shards, changes, message):
    rewrite(shards, **changes)
    given = build()
    before = {name: (tensor, tensor.clone()) for name, tensor in given.state_dict().items()}
    with pytest.raises(ModelFileError, match=message):
        phnn.load(shards, model=given)
    after = given.state_dict()
    assert after.keys() == before.keys()
    for name, (tensor, values) in before.items():
        assert after[name].data_ptr() == tensor.data_ptr()
        assert torch.equal(after[name], values)


def test_a_damaged_file_leaves_the_model_alone(shards):
    content = bytearray((shards / "2.safetensors").read_bytes())
    content[-3] ^= 1
    (shards / "2.safetensors").write_bytes(content)
    given = build()
    before = [tensor.clone() for tensor in given.state_dict().values()]
    with pytest.raises(ModelFileError, match=r"2\.safetensors is damaged"):
        phnn.load(shards, model=given)
    assert all(map(torch.equal, before, given.state_dict().values()))


def test_an_index_has_a_checksum(shards):
    phnn.load(shards, model=build)
    rewrite(shards, seals=False, format="1.1", note="x")
    with pytest.raises(ModelFileError, match="SHA-256 of the index does not match"):
        phnn.load(shards, model=build)
    rewrite(shards, seals=False, format="1.0")  # as it was written before
    phnn.load(shards, model=build)


@pytest.mark.parametrize(
    "content", ["[]", "{}", "x", '{"plan": {}, "source": {}, "files": {"0.safetensors": 3}}']
)
def test_a_damaged_progress_is_told(source, tmp_path, content):
    out = tmp_path / "out"
    out.mkdir()
    (out / PROGRESS).write_text(content)
    with pytest.raises(ModelFileError, match=r"\.convert\.json"):
        convert_checkpoint(source, out, Plan(2))


def test_a_kill_during_the_first_write_can_be_repeated(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    torn = out / f".{PROGRESS}.{'0' * 32}.tmp"
    torn.write_text("{")
    convert_checkpoint(source, out, Plan(2))
    assert not torn.exists()
    phnn.load(out, model=build)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("adapter") / "a.safetensors"
    return phnn.save_adapter(phnn.adapt(build(), n=2), path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": []}, "layers is a list"),
        ({"layers": {"0": None}}, "layer '0' is not described"),
        ({"shared": {"0:A": ["x"]}}, "shared holds something other than names"),
        ({"shared": {"x": "nowhere"}}, "which is not there"),
        ({"version": True}, "version is a bool"),
        ({"version": 9}, "install a newer phnn"),
        ({"dropout": 1.0}, "dropout=1.0 is not between"),
        ({"dropout": -1}, "dropout=-1 is not between"),
        ({"dropout": True}, "dropout is a bool"),
        ({"name": "a\x1b[2J"}, "its name is"),
        ({"name": ""}, "must have letters"),
        ({"filter_rank": 10**9}, "is for another model"),
        ({"filter_rank": -1}, "is for another model"),
        ({"sha256": 3}, "sha256 is a int"),
    ],
)
def test_an_adapter_of_wrong_types_is_refused(adapter, tmp_path, changes, message):
    path = tmp_path / "a.safetensors"
    path.write_bytes(adapter.read_bytes())
    header, _, _ = read_parts(path)
    reseal(path, {**header, **changes})
    with pytest.raises(ModelFileError, match=message):
        phnn.load_adapter(build(), path)


@pytest.mark.parametrize("header", [[], 3, "x", None])
def test_an_adapter_without_a_header_is_refused(adapter, tmp_path, header):
    path = tmp_path / "a.safetensors"
    path.write_bytes(adapter.read_bytes())
    reseal(path, header)
    with pytest.raises(ModelFileError, match=r"mapping|not JSON"):
        phnn.load_adapter(build(), path)
