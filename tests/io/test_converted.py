"""Converted models, saved and loaded again."""

import json

import pytest
import torch
from torch import nn

import phnn
from helpers.files import Dense, same
from phnn.conversion import convert, to_dense
from phnn.io import ModelFileError, inspect, load, save
from phnn.models import create_model


class TestConverted:
    @pytest.mark.parametrize(
        "options",
        [
            {"n": 4},
            {"n": {"first": 2, "again": 8}, "terms": 3},
            {"n": 4, "share_algebra": True},
            {"algebra": phnn.algebra.quaternion},
            {"algebra": phnn.algebra.complex, "learn_algebra": True},
            {"algebra": phnn.algebra.Algebra("mine", [[[0, 1], [1, 0]], [[2, 0], [0, 1]]])},
            {"budget": 0.5},
        ],
    )
    def test_the_constructor_of_the_original_is_enough(self, tmp_path, options):
        converted = convert(Dense(), **options).eval()
        loaded = load(save(converted, tmp_path / "m.safetensors"), model=Dense)
        assert same(loaded, converted)
        assert repr(loaded) == repr(converted)
        x = torch.randn(3, 8)
        assert torch.equal(loaded(x), converted(x))
        assert len(list(loaded.parameters())) == len(list(converted.parameters()))

    def test_layers_of_limited_rank(self, tmp_path):
        started = {"algebra": phnn.algebra.complex, "learn_algebra": True, "rank": 3}
        model = nn.Sequential(phnn.PHLinear(8, 8, n=4, rank=7), phnn.PHLinear(8, 4, **started))
        path = save(model, tmp_path / "m.safetensors")
        loaded = load(path, model=lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)))
        assert same(loaded, model)
        assert repr(loaded) == repr(model.eval())
        assert [layer.kind for layer in inspect(path).layers] == [
            "PHLinear n=4 rank=7",
            "PHLinear complex rank=3 learned",
        ]

    def test_rectangular_algebras(self, tmp_path):
        model = nn.Sequential(phnn.PHLinear(8, 4, n=(2, 4), terms=3)).eval()
        path = save(model, tmp_path / "m.safetensors")
        loaded = load(path, model=lambda: nn.Sequential(nn.Linear(8, 4)))
        assert same(loaded, model)
        assert loaded[0].n == (2, 4)
        x = torch.randn(3, 8)
        assert torch.equal(loaded(x), model(x))

    def test_what_was_shared_is_shared_again(self, tmp_path):
        path = save(convert(Dense(), n=4, share_algebra=True), tmp_path / "m.safetensors")
        for model in (Dense, Dense()):
            loaded = load(path, model=model)
            assert loaded.tied.F is loaded.second.F
            assert loaded.first.A is loaded.second.A is loaded.again.A
            assert loaded.again is loaded.norm_of

    def test_a_module_in_memory_gets_the_layers(self, tmp_path):
        converted = convert(Dense(), n=4)
        model = Dense()
        running_mean = model.norm.running_mean
        assert load(save(converted, tmp_path / "m.safetensors"), model=model) is model
        assert same(model, converted)
        assert model.norm.running_mean is running_mean

    def test_a_module_on_the_meta_device_gets_the_layers(self, tmp_path):
        converted = convert(nn.Sequential(nn.Linear(8, 4)), n=4, terms=4)
        with torch.device("meta"):
            empty = nn.Sequential(nn.Linear(8, 4))
        loaded = load(save(converted, tmp_path / "m.safetensors"), model=empty)
        assert loaded is empty
        assert same(loaded, converted)

    def test_a_module_that_does_not_fit_is_left_as_it_was(self, tmp_path):
        path = save(
            convert(nn.Sequential(nn.Linear(8, 4)), n=4, terms=4), tmp_path / "m.safetensors"
        )
        model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
        before = list(model)
        with pytest.raises(ModelFileError, match=r"missing: 1\.weight"):
            load(path, model=model)
        assert list(model) == before

    def test_the_layers_do_not_fit(self, tmp_path):
        path = save(
            convert(nn.Sequential(nn.Linear(8, 4)), n=4, terms=4), tmp_path / "m.safetensors"
        )
        with pytest.raises(
            ModelFileError, match=r"another model: 0: n=4 must divide in_features=6"
        ):
            load(path, model=lambda: nn.Sequential(nn.Linear(6, 4)))
        with pytest.raises(ModelFileError, match=r"another model: .*no layer '0' with a PH twin"):
            load(path, model=lambda: nn.Sequential(nn.ReLU(), nn.Linear(8, 4)))

    def test_a_model_that_is_itself_the_layer(self, tmp_path):
        layer = phnn.PHLinear(8, 4, n=4)
        path = save(layer, tmp_path / "m.safetensors")
        assert same(load(path, model=lambda: nn.Linear(8, 4)), layer)
        with pytest.raises(ModelFileError, match=r"Linear is itself the layer .* pass a function"):
            load(path, model=nn.Linear(8, 4))

    def test_layers_of_the_constructor_are_not_replaced(self, tmp_path):
        path = save(nn.Sequential(phnn.PHLinear(8, 8, n=4)), tmp_path / "m.safetensors")
        with pytest.raises(ModelFileError, match=r"shape of 0\.A: \(4, 4, 4\) in the file"):
            load(path, model=lambda: nn.Sequential(phnn.PHLinear(8, 8, n=2)))

    def test_layers_of_the_constructor_that_fit(self, tmp_path):
        def build():
            shared = phnn.PHLinear(8, 8, n=4)
            return nn.Sequential(shared, shared)

        model = build()
        path = save(model, tmp_path / "m.safetensors")
        other = build()
        F = other[0].F
        assert same(load(path, model=other), model)
        assert other[0].F is other[1].F is F

    def test_frozen_layers_stay_frozen(self, tmp_path):
        def build():
            model = Dense()
            model.first.requires_grad_(False)
            return model

        loaded = load(save(convert(build(), n=4), tmp_path / "m.safetensors"), model=build)
        assert not loaded.first.F.requires_grad
        assert loaded.second.F.requires_grad

    @pytest.mark.parametrize(
        ("config", "change"),
        [
            ({}, lambda model: convert(model, n=4)),
            ({}, lambda model: convert(model, budget=0.4, share_algebra=True)),
            ({"n": 4}, to_dense),
            ({"n": 4}, lambda model: convert(to_dense(model), n=2)),
            ({"algebra": "quaternion"}, lambda model: convert(model, n=2, include="fc")),
        ],
    )
    def test_a_file_of_the_zoo_is_enough(self, tmp_path, config, change):
        model = change(create_model("resnet20", **config)).eval()
        loaded = load(save(model, tmp_path / "m.safetensors"))
        assert same(loaded, model)
        assert repr(loaded) == repr(model)
        x = torch.randn(2, 3, 32, 32)
        assert torch.equal(loaded(x), model(x))
        assert same(load(save(loaded, tmp_path / "again.safetensors")), model)

    def test_a_network_of_an_own_algebra(self, tmp_path):
        """Its config holds only the name, under which there is another algebra."""
        mine = phnn.algebra.Algebra("complex", phnn.algebra.dual.constants)
        model = create_model("resnet20", algebra=mine)
        loaded = load(save(model, tmp_path / "m.safetensors"))
        assert loaded.layer1[0].conv1.algebra == phnn.algebra.dual
        assert same(loaded, model)

    def test_an_algebra_that_the_config_cannot_name(self, tmp_path):
        mine = phnn.algebra.Algebra("mine", phnn.algebra.dual.constants)
        model = create_model("resnet20", algebra=mine)
        with pytest.warns(UserWarning, match=r"no longer the resnet20 .*unknown algebra 'mine'"):
            path = save(model, tmp_path / "m.safetensors")
        loaded = load(path, model=lambda: create_model("resnet20", algebra=mine))
        assert same(loaded, model)

    def test_the_folder_lists_the_layers(self, tmp_path):
        save(convert(create_model("resnet20"), n=4, include="layer1.0.*"), tmp_path)
        described = json.loads((tmp_path / "config.json").read_text())
        assert described["layers"]["layer1.0.conv1"] == {
            "kind": "PHConv2d", "n": 4, "terms": 4, "algebra": None, "learn_algebra": True,
            "rank": None,
        }  # fmt: skip
        assert (
            "2 layers are replaced; `config.json` lists them"
            in (tmp_path / "README.md").read_text()
        )
