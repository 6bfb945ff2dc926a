"""Models of the zoo and of others, saved and loaded again."""

import json
import os
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

import phnn
from helpers.files import METADATA, Tied, same
from phnn.conversion import convert
from phnn.io import ModelFileError, load, save
from phnn.models import create_model


class TestOwnModels:
    def test_a_function_that_builds_it(self, tmp_path):
        model = Tied().eval()
        path = save(model, tmp_path / "model.safetensors", metadata=METADATA)
        loaded = load(path, model=Tied)
        x = torch.randn(3, 4)
        assert torch.equal(loaded(x), model(x))
        assert not loaded.training
        assert loaded.phnn_metadata == METADATA

    def test_tied_weights_are_stored_once_and_tied_again(self, file):
        assert "decoder.weight" not in load_file(file)
        loaded = load(file, model=Tied)
        assert loaded.decoder.weight is loaded.encoder.weight
        assert len(list(loaded.parameters())) == 4

    def test_weights_tied_after_construction_are_tied_again(self, tmp_path):
        def build():
            return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

        model = build()
        model[1].weight = model[0].weight
        loaded = load(save(model, tmp_path / "m.safetensors"), model=build)
        assert loaded[1].weight is loaded[0].weight

    def test_overlapping_tensors_become_their_own(self, tmp_path):
        memory = torch.arange(6.0)
        model = nn.Module()
        model.register_buffer("low", memory[:4])
        model.register_buffer("high", memory[2:])
        loaded = load(save(model, tmp_path / "m.safetensors"), model=model)
        assert loaded.low.tolist() == [0, 1, 2, 3]
        assert loaded.high.tolist() == [2, 3, 4, 5]

    def test_a_module_is_filled_in_place(self, file):
        model = Tied()
        weight = model.encoder.weight
        assert load(file, model=model) is model
        assert model.encoder.weight is weight
        assert torch.equal(weight, load_file(file)["encoder.weight"])

    def test_a_module_on_the_meta_device(self, tmp_path):
        model = nn.Linear(3, 2)
        with torch.device("meta"):
            empty = nn.Linear(3, 2)
        assert same(load(save(model, tmp_path / "m.safetensors"), model=empty), model)

    def test_a_buffer_that_nobody_can_fill(self, file):
        with torch.device("meta"):
            empty = Tied()
        with pytest.raises(ModelFileError, match=r"does not hold scale.*pass a function"):
            load(file, model=empty)

    def test_frozen_parameters_stay_frozen(self, tmp_path):
        def build():
            layer = nn.Linear(3, 2)
            layer.weight.requires_grad_(False)
            return layer

        loaded = load(save(build(), tmp_path / "m.safetensors"), model=build)
        assert (loaded.weight.requires_grad, loaded.bias.requires_grad) == (False, True)

    def test_the_type_of_the_file_is_kept(self, tmp_path):
        path = save(Tied().bfloat16(), tmp_path / "m.safetensors")
        assert load(path, model=Tied).encoder.weight.dtype == torch.bfloat16

    def test_metadata_stay_with_the_model(self, file, tmp_path):
        again = save(load(file, model=Tied), tmp_path / "again.safetensors")
        assert load(again, model=Tied).phnn_metadata == METADATA

    @settings(deadline=None)  # a disk takes the time it takes
    @given(st.lists(st.integers(0, 4), max_size=3))
    def test_every_shape(self, tmp_path_factory, shape):
        model = nn.Module()
        for dtype in (torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8):
            value = torch.randint(0, 2, shape).to(dtype)
            model.register_buffer(str(dtype).partition(".")[2], value)
        path = tmp_path_factory.mktemp("shapes") / "m.safetensors"
        loaded = load(save(model, path), model=lambda: deepcopy(model))
        assert same(loaded, model)


