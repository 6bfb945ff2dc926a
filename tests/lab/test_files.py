"""Files of other people: within bounds, and never followed elsewhere."""

import os
import sys

import pytest

from phnn.lab import files
from phnn.lab.recipe import build_recipe, read_recipe
from phnn.lab.runs import Run, RunFolderError, read_json
from phnn.lab.training.folder import open_folder

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fifos")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "stands for .* values, at most"),
        ("a: &a [*a]", "an alias stands for itself"),
        ("[" * 5000, "is not YAML"),
        ("a: [1", "is not YAML"),
        ("x" * (2**20 + 1), "characters, at most"),
        ("a: 2001-13-77", "is not YAML"),
    ],
)
def test_yaml_is_bounded_before_it_is_built(tmp_path, text, message):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"(?s).*bad\.yaml.*{message}|{message}"):
        read_recipe(tmp_path / "bad.yaml")


def test_plain_aliases_are_allowed(tmp_path):
    (tmp_path / "good.yaml").write_text("model: &m {name: vgg11}\ndata: {again: *m}")
    assert read_recipe(tmp_path / "good.yaml")["data"] == {"again": {"name": "vgg11"}}


@posix
def test_a_fifo_is_no_file(tmp_path):
    for name in ("result.json", "config.yaml", "pipe.yaml"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(RunFolderError, match=r"result\.json.*not a regular file"):
        read_json(tmp_path / "result.json")
    with pytest.raises(RunFolderError, match=r"config\.yaml.*not a regular file"):
        Run.open(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"pipe\.yaml"):
        read_recipe(tmp_path / "pipe.yaml")


@posix
def test_a_lock_that_is_a_link_harms_nothing(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / ".lock").symlink_to(precious)
    with (
        pytest.raises(files.FileError, match=r"\.lock is not a regular file; delete it"),
        open_folder(tmp_path, build_recipe({}), {}, 0),
    ):
        pass
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("text", ["[]", "3", "{", '{"a": ' * 3000, "\x00", "nul"])
def test_a_damaged_result_is_named(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"result\.json is damaged"):
        read_json(tmp_path / "result.json")


@pytest.mark.parametrize("folder", ["..", "../..", ".", "", "/"])
def test_a_row_is_never_outside_of_its_folder(tmp_path, folder):
    row = {"folder": folder, "family": "", "variant": "", "seed": 0, "result": None, "error": None}
    with pytest.raises(RunFolderError, match="is not the folder of a run"):
        Run.from_row(row, tmp_path / "runs")


@pytest.mark.parametrize("wrong", [{"recipe": 3}, {"model": 3}, {"model": []}])
def test_a_result_of_wrong_types_is_named(tmp_path, wrong):
    recipe = build_recipe({"model": {"name": "vgg11"}})
    Run.make(tmp_path, recipe).write()
    (tmp_path / "result.json").write_text(files.json.dumps(wrong))
    with pytest.raises(ValueError, match=r"result\.json"):
        Run.open(tmp_path)
