"""What the paper's recipes take from the authors' code."""

import pytest

from phnn.lab.comparison import load_comparison
from phnn.lab.packaged import list_recipes, read_recipe
from phnn.lab.recipe import build_recipe
from phnn.lab.reports.summaries import Row, summarize_row
from phnn.lab.runs import Run
from phnn.lab.tasks import find_task
from phnn.lab.tasks.sound.detector import Detector
from phnn.lab.tasks.sound.options import DetectorOptions
from phnn.models import create_model

SMALL = {"widths": [4] * 4, "hidden": 4, "dense": 4, "in_channels": 4, "logits": True}


@pytest.mark.parametrize("counting", ["plain", "authors"])
def test_counting_is_an_option_of_the_learner(counting):
    recipe = build_recipe({"task": "sound", "learner": {"counting": counting}})
    learner = Detector(create_model("sednet", **SMALL), recipe, {"overlaps": 3})
    scores = (learner.train_scores, learner.val_scores, learner.test_scores)
    assert {each.metrics["events"].counting for each in scores} == {counting}


def test_an_unknown_counting():
    with pytest.raises(ValueError, match="counting='double' must be plain or authors"):
        DetectorOptions("double")


def test_the_papers_recipes_begin_as_the_authors_code():
    paper = [name for name in list_recipes() if name.endswith(("svhn", "cifar100", "imagenet"))]
    sound = ["sednet-4", "sednet-8", "sednet-16"]
    assert len(paper) > 20
    for name in [*paper, *sound]:
        recipe = build_recipe(read_recipe(name))
        assert recipe.model["init"] == "authors", name
        assert recipe.data["global_batch"], name
    for name in sound:
        recipe = build_recipe(read_recipe(name))
        assert (recipe.learner["counting"], recipe.data["standardize"]) == ("authors", "authors")
    assert {variant.seeds for variant in load_comparison("sednet").variants} == {(0, 1, 2)}


@pytest.mark.parametrize(
    ("learner", "named"), [({}, "plain"), ({"counting": "authors"}, "authors")]
)
def test_tables_name_the_counting(tmp_path, learner, named):
    task = find_task("sound")
    scores = {f"test_{score.name}": 0.5 for score in task.scores}
    result = {
        **scores, "recipe": {"learner": learner}, "parameters": 1, "storage_bytes": 1,
        "test_seconds": 1.0, "train_seconds": 1.0, "train_seconds_per_100": 50.0,
        "train_seconds_per_100_std": 1.0, "energy_kwh": None, "co2_kg": None, "threads": 1,
    }  # fmt: skip
    run = Run(tmp_path, "sednet-4", "real", 0, result=result)
    row = Row("sednet-4", "real", True, {"f": "0.637"})
    summary = summarize_row(task, row, [run])
    assert summary.options == {"counting": named}
    assert Row.read(summary.to_row(), task) == row
