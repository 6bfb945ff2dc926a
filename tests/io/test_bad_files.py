"""Files that are damaged, foreign or for another model."""

import struct

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from helpers.files import Tied, flip_byte
from phnn.io import ModelFileError, load
from phnn.models import create_model


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
        with pytest.raises(ModelFileError, match=r"its header is damaged or altered"):
            load(file, model=Tied)

    def test_every_byte_is_guarded(self, file):
        """No single altered byte loads, save in the padding of the header."""
        content = file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        used = 8 + len(content[8 : 8 + length].rstrip())
        # "format" is for other libraries, and not read here
        label = content.index(b'"format":"pt"')
        ignored = {*range(used, 8 + length), *range(label, label + len(b'"format":"pt"'))}
        for position in range(0, len(content), 7):
            if position in ignored:
                continue
            file.write_bytes(content)
            flip_byte(file, position)
            with pytest.raises(ModelFileError):
                load(file, model=Tied)

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
