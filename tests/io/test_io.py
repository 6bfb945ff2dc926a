import json
import os
import struct
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import phnn
from phnn.conversion import convert, to_dense
from phnn.io import ModelFileError, inspect, load, replacing, save
from phnn.models import create_model

METADATA = {"classes": ["cat", "dog"], "image_size": [8, 8], "mean": [0.5], "std": [0.25]}


class Tied(nn.Module):
    """A model of somebody else's: tied weights, and a buffer that is not saved."""

    def __init__(self, width=4):
        super().__init__()
        self.encoder = nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.decoder = nn.Linear(width, width)
        self.decoder.weight = self.encoder.weight
        self.register_buffer("scale", torch.arange(float(width)), persistent=False)

    def forward(self, x):
        return self.decoder(self.norm(self.encoder(x))) * self.scale


def same(one, other):
    state, others = one.state_dict(), other.state_dict()
    return state.keys() == others.keys() and all(torch.equal(state[k], others[k]) for k in state)


def flip_byte(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.fixture
def file(tmp_path):
    return save(Tied(), tmp_path / "model.safetensors", metadata=METADATA)


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


class Dense(nn.Module):
    """What somebody converts: a tied pair, a layer used twice, a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.second.weight
        self.norm = nn.BatchNorm1d(16)
        self.again = self.norm_of = nn.Linear(16, 16)
        self.register_buffer("scale", torch.arange(16.0), persistent=False)

    def forward(self, x):
        x = self.tied(self.second(self.first(x)))
        return self.again(self.norm_of(self.norm(x))) * self.scale


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
        converted = convert(nn.Sequential(nn.Linear(8, 4)), n=4)
        with torch.device("meta"):
            empty = nn.Sequential(nn.Linear(8, 4))
        loaded = load(save(converted, tmp_path / "m.safetensors"), model=empty)
        assert loaded is empty
        assert same(loaded, converted)

    def test_a_module_that_does_not_fit_is_left_as_it_was(self, tmp_path):
        path = save(convert(nn.Sequential(nn.Linear(8, 4)), n=4), tmp_path / "m.safetensors")
        model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
        before = list(model)
        with pytest.raises(ModelFileError, match=r"missing: 1\.weight"):
            load(path, model=model)
        assert list(model) == before

    def test_the_layers_do_not_fit(self, tmp_path):
        path = save(convert(nn.Sequential(nn.Linear(8, 4)), n=4), tmp_path / "m.safetensors")
        with pytest.raises(
            ModelFileError, match=r"another model: 0: n=4 must divide in_features=6"
        ):
            load(path, model=lambda: nn.Sequential(nn.Linear(6, 4)))
        with pytest.raises(ModelFileError, match=r"another model: .*no .* layer '0'"):
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
        assert "2 layers are those that `config.json` lists" in (tmp_path / "README.md").read_text()

    def test_a_file_of_format_1(self, tmp_path, monkeypatch):
        """Files from before converted models could be saved."""
        model = create_model("resnet20", n=2)
        monkeypatch.setattr("phnn.io.saving.FORMAT", 1)
        monkeypatch.setattr(
            "phnn.io.container.asdict",
            lambda header: {
                key: value
                for key, value in vars(header).items()
                if key not in ("layers", "buffers")
            },
        )
        path = save(model, tmp_path / "m.safetensors")
        assert b'\\"layers\\"' not in path.read_bytes()
        assert same(load(path), model)


class TestInspecting:
    def test_a_file_of_the_zoo(self, tmp_path):
        model = convert(create_model("resnet20"), n=4)
        path = save(model, tmp_path / "m.safetensors", metadata=METADATA)
        found = inspect(path)
        assert (found.name, found.metadata, found.path) == ("resnet20", METADATA, path)
        assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
        assert found.size == path.stat().st_size
        layers = {layer.name: layer for layer in found.layers}
        assert next(iter(layers)) == "bn1"
        assert layers["layer1.0.conv1"].kind == "PHConv2d n=4"
        assert layers["layer1.0.conv1"].parameters == 16 * 16 * 9 // 4 + 4**3
        assert layers["layer1.0.conv1"].size == 4 * (16 * 16 * 9 // 4 + 4**3)
        assert (layers["bn1"].kind, layers["bn1"].parameters) == ("BatchNorm2d", 32)
        text = str(found)
        assert "layer1.0.conv1         PHConv2d n=4" in text
        assert f"resnet20: {found.parameters:,} parameters, {found.size:,} bytes in" in text

    def test_any_other_file(self, tmp_path):
        model = convert(Dense(), n=4)
        found = inspect(save(model, tmp_path))
        assert found.name is None
        assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
        layers = {layer.name: layer for layer in found.layers}
        assert layers["second"].kind == layers["tied"].kind == "PHLinear n=4"
        assert layers["tied"].parameters == 16  # its bias; the weight is that of `second`
        assert "did not make" in str(found)

    def test_natural_order(self, tmp_path):
        model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(11)))
        found = inspect(save(model, tmp_path / "m.safetensors"))
        assert [layer.name for layer in found.layers] == [str(place) for place in range(11)]


class TestBadFiles:
    def test_no_file(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"no file .*none\.safetensors"):
            load(tmp_path / "none.safetensors")

    @pytest.mark.parametrize("length", [0, 5, 100, -1])
    def test_truncated(self, file, length):
        file.write_bytes(file.read_bytes()[:length])
        with pytest.raises(ModelFileError, match=r"truncated or not a .safetensors file"):
            load(file, model=Tied)

    def test_foreign(self, tmp_path):
        path = tmp_path / "m.safetensors"
        torch.save({"weight": torch.zeros(2)}, path)
        with pytest.raises(ModelFileError, match=r"truncated or not a .safetensors file"):
            load(path)
        save_file({"weight": torch.zeros(2)}, path)
        with pytest.raises(ModelFileError, match=r"was not written by phnn.save"):
            load(path)

    def test_altered_tensor(self, file):
        flip_byte(file, -1)
        with pytest.raises(ModelFileError, match="damaged or altered: its SHA-256"):
            load(file, model=Tied)

    def test_altered_header(self, file):
        flip_byte(file, file.read_bytes().index(b"cat"))
        with pytest.raises(ModelFileError, match=r"header of .* is damaged or altered"):
            load(file, model=Tied)

    def test_every_byte_is_guarded(self, file):
        """No single altered byte loads, save in the padding of the header."""
        content = file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        used = 8 + len(content[8 : 8 + length].rstrip())
        # "format" is for other libraries, and not read here
        label = content.index(b'"format":"pt"')
        ignored = {*range(used, 8 + length), *range(label, label + len(b'"format":"pt"'))}
        for place in range(0, len(content), 7):
            if place in ignored:
                continue
            file.write_bytes(content)
            flip_byte(file, place)
            with pytest.raises(ModelFileError):
                load(file, model=Tied)

    def test_newer_format(self, tmp_path, monkeypatch):
        monkeypatch.setattr("phnn.io.saving.FORMAT", 99)
        path = save(nn.Linear(2, 2), tmp_path / "m.safetensors")
        monkeypatch.undo()
        with pytest.raises(ModelFileError, match=r"format 99, .* reads up to 2; install a newer"):
            load(path, model=nn.Linear(2, 2))

    def test_differences_are_listed_before_anything_is_read(self, file, monkeypatch):
        monkeypatch.setattr(
            "phnn.io.loading.read_tensors", lambda *_: pytest.fail("tensors were read")
        )

        class Other(Tied):
            def __init__(self):
                super().__init__(width=6)
                self.extra = nn.Linear(2, 2)
                del self.norm

        with pytest.raises(ModelFileError, match="does not fit the model") as caught:
            load(file, model=Other)
        text = str(caught.value)
        assert "missing: extra.bias" in text
        assert "unexpected: norm.running_mean" in text
        assert "shape of encoder.weight: (4, 4) in the file, (6, 6) in the model" in text

    def test_types_are_compared_with_a_module_in_memory(self, file):
        with pytest.raises(
            ModelFileError, match=r"float32 in the file, torch\.float64 in the model"
        ):
            load(file, model=Tied().double())

    def test_long_lists_are_cut(self, file):
        with pytest.raises(ModelFileError, match=r"and \d+ more"):
            load(file, model=lambda: create_model("resnet20"))


class TestSaving:
    def test_other_suffixes_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"m\.pt' must end in \.safetensors, or be a folder"):
            save(nn.Linear(2, 2), tmp_path / "m.pt")

    def test_metadata_must_be_json(self, tmp_path):
        with pytest.raises(ValueError, match=r"metadata must be ready for JSON: .*Tensor"):
            save(nn.Linear(2, 2), tmp_path / "m.safetensors", metadata={"x": torch.ones(1)})

    def test_a_model_without_values(self, tmp_path):
        with pytest.raises(ValueError, match="weight, bias on the meta device"):
            save(nn.Linear(2, 2, device="meta"), tmp_path / "m.safetensors")

    def test_state_that_is_not_a_tensor(self, tmp_path):
        class Counter(nn.Module):
            def get_extra_state(self):
                return 3

        with pytest.raises(ValueError, match="_extra_state is a int; only tensors"):
            save(Counter(), tmp_path / "m.safetensors")

    def test_interrupted_write_leaves_the_old_file(self, file):
        before = file.read_bytes()

        def interrupted():
            with replacing(file) as temporary:
                temporary.write_bytes(before[:10])
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert file.read_bytes() == before
        assert [path.name for path in file.parent.iterdir()] == [file.name]

    def test_full_disk_is_an_os_error(self, file, monkeypatch):
        from safetensors import SafetensorError

        before = file.read_bytes()

        def full(*args, **kwargs):
            raise SafetensorError("No space left on device")

        monkeypatch.setattr("phnn.io.container.save_file", full)
        with pytest.raises(OSError, match="cannot be written: No space left"):
            save(Tied(), file)
        assert file.read_bytes() == before

    @pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
    def test_permissions_are_those_of_any_new_file(self, file):
        other = file.with_name("other")
        other.touch()
        assert file.stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn])
def test_buffers_of_rare_types(tmp_path, dtype):
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("rare", torch.tensor([1, 2]).to(dtype))
    path = save(model, tmp_path / "a.safetensors")
    other = nn.Sequential(nn.Linear(2, 2))
    other.register_buffer("rare", torch.zeros(2).to(dtype))
    loaded = load(path, model=other)
    assert loaded.rare.dtype == dtype
    assert loaded.rare.float().tolist() == [1, 2]


def test_a_type_that_no_file_holds_is_refused(tmp_path):
    model = nn.Linear(2, 2, dtype=torch.complex128)
    with pytest.raises(ValueError, match=r"weight is of torch\.complex128, which \.safetensors"):
        save(model, tmp_path / "a.safetensors")
