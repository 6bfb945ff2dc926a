"""Adapters in files."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from phnn import adapt, export_lora, list_adapters, load_adapter, merge, save_adapter, use_adapter
from phnn.io import ModelFileError, read_sealed, write_tensors
from phnn.testing import assert_close

X = torch.randn(3, 4, 6, 6, generator=torch.Generator().manual_seed(1))


def make_model():
    torch.manual_seed(0)
    layers = nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 8)
    return nn.Sequential(*layers).eval()


def make_adapted(**choice):
    adapted = adapt(make_model(), **(choice or {"n": 2}))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.2)
    return adapted


@pytest.mark.parametrize(
    "choice",
    [
        {"n": (2, 4), "terms": 2},
        {"n": 2, "filter_rank": 1, "share_algebra": True, "dropout": 0.1},
        {"algebra": "cyclic(4)", "include": "4"},
    ],
    ids=str,
)
def test_a_round_trip(choice, tmp_path):
    adapted = make_adapted(**choice)
    file = save_adapter(adapted, tmp_path / "delta.safetensors")
    loaded = load_adapter(make_model(), file)
    assert torch.equal(loaded(X), adapted(X))
    assert list_adapters(loaded)["default"].layers == list_adapters(adapted)["default"].layers
    size = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert size == sum(p.numel() for p in loaded.parameters() if p.requires_grad)
    stored = sum(tensor.numel() for tensor in load_file(file).values())
    assert stored - size in (0, 64)  # a fixed algebra is written, too


def test_several_and_names(tmp_path):
    first, second = make_adapted(n=2), make_adapted(n=4, include="2")
    files = [
        save_adapter(model, tmp_path / f"{i}.safetensors")
        for i, model in enumerate((first, second))
    ]
    model = load_adapter(load_adapter(make_model(), files[0], "a"), files[1], "b", inplace=True)
    assert torch.equal(model(X), second(X))
    assert torch.equal(use_adapter(model, "a")(X), first(X))
    save_adapter(model, tmp_path / "c.safetensors", "b")
    assert torch.equal(load_adapter(make_model(), tmp_path / "c.safetensors")(X), second(X))
    with pytest.raises(ValueError, match=r"already has an adapter 'a'; give another name="):
        load_adapter(model, files[0], "a")


class TestBadFiles:
    @pytest.fixture
    def file(self, tmp_path):
        return save_adapter(make_adapted(), tmp_path / "delta.safetensors")

    @pytest.mark.parametrize("inplace", [False, True])
    def test_another_model(self, file, inplace):
        model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(128, 32))
        with pytest.raises(ModelFileError, match="for another model: the model has no layer '4'"):
            load_adapter(model, file, inplace=inplace)
        wide = make_model()
        wide[2], wide[4] = nn.Linear(128, 64), nn.Linear(64, 8)
        with pytest.raises(ModelFileError, match=r"does not fit .*\n.*shape of 2:F"):
            load_adapter(wide, file, inplace=inplace)
        assert type(wide[0]) is nn.Conv2d
        assert all(p.requires_grad for p in wide.parameters())

    def test_damaged(self, file):
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)
        with pytest.raises(ModelFileError, match="SHA-256"):
            load_adapter(make_model(), file)

    def test_another_kind_of_file(self, file, tmp_path):
        save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
        with pytest.raises(ModelFileError):
            load_adapter(make_model(), tmp_path / "other.safetensors")
        with pytest.raises(FileNotFoundError):
            load_adapter(make_model(), tmp_path / "none.safetensors")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"kind": "x"}, "not a file of phnn.save_adapter"),
            ({"version": 99}, "version 99; install a newer phnn"),
            ({"layers": []}, "layers is a list"),
            ({"layers": {"0": None}}, "layer '0' is not described"),
            ({"filter_rank": "2"}, "filter_rank is a str"),
            ({"shared": {"x": "y"}}, "x names y, which is not there"),
            ({"name": "a.b"}, "no dot"),
        ],
    )
    def test_a_header_of_another_kind(self, file, change, message):
        tensors, header = read_sealed(file)
        write_tensors(file, tensors, {**header, **change})
        with pytest.raises(ModelFileError, match=message):
            load_adapter(make_model(), file)

    def test_where_to(self, tmp_path):
        with pytest.raises(ValueError, match=r"must end in .safetensors"):
            save_adapter(make_adapted(), tmp_path / "delta.pt")
        with pytest.raises(ValueError, match="the model has no adapter"):
            save_adapter(make_model(), tmp_path / "delta.safetensors")


class TestLora:
    def test_the_nearest_matrices_of_a_rank(self, tmp_path):
        adapted = make_adapted(n=4, include=["0", "4"])
        written = export_lora(adapted, tmp_path, rank=3)
        tensors = load_file(tmp_path / "adapter_model.safetensors")
        A, B = (tensors[f"base_model.model.4.lora_{side}.weight"] for side in "AB")
        delta = adapted[4].deltas["default"].weight.detach()
        error = float((delta - B @ A).norm() / delta.norm())
        assert written.errors["4"] == pytest.approx(error, rel=1e-4)
        assert 0.1 < error < 1
        config = json.loads((tmp_path / "adapter_config.json").read_text())
        assert (config["r"], config["target_modules"]) == (3, ["0", "4"])
        assert "relative error" in str(written)

    def test_full_rank_loses_nothing(self, tmp_path):
        written = export_lora(make_adapted(), tmp_path, rank=32)
        assert max(written.errors.values()) < 1e-6

    def test_peft_reads_it(self, tmp_path):
        peft = pytest.importorskip("peft")
        adapted = make_adapted()
        export_lora(adapted, tmp_path, rank=32)
        model = peft.PeftModel.from_pretrained(make_model(), tmp_path)
        assert_close(model(X), merge(adapted)(X), 1e-4)

    def test_refusals(self, tmp_path):
        grouped = adapt(nn.Sequential(nn.Conv2d(8, 8, 3, groups=2)), n=2)
        with pytest.raises(ValueError, match="0 is a Conv2d; peft's LoRA files hold linear layers"):
            export_lora(grouped, tmp_path, rank=2)
        with pytest.raises(ValueError, match="rank must be an integer of at least 1, got rank=0"):
            export_lora(make_adapted(), tmp_path, rank=0)