class TestZoo:
    @pytest.mark.parametrize(
        "variant", [{}, {"n": 4}, {"algebra": "quaternion"}, {"n": 4, "rank": 7}]
    )
    def test_a_file_is_enough(self, tmp_path, variant):
        model = create_model("resnet20", num_classes=7, **variant).eval()
        loaded = load(save(model, tmp_path / "m.safetensors", metadata=METADATA))
        assert same(loaded, model)
        assert loaded.config == model.config
        x = torch.randn(2, 3, 32, 32)
        assert torch.equal(loaded(x), model(x))

    def test_half_precision(self, tmp_path):
        model = create_model("resnet20", n=2).half()
        assert same(load(save(model, tmp_path / "m.safetensors")), model)

    def test_folder_has_the_hub_layout(self, tmp_path):
        model = create_model("resnet20", n=4)
        folder = tmp_path / "hub"
        save(model, folder, metadata=METADATA)
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["README.md", "config.json", "model.safetensors"]
        described = json.loads((folder / "config.json").read_text())
        assert described["config"] == model.config
        assert described["metadata"] == METADATA
        card = (folder / "README.md").read_text()
        total = sum(parameter.numel() for parameter in model.parameters())
        assert f"| **all** | **{total:,}** | |" in card
        assert "phnn.create_model('resnet20', n=4" in card
        assert "Classes: cat, dog." in card
        assert same(load(folder), model)

    def test_a_card_of_somebody_else_is_kept(self, tmp_path):
        (tmp_path / "README.md").write_text("mine")
        save(create_model("resnet20"), tmp_path)
        assert (tmp_path / "README.md").read_text() == "mine"

    def test_a_changed_model_is_saved_without_its_config(self, tmp_path):
        model = create_model("resnet20")
        model.fc = nn.Linear(3, 2)
        with pytest.warns(UserWarning, match=r"no longer the resnet20 of its config \(shape of fc"):
            path = save(model, tmp_path / "m.safetensors")
        with pytest.raises(ModelFileError, match=r"does not say how to build its model.*model="):
            load(path)

    def test_a_file_for_another_algebra(self, tmp_path):
        learned = nn.Sequential(phnn.PHLinear(8, 8, n=4))
        fixed = phnn.PHLinear(8, 8, algebra=phnn.algebra.quaternion)
        path = save(learned, tmp_path / "m.safetensors")
        with pytest.raises(
            ModelFileError, match=r"(?s)for another model: .*fixed algebra quaternion"
        ):
            load(path, model=lambda: nn.Sequential(fixed))


class Reads(nn.Module):
    """Reads values in its constructor, and keeps tensors that no state_dict holds."""

    def __init__(self):
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for rate in rates if rate < 1))
        self.offsets = [torch.arange(4.0)]
        self.scale = torch.tensor(2.0)

    def forward(self, x):
        return self.layers(x) * self.scale + self.offsets[0]


class Versioned(nn.Module):
    """As MNASNet does it: without a version the state is refused."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        if local_metadata.get("version") != 2:
            raise ValueError("a state of version 2 is needed")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


class TestConstructors:
    @pytest.mark.parametrize("change", [lambda model: model, lambda model: convert(model, n=2)])
    def test_one_that_reads_values(self, tmp_path, change):
        model = change(Reads()).eval()
        loaded = load(save(model, tmp_path / "m.safetensors"), model=Reads)
        x = torch.randn(3, 4)
        assert torch.equal(loaded(x), model(x))
        assert not any(tensor.is_meta for tensor in (loaded.scale, *loaded.offsets))

    def test_one_on_the_meta_device_is_refused(self, tmp_path):
        model = nn.Sequential(nn.Linear(2, 2))
        model.plain = {"a": [torch.ones(2)]}
        path = save(model, tmp_path / "m.safetensors")
        empty = nn.Sequential(nn.Linear(2, 2, device="meta"))
        empty.plain = {"a": [torch.ones(2, device="meta")]}
        with pytest.raises(ModelFileError, match=r"does not hold plain.*pass a function"):
            load(path, model=empty)

    def test_module_versions(self, tmp_path):
        model = Versioned()
        path = save(model, tmp_path / "m.safetensors")
        assert same(load(path, model=Versioned), model)
        assert same(load(path, model=Versioned()), model)

    def test_a_function_that_returns_no_module(self, file):
        with pytest.raises(TypeError, match=r"model= returns int, not a torch\.nn\.Module"):
            load(file, model=lambda: 3)

    def test_learned_layers_are_not_drawn_in_vain(self, tmp_path, monkeypatch):
        """A search for the decomposition of an algebra that the file holds."""

        def build():
            return nn.Sequential(nn.Linear(8, 8))

        layer = phnn.PHLinear(8, 8, algebra=phnn.algebra.complex, learn_algebra=True, rank=3)
        path = save(nn.Sequential(layer), tmp_path / "m.safetensors")
        monkeypatch.setattr("phnn.decompose.bilinear", lambda *_: pytest.fail("it was searched"))
        assert load(path, model=build)[0].rank == 3


class TestMemory:
    """A loaded model owns its memory."""

    @pytest.fixture(params=["zoo", "function", "module"])
    def loaded(self, request, tmp_path):
        if request.param == "zoo":
            path = save(create_model("resnet20", widths=[4, 4, 4]), tmp_path / "m.safetensors")
            return path, load(path)
        path = save(Tied(), tmp_path / "m.safetensors")
        return path, load(path, model=Tied if request.param == "function" else Tied())

    def test_the_file_may_change(self, loaded):
        path, model = loaded
        before = deepcopy(model.state_dict())
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())

    def test_the_file_may_be_truncated(self, loaded):
        path, model = loaded
        os.truncate(path, 0)
        assert all(tensor.isfinite().all() for tensor in model.state_dict().values())

    def test_every_tensor_is_aligned(self, loaded):
        _, model = loaded
        assert all(tensor.data_ptr() % 64 == 0 for tensor in model.state_dict().values())
