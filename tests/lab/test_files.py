"""Files of other people: within bounds, and never followed elsewhere."""

import os
import sys

import pytest

from phnn import cli
from phnn.lab import files
from phnn.lab.packaged import read_recipe
from phnn.lab.recipe import build_recipe
from phnn.lab.runs import Run, RunFolderError, read_json
from phnn.lab.training import processes
from phnn.lab.training.epochs import MetricsFile
from phnn.lab.training.folder import open_folder
from phnn.lab.tuning.space import read_space

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
    with pytest.raises(ValueError, match=rf"(?s)bad\.yaml.*{message}"):
        read_recipe(tmp_path / "bad.yaml")


EVIL = {
    "model": "model: {name: 'evil:run', n: 2}",
    "teacher": "distill: 'evil:run'",
    "base": "base: other.yaml",
    "run": "run: {format: '1.0'}\nmodel: {name: 'evil:run'}",
    "variant": "families: {digits: {'evil:run': }}",
    "options": "families: {digits: {mine: {name: 'evil:run'}}}",
    "family": "families: {other.yaml: {real: }}",
}


@pytest.mark.parametrize("case", EVIL)
def test_a_file_runs_no_code(tmp_path, monkeypatch, capsys, case):
    (tmp_path / "evil.py").write_text("raise SystemExit('evil code ran')")
    (tmp_path / "other.yaml").write_text(EVIL["model"])
    (tmp_path / "mine.yaml").write_text(EVIL[case])
    monkeypatch.chdir(tmp_path)
    command = "compare" if "families" in EVIL[case] else "train"
    assert cli.main([command, "mine.yaml", "--out", "out"]) == cli.USER_ERROR
    assert "names the function evil:run" in capsys.readouterr().err
    if case == "teacher":  # called after the data are read
        return
    with pytest.raises(SystemExit, match="evil code ran"):
        cli.main([command, "mine.yaml", "--out", "out", "--trust", "--data.name", "digits"])


@pytest.mark.parametrize("text", ["model.name: [vgg11, 'evil:run']", "model: {name: ['evil:run']}"])
def test_a_space_runs_no_code(tmp_path, text):
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(files.FileError, match=r"space\.yaml names the function"):
        read_space([str(tmp_path / "space.yaml")])
    assert read_space([str(tmp_path / "space.yaml")], trust=True)
    assert read_space(["model.name=['own:net']"])  # on the command line


@posix
def test_logs_are_never_written_through_links(tmp_path):
    target = tmp_path / "precious"
    target.write_text("epoch\n")
    (tmp_path / "train.log").symlink_to(target)
    os.mkfifo(tmp_path / "fifo")
    for name in ("train.log", "fifo"):
        with pytest.raises(files.FileError, match="not a regular file"):
            files.open_log(tmp_path / name)
    with pytest.raises(files.FileError, match="not a regular file"):
        MetricsFile(tmp_path / "train.log").append({"epoch": 0})
    assert target.read_text() == "epoch\n"
    with files.open_log(tmp_path / "new.log") as log:
        log.write(b"one\n")
    with files.open_log(tmp_path / "new.log") as log:
        log.write(b"two\n")
    assert (tmp_path / "new.log").read_text() == "one\ntwo\n"


@posix
def test_folders_of_runs_are_no_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/a").symlink_to(tmp_path / "elsewhere")
    row = {"folder": "a", "family": "", "variant": "", "seed": 0, "result": None, "error": None}
    with pytest.raises(RunFolderError, match="not the folder of a run"):
        Run.from_row(row, tmp_path / "runs")
    run = Run.make(tmp_path / "runs/a", build_recipe({}))
    with pytest.raises(RunFolderError, match="is a link"):
        processes.start(run, "", 0, visible=False)


@posix
def test_a_journal_is_no_link(tmp_path):
    pytest.importorskip("optuna")
    from phnn.lab.tuning.study import open_storage

    (tmp_path / "study.journal").symlink_to(tmp_path / "precious")
    with pytest.raises(files.FileError, match="not a regular file"):
        open_storage(str(tmp_path / "study.journal"))


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
