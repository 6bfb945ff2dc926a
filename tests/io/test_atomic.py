"""Files that appear complete or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from phnn.io import check_output, export, replacing, save
from phnn.io.atomic import staging

KILLED = """
import os, signal, sys
from pathlib import Path
from phnn.io.atomic import replacing, staging
path = Path(sys.argv[1])
with {kind}(path) as temporary:
    ({file}).write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_while_writing(path, kind, file):
    code = KILLED.format(kind=kind, file=file)
    done = subprocess.run([sys.executable, "-c", code, str(path)])
    assert done.returncode < 0
    (torn,) = path.parent.iterdir()
    assert torn.name.endswith(".tmp")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("kind", "file"), [("replacing", "temporary"), ("staging", "temporary / 'a'")]
)
def test_what_a_killed_process_left_is_removed_by_the_next_save(tmp_path, kind, file):
    path = tmp_path / "m.safetensors"
    kill_while_writing(path, kind, file)
    save(nn.Linear(2, 2), path)
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path):
    path = tmp_path / "m.pt2"
    torn = tmp_path / f".{path.name}.{'0' * 32}.tmp"
    torn.mkdir()
    (torn / "m.pt2").write_text("half")
    export(nn.Linear(2, 2).eval(), path, torch.randn(1, 2), format="torch")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("context", [replacing, staging])
def test_what_somebody_is_writing_stays(tmp_path, context):
    path = tmp_path / "m.safetensors"
    with context(path) as temporary:
        save(nn.Linear(2, 2), path)
        assert temporary.exists()
        if context is replacing:
            temporary.write_text("the later one wins")
    if context is replacing:
        assert path.read_text() == "the later one wins"
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_stay(tmp_path):
    path = tmp_path / "m.safetensors"
    others = {".m.safetensors.tmp", f".n.safetensors.{'0' * 32}.tmp", ".m.safetensors.0.tmp"}
    for name in others:
        (tmp_path / name).touch()
    save(nn.Linear(2, 2), path)
    assert {file.name for file in tmp_path.iterdir()} == {*others, path.name}


def test_outputs(tmp_path, monkeypatch):
    check_output(tmp_path / "new" / "folders" / "file")
    assert list(tmp_path.iterdir()) == []  # nothing is left of the test
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        check_output(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is a file, not a folder"):
        check_output(tmp_path / "file" / "below" / "it")
    monkeypatch.chdir(tmp_path)
    check_output(tmp_path.joinpath("file").relative_to(tmp_path))


@pytest.mark.skipif(os.name != "posix", reason="devices of POSIX")
def test_devices_are_not_replaced():
    with pytest.raises(OSError, match="/dev/null is not a regular file"):
        check_output(Path("/dev/null"))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(OSError, match="cannot be written: Permission denied"):
        check_output(tmp_path / "file")
