"""Layers that are lazy, empty, subclasses or fake, and models of the hub."""

import copy
import pickle
import sys
import types

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import phnn
from phnn.nn import PHLayer


class Renamed(nn.Linear):
    """A subclass that only has another name."""


def build():
    return nn.Sequential(Renamed(8, 8), nn.Linear(8, 8))


@pytest.mark.parametrize("allow", ["Renamed", ["Renamed"]])
def test_a_subclass_is_allowed_by_its_name_alone(allow):
    small = phnn.convert(build(), n=2, allow=allow)
    assert all(isinstance(layer, PHLayer) for layer in small)
    # a name is no list of letters, in which every part of it would be found
    assert isinstance(phnn.convert(build(), n=2, include="1")[0], Renamed)


def test_a_class_that_is_not_there():
    with pytest.raises(ValueError, match=r"allow: no layer is a Ren; there are Linear, Renamed"):
        phnn.convert(build(), n=2, allow="Ren")


def test_an_allowed_subclass_is_loaded_again(tmp_path):
    small = phnn.convert(build(), n=2, allow="Renamed").eval()
    path = phnn.save(small, tmp_path / "m.safetensors")
    x = torch.randn(2, 8)
    assert torch.equal(phnn.load(path, model=build)(x), small(x))


@pytest.mark.parametrize("change", [lambda m: phnn.convert(m, n=2), phnn.to_dense])
def test_lazy_layers_are_named(change):
    model = nn.Sequential(nn.Linear(8, 8), nn.LazyBatchNorm1d())
    with pytest.raises(ValueError, match=r"1 is a LazyBatchNorm1d whose weight has no size yet"):
        change(model)
    model(torch.randn(2, 8))
    change(model)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_channels_stays():
    small = phnn.convert(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 0)), n=2)
    assert [entry.note for entry in small.phnn_report.left_alone] == ["its weight (0, 8) is empty"]


def test_layers_of_fake_tensors():
    with FakeTensorMode():
        for options in ({"n": 4}, {"algebra": "quaternion"}, {"n": 4, "rank": 7}):
            layer = phnn.PHConv2d(8, 8, 3, **options)
            assert layer(torch.randn(2, 8, 6, 6)).shape == (2, 8, 4, 4)
        start = phnn.PHLinear(8, 8, algebra="quaternion", learn_algebra=True, rank=8)
        assert start(torch.randn(2, 8)).shape == (2, 8)
        dense = nn.Sequential(nn.Linear(8, 8))
        assert phnn.convert(dense, n=2, start="random")(torch.randn(2, 8)).shape == (2, 8)
        with pytest.raises(ValueError, match=r"0 is a fake tensor, and start='nearest'"):
            phnn.convert(dense, n=2)
    # and nothing of it stays
    assert (
        type(phnn.PHConv2d(8, 8, 3, algebra="quaternion")(torch.randn(1, 8, 5, 5))) is torch.Tensor
    )


# --- from_pretrained -----------------------------------------------------------------------------


class PreTrainedModel(nn.Module):
    """Stands for that of transformers, which is recognized by its name and its home."""

    __module__ = "transformers.modeling_utils"

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def save_pretrained(self, folder, state_dict=None, **options):
        torch.save(self.state_dict() if state_dict is None else state_dict, folder / "m.pt")
        return options


@pytest.fixture
def transformers(monkeypatch):
    module = types.ModuleType("transformers.modeling_utils")
    module.PreTrainedModel = PreTrainedModel
    monkeypatch.setitem(sys.modules, "transformers", types.ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", module)


@pytest.mark.usefixtures("transformers")
def test_a_model_of_transformers_cannot_lose_its_layers_in_silence(tmp_path):
    model = PreTrainedModel()
    small = phnn.convert(model, n=2)
    for saved in (small, copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert saved.save_pretrained(tmp_path, extra=3) == {"extra": 3}
        state = torch.load(tmp_path / "m.pt")
        with pytest.raises(RuntimeError, match=r"size mismatch for layer\.weight"):
            PreTrainedModel().load_state_dict(state, strict=False)
        again = phnn.convert(PreTrainedModel(), n=2)
        again.load_state_dict(state, strict=False)
        assert torch.equal(again.layer.F, small.layer.F)
    folded = phnn.to_dense(small)
    folded.save_pretrained(tmp_path)
    PreTrainedModel().load_state_dict(torch.load(tmp_path / "m.pt"))
    assert "save_pretrained" not in {**vars(model), **vars(folded)}


def test_a_model_of_the_hub_is_not_written(tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    class Hub(nn.Module, hub.PyTorchModelHubMixin):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

    small = phnn.convert(Hub(), n=2)
    with pytest.raises(
        ValueError, match=r"Hub\.from_pretrained would not make the PH layers.*phnn"
    ):
        small.save_pretrained(tmp_path / "small")
    path = phnn.save(small, tmp_path / "mine")
    loaded = phnn.load(path, model=Hub)
    with pytest.raises(ValueError, match="would not make the PH layers"):
        loaded.save_pretrained(tmp_path / "small")
    phnn.to_dense(small).save_pretrained(tmp_path / "dense")
    assert torch.equal(Hub.from_pretrained(tmp_path / "dense").layer.weight, small.layer.weight)


def test_a_plain_state_is_not_ignored():
    layer = phnn.PHLinear(8, 8, n=2)
    with pytest.raises(
        RuntimeError, match=r'"weight" is of a plain layer, and PHLinear has A and F'
    ):
        layer.load_state_dict(nn.Linear(8, 8).state_dict(), strict=False)
