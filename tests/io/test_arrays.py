"""Files of NumPy that somebody else wrote."""

import io
import os
import sys

import numpy as np
import pytest

from phnn.io import arrays
from phnn.io.arrays import read_arrays

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fifos")


def test_arrays_in_their_order(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", b=np.arange(3), a=np.zeros(2))
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == ["b", "a"]
    np.save(tmp_path / "a.npy", np.arange(3))
    assert read_arrays(tmp_path / "a.npy")[""].tolist() == [0, 1, 2]


@posix
def test_a_fifo_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(ValueError, match="not a regular file"):
        read_arrays(tmp_path / "a.npy")


def test_a_bomb_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(2**18))
    monkeypatch.setattr(arrays, "LARGEST", 2**20)
    monkeypatch.setattr(np, "load", lambda *given, **options: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=r"bytes stand for 2,097,\d+"):
        read_arrays(tmp_path / "a.npz")


def test_every_damage_is_a_value_error(tmp_path):
    file = io.BytesIO()
    np.savez_compressed(file, digest="d", labels=np.arange(300), more=np.sin(np.arange(50)))
    good, rng, messages = file.getvalue(), np.random.default_rng(0), []
    for _ in range(300):
        content = bytearray(good)
        for where in rng.integers(0, len(good), rng.choice([1, 4])):
            content[where] = rng.integers(256)
        (tmp_path / "a.npz").write_bytes(content)
        try:
            read_arrays(tmp_path / "a.npz")
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all("a.npz" in message for message in messages)
