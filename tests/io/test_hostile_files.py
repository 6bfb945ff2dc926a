"""Files that somebody made to break the reader: refused in no time, with the name of the file."""

import os
import random
import resource
import struct
import time

import pytest
from torch import nn

import phnn
from helpers.files import read_parts, reseal
from phnn.io import ModelFileError, inspect, load, save
from phnn.models import create_model


@pytest.fixture(scope="module", autouse=True)
def _ready():
    """What torch imports at the first step on the meta device takes seconds."""
    phnn.PHLinear(8, 8, n=2, device="meta")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    model = create_model("resnet20", widths=[4, 4, 4], n=2)
    return save(model, tmp_path_factory.mktemp("zoo") / "zoo.safetensors")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    model = phnn.convert(nn.Sequential(nn.Linear(8, 8)), n=2)
    return save(model, tmp_path_factory.mktemp("own") / "own.safetensors")


def build():
    return nn.Sequential(nn.Linear(8, 8))


def peak_memory():
    """In bytes, on Linux."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def refuse(path, header, *, model=None, inspecting=True):
    """Both readers refuse the header quickly, in little memory and with the name of the file."""
    before = path.read_bytes()
    try:
        reseal(path, header)
        readers = [lambda: load(path, model=model)] + [lambda: inspect(path)] * inspecting
        for read in readers:
            start, memory = time.process_time(), peak_memory()
            with pytest.raises(ModelFileError) as caught:
                read()
            assert str(path) in str(caught.value)
            assert time.process_time() - start < 5
            assert peak_memory() - memory < 2e8
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(
    "text", ["[]", "3", "null", '"x"', "{", "", "[" * 100_000, '{"format": "2.0"}', "NaN"]
)
def test_headers_that_are_something_else(own, text):
    refuse(own, text, model=build)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("config", []),
        ("config", "resnet20"),
        ("config", 3),
        ("metadata", None),
        ("metadata", []),
        ("metadata", float("nan")),
        ("shared", []),
        ("shared", {"1.F": 3}),
        ("shared", {"1.F": "nothing"}),
        ("shared", {"0.F": "0.A"}),
        ("layers", []),
        ("layers", {"0": 3}),
        ("layers", {"0": {}}),
        ("buffers", {}),
        ("buffers", [3]),
        ("sha256", None),
        ("sha256", 7),
    ],
)
def test_fields_of_wrong_types(own, field, value):
    header, _, _ = read_parts(own)
    refuse(own, {**header, field: value}, model=build)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", 3),
        ("n", "2"),
        ("n", None),
        ("n", True),
        ("n", [1]),
        ("n", ["a", "b"]),
        ("terms", 1.5),
        ("algebra", 3),
        ("algebra", []),
        ("algebra", {}),
        ("algebra", {"name": 3}),
        ("algebra", "quaternoin"),
        ("algebra", "cyclic(300)"),
        ("algebra", "clifford(1000000000)"),
        ("algebra", "tensor_product(cyclic(99), cyclic(99))"),
        ("algebra", "tensor_product(complex, 3)"),
        ("algebra", "(" * 5000),
        ("learn_algebra", 1),
        ("rank", "3"),
    ],
)
def test_layers_of_wrong_types(own, field, value):
    header, _, _ = read_parts(own)
    layers = {"0": {**header["layers"]["0"], field: value}}
    inspecting = value != "tensor_product(complex, 3)"  # small, and only building it fails
    refuse(own, {**header, "layers": layers}, model=build, inspecting=inspecting)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "Linear"},
        {"n": 0},
        {"n": -2},
        {"n": 3},
        {"n": [2, 4]},
        {"n": 10**9},
        {"terms": 10**9},
        {"rank": 10**5},
        {"algebra": {"name": "mine"}},
        {"algebra": {"name": "mine", "constants": "abc"}},
        {"algebra": {"name": "mine", "constants": [[[1]]], "surprise": 3}},
    ],
)
def test_layers_that_cannot_be_built(own, change):
    header, _, _ = read_parts(own)
    layers = {"0": {**header["layers"]["0"], **change}}
    refuse(own, {**header, "layers": layers}, model=build, inspecting=False)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "resnet21"},
        {"name": ["resnet20"]},
        {"name": None},
        {"invented": 3},
        {"n": "four"},
        {"n": -1},
        {"widths": "wide"},
        {"widths": [[4], [4], [4]]},
        {"widths": {"a": 3}},
        {"width_multiplier": 1e300},
        {"num_classes": "ten"},
        {"num_classes": 10**30},
        {"algebra": "cyclic(300)", "n": None},
        {"algebra": 4, "n": None},
        {"init": [1]},
        {"rank": 10**5},
    ],
)
def test_configs_that_cannot_be_built(zoo, change):
    header, _, _ = read_parts(zoo)
    refuse(zoo, {**header, "config": {**header["config"], **change}})


@pytest.mark.parametrize(
    "change", [{"in_channels": 10**9}, {"num_classes": 10**9}, {"width_multiplier": 1e6}, {"n": 1}]
)
def test_configs_of_other_sizes_are_refused_before_memory_is_used(zoo, change):
    header, _, _ = read_parts(zoo)
    refuse(zoo, {**header, "config": {**header["config"], **change}}, inspecting=False)


def test_a_config_that_is_missing_its_name(zoo):
    header, _, _ = read_parts(zoo)
    config = {key: value for key, value in header["config"].items() if key != "name"}
    refuse(zoo, {**header, "config": config})


@pytest.mark.parametrize(
    "name",
    ["quaternion", "cyclic(5)", "matrix(3)", "clifford(1, 1, 1)", "cayley_dickson((1, -1))",
     "tensor_product(complex, cyclic(n=3))", "direct_sum(octonion, dual)"],
)  # fmt: skip
def test_dimensions_are_known_without_building(name):
    assert phnn.algebra.dimension(name) == phnn.algebra.get(name).n


def test_large_algebras_load_from_files_of_their_size(tmp_path):
    layer = phnn.PHLinear(48, 48, algebra=phnn.algebra.cyclic(48))
    path = save(nn.Sequential(layer), tmp_path / "m.safetensors")
    loaded = load(path, model=lambda: nn.Sequential(nn.Linear(48, 48)))
    assert loaded[0].algebra == layer.algebra


def test_a_header_of_gigabytes(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", 2**33) + b"{}" * 100)
    with pytest.raises(ModelFileError, match=r"m\.safetensors is truncated or not"):
        load(path)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 2**26))
        file.truncate(2**27)  # sparse
    with pytest.raises(ModelFileError, match=r"has a header of more than 33,554,432 bytes"):
        load(path)


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes with names")
def test_a_pipe_is_not_read(tmp_path):
    path = tmp_path / "m.safetensors"
    os.mkfifo(path)
    with pytest.raises(ModelFileError, match=r"m\.safetensors is not a regular file"):
        load(path)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no model\.safetensors; give the folder"):
        load(tmp_path)


VALUES = [None, True, 0, -1, 3, 10**9, 10**30, 1.5, 1e300, "", "x", "quaternion", "cyclic(300)"]
VALUES += ["PHConv2d", "vgg16", "polar", [], [1, 2], [10**6] * 3, {}, {"name": "a"}, "0.A"]


def list_paths(tree, path=()):
    """The keys that lead to every value of a header."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in children:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from list_paths(value, (*path, key))


@pytest.mark.parametrize("kind", ["zoo", "own"])
def test_random_headers(kind, request, tmp_path):
    """Whatever is changed, a file loads or is refused."""
    source = request.getfixturevalue(kind)
    path, draw = tmp_path / "m.safetensors", random.Random(0)
    loaded, refused = 0, []
    for _ in range(100):
        path.write_bytes(source.read_bytes())
        header, _, _ = read_parts(path)
        for _ in range(draw.choice([1, 1, 2])):
            *parents, last = draw.choice(list(list_paths(header)))
            tree = header
            for key in parents:
                tree = tree[key]
            tree[last] = draw.choice(VALUES)
        reseal(path, header)
        try:
            load(path, model=build if kind == "own" else None)
            loaded += 1
        except ModelFileError as error:
            refused.append(str(error))
    assert len(refused) > loaded
    assert all(str(path) in message for message in refused)
