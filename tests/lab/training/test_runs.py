"""The folder of a run, and the names of the folders of a comparison."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml

from helpers.comparisons import run_in_process
from helpers.training import run
from phnn import cli
from phnn.lab.comparison import load_comparison, plan
from phnn.lab.recipe import build_recipe, merge
from phnn.lab.runs import Run, RunFolderError, check_folder
from phnn.lab.trained import load_trained
from phnn.lab.training import train


def describe(folder):
    return yaml.safe_load((folder / "config.yaml").read_text())


@pytest.fixture
def ended(reference, tmp_path):
    """A copy of a run that has ended."""
    return Path(shutil.copytree(reference, tmp_path / "ended"))


def test_one_file_describes_it(reference, tiny):
    tree = describe(reference)
    assert tree.pop("run") == {"format": "1.0"}
    assert build_recipe(tree) == build_recipe(tiny)
    assert not (reference / "recipe.yaml").exists()
    found = Run.open(reference)
    assert (found.name, found.status) == ("mine vgg11 n=2, seed 0", "finished")
    assert found.recipe == build_recipe(tiny).to_dict()


def test_the_description_is_a_recipe(reference, tmp_path, capsys):
    argv = ["train", str(reference / "config.yaml"), "--out", str(reference)]
    assert cli.main(argv) == 0
    assert "this run had ended before" in capsys.readouterr().out


def test_where_a_result_comes_from(reference):
    result = json.loads((reference / "result.json").read_text())
    assert result["commit"]
    assert result["versions"]["phnn"]
    assert "cores" in result["machine"]
    assert result["seed"] == 0
    assert result["recipe"]["optimizer"]["lr"] == 0.01
    assert "root" not in result["recipe"]["data"]  # results are shared


def test_a_newer_minor_version_loads(ended, tiny):
    tree = describe(ended)
    tree["run"] |= {"format": "1.7", "mood": "good"}
    tree["trainer"]["warp"] = 9
    tree["weather"] = "fine"
    (ended / "config.yaml").write_text(yaml.safe_dump(tree))
    assert Run.open(ended).recipe == build_recipe(tiny).to_dict()
    assert load_trained(ended).recipe.seed == 0


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("2.0", "has format 2.0, and this version of phnn reads format 1 alone"),
        ("x", "which is not a version"),
    ],
)
def test_an_unknown_major_version_is_refused(ended, tiny, version, message):
    tree = describe(ended)
    tree["run"]["format"] = version
    (ended / "config.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(RunFolderError, match=message):
        Run.open(ended)
    with pytest.raises(RunFolderError, match=message):
        run(tiny, ended)


def test_a_result_belongs_to_its_recipe(ended, tiny):
    other = build_recipe(merge(tiny, {"model": {"n": 4}}))
    tree = {**describe(ended), **other.to_dict()}
    (ended / "config.yaml").write_text(yaml.safe_dump(tree))
    found = Run.open(ended)
    assert (found.status, found.result) == ("failed", None)
    assert found.error == "result.json belongs to another recipe (model.n: 2 → 4)"
    with pytest.raises(RunFolderError, match=r"result\.json belongs to another recipe"):
        check_folder(ended, other)


def test_a_result_without_its_description(ended, tiny):
    (ended / "config.yaml").unlink()
    assert run(tiny, ended)["epochs"] == 3  # it tells its recipe itself
    with pytest.raises(RunFolderError, match=r"belongs to another recipe \(seed: 0 → 1\)"):
        run(tiny, ended, seed=1)


@pytest.mark.parametrize("text", ["", "- a list", "run: 3", "{", "\x00", "seed: [1]"])
def test_a_damaged_description_is_named(ended, tiny, text):
    (ended / "config.yaml").write_text(text)
    with pytest.raises(RunFolderError, match=r"config\.yaml is not a recipe"):
        run(tiny, ended)


def test_a_damaged_result_is_named(ended):
    (ended / "result.json").write_text('{"half')
    with pytest.raises(RunFolderError, match=r"result\.json is damaged"):
        Run.open(ended)


def test_a_row_of_results_stays_inside(ended):
    row = Run.open(ended).to_row()
    again = Run.from_row(row, ended.parent)
    assert again.recipe == Run.open(ended).recipe
    assert again.result == row["result"]
    outside = Run.from_row({**row, "folder": "../../x"}, ended.parent)
    assert outside.folder == ended.parent / "x"


# --- names of folders ----------------------------------------------------------------------------


def plan_folders(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text)
    runs = plan(load_comparison(tmp_path / "mine.yaml"), tmp_path / "out", {})
    return [run.folder.name for run in runs], runs


@pytest.mark.parametrize(
    "variants",
    [
        {"wide 2": {"n": 2}, "wide-2": {"n": 4}},
        {"wide": {"n": 2}, "Wide": {"n": 4}},
        {"é": {"n": 2}, "e\u0301": {"n": 4}},
        {"/": {"n": 2}, "..": {"n": 4}, "": {"n": 3}},
        {"x" * 300: {"n": 2}, "x" * 301: {"n": 4}},
    ],
)
def test_folders_are_distinct(tmp_path, variants):
    names, runs = plan_folders(
        tmp_path, yaml.safe_dump({"families": {"digits": variants}}, sort_keys=False)
    )
    assert len({name.casefold() for name in names}) == len(variants)
    assert all(len(name) < 200 and Path(name).name == name for name in names)
    assert [run.recipe["model"]["n"] for run in runs] == [each["n"] for each in variants.values()]
    assert [run.variant for run in runs] == list(variants)


def test_a_name_that_is_not_shared_stays_plain(tmp_path):
    names, _ = plan_folders(tmp_path, "families: {digits: {wide 2: {n: 2}, wide-3: {n: 3}}}")
    assert names == ["digits-wide-2-seed0", "digits-wide-3-seed0"]


def test_recipes_of_one_name(tmp_path):
    for folder, n in (("a", 2), ("b", 4)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text(f"base: digits\nmodel: {{n: {n}}}\n")
    text = "families: {a/mine.yaml: {own: {init: polar}}, b/mine.yaml: {own: {init: polar}}}"
    names, runs = plan_folders(tmp_path, text)
    assert len(set(names)) == 2
    assert [(run.family, run.recipe["model"]["n"]) for run in runs] == [
        ("a/mine.yaml", 2),
        ("b/mine.yaml", 4),
    ]


def test_no_result_under_another_name(tiny, tmp_path, monkeypatch):
    """Names that make one folder in a simple scheme: each row has its own network."""
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(merge(tiny, {"trainer": {"max_epochs": 1}})))
    (tmp_path / "mine.yaml").write_text("families: {tiny.yaml: {wide 2: {n: 2}, wide-2: {n: 4}}}")
    run_in_process(monkeypatch)
    out = tmp_path / "out"
    assert cli.main(["compare", str(tmp_path / "mine.yaml"), "--out", str(out), "--jobs", "1"]) == 0
    with (out / "results.csv").open() as file:
        two, four = csv.DictReader(file)
    assert (two["variant"], four["variant"]) == ("wide 2", "wide-2")
    assert int(two["parameters"]) != int(four["parameters"])
    first, second = json.loads((out / "results.json").read_text())["runs"]
    assert (first["result"]["model"]["n"], second["result"]["model"]["n"]) == (2, 4)


def test_processes_that_would_train_alone_are_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"2 processes were started .* make 1; give torchrun"):
        train(build_recipe(tiny), tmp_path / "run")
    assert not (tmp_path / "run").exists()
