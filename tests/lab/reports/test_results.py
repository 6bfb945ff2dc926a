import json

import pytest

from phnn import cli
from phnn.lab.reports.results import read_results
from phnn.lab.tasks.report import find_trained


def test_folder_that_is_none(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == cli.USER_ERROR
    assert "neither results.json nor config.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", '{"comparison": "mine", "runs": []}'])
def test_results_that_cannot_be_read(tmp_path, capsys, content):
    (tmp_path / "results.json").write_text(content)
    assert cli.main(["report", str(tmp_path)]) == cli.USER_ERROR
    assert "run phnn compare again" in capsys.readouterr().err


def test_a_run_that_started_from_another_network_is_not_called_real(results):
    folder = results / "runs" / "tiny-real-seed0"
    assert read_results(folder).runs[0].is_real
    recipe = json.loads((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(json.dumps({**recipe, "start": "a/small.safetensors"}))
    read = read_results(folder)
    assert read.title == "resnet20 from small on mine"
    assert not read.runs[0].is_real


def test_the_table_is_made_of_the_runs(results):
    path = results / "results.json"
    content = json.loads(path.read_text())
    scores = [summary.scores for summary in read_results(results).summaries]
    for row in content["table"]:
        row["accuracy"] = 99.9
    path.write_text(json.dumps(content))
    assert [summary.scores for summary in read_results(results).summaries] == scores


def test_lines_survive_the_file(results):
    read_back = read_results(results)
    (row, *_) = json.loads((results / "results.json").read_text())["table"]
    summary = read_back.summaries[0]
    assert summary.to_row() == {**row, "seeds": tuple(row["seeds"])}
    assert summary.score is not None
    assert summary.score.mean == 75
    assert read_back.summaries[3].score is None
    assert [run.variant for run in find_trained(read_back.runs)] == ["real", "n=2"]
    (results / "runs/tiny-real-seed0/model.safetensors").unlink()
    assert [run.variant for run in find_trained(read_back.runs)] == ["n=2"]


@pytest.mark.parametrize("change", [{"parameters": None}, {"test_accuracy": "high"}])
def test_a_result_without_its_numbers_is_named(results, capsys, change):
    path = results / "runs" / "tiny-real-seed0" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert cli.main(["report", str(path.parent)]) == cli.USER_ERROR
    assert f"result.json is damaged ({next(iter(change))} is" in capsys.readouterr().err
