"""Files of other versions of the format."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.files import read_parts, reseal, same
from phnn.conversion.specs import LayerSpec
from phnn.io import ModelFileError, inspect, load, save
from phnn.io.header import FORMAT, HEADER_FIELDS, LAYER_FIELDS, Header

# written by the version of phnn before formats had minor versions, with the outputs of the models
OLD = Path(__file__).parent.parent / "data" / "model-files"
OUTPUTS = json.loads((OLD / "outputs.json").read_text())


def build_converted():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def build_quaternion():
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("converted-format2", build_converted),
        ("quaternion-format2", build_quaternion),
        ("resnet20-format1", None),
        ("resnet20-format2", None),
    ],
)
def test_old_files_give_their_outputs(name, build):
    model = load(OLD / f"{name}.safetensors", model=build)
    shape = (3, 8) if build else (2, 3, 8, 8)
    x = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)
    with torch.no_grad():
        torch.testing.assert_close(model(x), torch.tensor(OUTPUTS[name]), atol=1e-6, rtol=1e-5)
    assert inspect(OLD / f"{name}.safetensors").parameters > 0


def test_old_files_keep_their_metadata():
    assert load(OLD / "resnet20-format1.safetensors").phnn_metadata["classes"] == ["x", "y", "z"]
    assert load(OLD / "resnet20-format2.safetensors").phnn_metadata["image_size"] == [8, 8]


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 2))


@pytest.fixture
def saved(model, tmp_path):
    return save(model, tmp_path / "m.safetensors")


def test_files_carry_the_version(saved):
    assert read_parts(saved)[0]["format"] == str(FORMAT)


def test_newer_minor_versions_load(saved, model):
    header, _, _ = read_parts(saved)
    newer = {**header, "format": f"{FORMAT.major}.{FORMAT.minor + 7}", "invented later": [1]}
    assert same(load(reseal(saved, newer), model=model), model)


def test_a_newer_minor_version_with_a_layer_that_is_not_understood(saved):
    header, _, _ = read_parts(saved)
    layers = {"0": {"kind": "PHLinear", "n": "2^3"}}
    newer = {**header, "format": f"{FORMAT.major}.{FORMAT.minor + 7}", "layers": layers}
    with pytest.raises(ModelFileError, match=r"layer '0': n is a str.*a newer phnn may read it"):
        inspect(reseal(saved, newer))


@pytest.mark.parametrize("format", [f"{FORMAT.major + 1}.0", FORMAT.major + 1])
def test_newer_major_versions_are_refused(saved, model, format):
    header, _, _ = read_parts(saved)
    for read in (inspect, lambda path: load(path, model=model)):
        with pytest.raises(
            ModelFileError, match=r"m\.safetensors .*format 3\.0, .* up to 2\.x; install a newer"
        ):
            read(reseal(saved, {**header, "format": format}))


@pytest.mark.parametrize("format", [None, True, 1.5, "2", "two", [2, 0], -1, "0.3", "9" * 5000])
def test_versions_that_nobody_wrote(saved, model, format):
    header, _, _ = read_parts(saved)
    with pytest.raises(ModelFileError, match=r"no format version|never wrote"):
        load(reseal(saved, {**header, "format": format}), model=model)


def test_every_field_is_checked():
    """A new field of Header or LayerSpec needs its type here, and perhaps a new version."""
    assert {*HEADER_FIELDS, "format"} == {field.name for field in fields(Header)}
    assert LAYER_FIELDS.keys() == {field.name for field in fields(LayerSpec)}
