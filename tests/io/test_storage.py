"""Model files with filters in a smaller type."""

import pytest
import torch
from torch import nn

import phnn
from helpers.files import read_parts, reseal
from phnn.functional._storage import decode, encode
from phnn.io import ModelFileError, inspect

SHARES = {"float32": 1.0, "float16": 0.5, "int8": 0.25}


@pytest.mark.parametrize("storage", SHARES)
@torch.no_grad()
def test_a_network_comes_back(tmp_path, storage):
    network = phnn.create_model("resnet20", n=4).eval()
    x = torch.randn(2, 3, 32, 32)
    plain = phnn.save(network, tmp_path / "plain.safetensors")
    path = tmp_path / "small.safetensors"
    phnn.save(network, path, storage=storage, example_input=x)
    ratio = path.stat().st_size / plain.stat().st_size
    assert SHARES[storage] <= ratio < SHARES[storage] + 0.2  # norms, headers and scales
    loaded = phnn.load(path)
    assert {key: value.dtype for key, value in loaded.state_dict().items()} == {
        key: value.dtype for key, value in network.state_dict().items()
    }
    error = float((loaded(x) - network(x)).abs().max() / network(x).abs().max())
    assert error < {"float32": 1e-6, "float16": 1e-3, "int8": 0.05}[storage]
    lines = str(inspect(path)).splitlines()
    assert lines[:-1] == str(inspect(plain)).splitlines()[:-1] or storage != "float32"
    if storage != "float32":
        assert lines[-1].startswith("22 filters are stored in a smaller type, which changes out")
        assert float(lines[-1].split("at most ")[1].split()[0]) == pytest.approx(error, rel=0.05)


def test_a_model_of_ones_own(tmp_path):
    def make():
        layer = nn.Linear(8, 8)
        return nn.Sequential(layer, phnn.PHConv2d(4, 4, 1, n=2, dtype=torch.float64), layer)

    model, path = make(), tmp_path / "m.safetensors"
    phnn.save(model, path, storage="int8")
    loaded = phnn.load(path, model=make)
    assert loaded[0].weight is loaded[2].weight
    assert loaded[1].F.dtype == torch.float64
    for ours, theirs in ((loaded[0].weight, model[0].weight), (loaded[1].F, model[1].F)):
        assert torch.allclose(ours, theirs, atol=theirs.abs().max().item() / 250)
    assert torch.equal(loaded[0].bias, model[0].bias)
    assert "stored in a smaller type" in str(inspect(path))


@pytest.mark.parametrize(
    "make",
    [
        lambda: phnn.PHConv2d(64, 64, 3, n=(64, 1), terms=8),
        lambda: phnn.PHConv2d(64, 64, 3, n=(32, 8), terms=40),
        lambda: phnn.PHLSTM(128, 128, n=4),
        lambda: phnn.PHEmbedding(400, 64, n=(400, 1), terms=8),
        lambda: nn.Embedding(400, 16),
    ],
    ids=["low rank", "rectangular", "recurrent", "table", "plain table"],
)
@torch.no_grad()
def test_large_tensors_of_all_layers_are_small_in_the_file(tmp_path, make):
    layer = make()
    sizes = {}
    for storage in SHARES:
        path = tmp_path / f"{storage}.safetensors"
        phnn.save(layer, path, storage=storage)
        sizes[storage] = len(read_parts(path)[2])
        for name, value in phnn.load(path, model=make).state_dict().items():
            atol = value.abs().max().item() / 99
            assert torch.allclose(value, layer.state_dict()[name], atol=atol)
    assert sizes["int8"] < 0.34 * sizes["float32"]
    assert sizes["float16"] < 0.55 * sizes["float32"]


def test_rounding():
    filters = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    filters[1] = 0.0
    filters[2] *= 1e-30
    values, per_unit = encode(filters, "int8")
    error = (decode(values, per_unit, torch.float64) - filters).abs().flatten(1).amax(1)
    assert (error <= filters.abs().flatten(1).amax(1) / 127 / 2 * 1.001).all()
    assert decode(*encode(filters, "float16"), torch.float64).dtype == torch.float64


def test_unknown_types(tmp_path):
    with pytest.raises(ValueError, match=r"storage must be one of .*; got 'int4'"):
        phnn.save(nn.Linear(2, 2), tmp_path / "m.safetensors", storage="int4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"storage": {"weight": "F32", "more": "F32"}}, "stored filters 'more' are not in the"),
        ({"storage": {"weight": "I8"}}, "weight has an unknown storage type"),
        ({"storage": {"weight": "F99"}}, "weight has an unknown storage type"),
        ({"storage": {"weight": 3}}, "storage holds something other than names"),
        ({"storage": {"bias": "F32"}}, "bias has an unknown storage type"),
        ({"storage": []}, "storage is a list"),
    ],
)
def test_altered_headers(tmp_path, change, message):
    path = tmp_path / "m.safetensors"
    phnn.save(nn.Linear(4, 4), path, storage="int8")
    reseal(path, {**read_parts(path)[0], **change})
    with pytest.raises(ModelFileError, match=message):
        phnn.load(path, model=lambda: nn.Linear(4, 4))
