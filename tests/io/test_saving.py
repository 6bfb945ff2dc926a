"""What can be saved, and what is left when it cannot."""

import errno
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from helpers.files import Tied
from phnn.io import export, load, replacing, save


class TestSaving:
    def test_other_suffixes_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"m\.pt' must end in \.safetensors, or be a folder"):
            save(nn.Linear(2, 2), tmp_path / "m.pt")

    def test_what_is_no_model(self, tmp_path):
        with pytest.raises(TypeError, match=r"save takes .* got the string 'resnet18'; build a"):
            save("resnet18", tmp_path / "m.safetensors")
        with pytest.raises(TypeError, match=r"export takes .* got the class Linear"):
            export(nn.Linear, tmp_path / "m.onnx", torch.ones(1, 2))
        assert not list(tmp_path.iterdir())

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

    def test_a_full_disk_leaves_the_old_file(self, file, monkeypatch):
        before = file.read_bytes()

        def full(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OSError, match=f"{file} cannot be written: No space left") as caught:
            save(Tied(), file)
        assert caught.value.errno == errno.ENOSPC
        assert file.read_bytes() == before
        assert [path.name for path in file.parent.iterdir()] == [file.name]

    def test_other_libraries_read_the_file(self, file):
        model = load(file, model=Tied)
        found = load_file(file)
        assert all(torch.equal(found[name], model.state_dict()[name]) for name in found)

    def test_too_much_metadata(self, tmp_path, monkeypatch):
        monkeypatch.setattr("phnn.io.container.LONGEST_HEADER", 1000)
        with pytest.raises(ValueError, match=r"would have 1,\d+ bytes.*save less metadata"):
            save(Tied(), tmp_path / "m.safetensors", metadata={"text": "x" * 1000})
        assert list(tmp_path.iterdir()) == []

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


SAVE = """
import sys, torch, phnn
torch.manual_seed(0)
model = phnn.convert(phnn.create_model("resnet20", widths=[4, 4, 4]), n=2)
keys = ["b", "a"] if sys.argv[2] == "1" else ["a", "b"]
phnn.save(model, sys.argv[1], metadata={key: 1 for key in keys})
"""


def test_equal_models_give_equal_bytes(tmp_path, monkeypatch):
    here, there = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    monkeypatch.setattr(sys, "argv", ["save", str(here), "1"])
    exec(SAVE, {})
    seed = 1 if os.environ.get("PYTHONHASHSEED") != "1" else 2  # texts are hashed otherwise there
    argv = [sys.executable, "-c", SAVE, str(there), "2"]
    subprocess.run(argv, check=True, env={**os.environ, "PYTHONHASHSEED": str(seed)})
    assert here.read_bytes() == there.read_bytes()


class Unread(nn.Module):
    def state_dict(self, *args, **kwargs):
        pytest.fail("the work began")


@pytest.mark.parametrize("name", ["file/m.safetensors", "file/folder", "folder.safetensors"])
def test_an_output_that_cannot_be_written_is_found_first(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(OSError, match=r"is a file, not a folder|is a folder; name a file"):
        save(Unread(), tmp_path / name)
