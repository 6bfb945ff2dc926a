import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import phnn
from helpers.figures import overlaps, texts
from phnn.lab.recipe import build_recipe
from phnn.lab.reports.loader import CachingRunLoader
from phnn.lab.reports.results import read_results
from phnn.lab.tasks.images.report.answers import (
    FILE,
    Answers,
    choose_cases,
    find_answers,
    take_images,
)
from phnn.lab.tasks.images.report.confusion import (
    count_confusions,
    draw_confusions,
    score_classes,
)
from phnn.lab.tasks.images.report.gradcam import draw_looks, find_layer, look
from phnn.lab.tasks.images.report.sections import choose_pair, sections
from phnn.lab.tasks.report import DataMissingError, find_trained
from phnn.lab.training.build import build_data


def real_run(results):
    run = read_results(results).runs[0]
    assert run.is_real
    return run


def answer(run, overrides=None):
    return find_answers(run, CachingRunLoader(overrides), lambda text: None)


def test_answers_are_the_networks(results):
    run = real_run(results)
    answers = answer(run)
    model = phnn.load(run.folder)
    data = build_data(build_recipe(run.recipe))
    data.standardize_as(model.phnn_metadata)
    images, inputs = take_images(data, range(8))
    with torch.no_grad():
        probabilities, predictions = model(inputs).softmax(1).max(1)
    assert answers.predictions.tolist() == predictions.tolist()
    np.testing.assert_allclose(answers.probabilities, probabilities.numpy(), rtol=1e-5)
    assert answers.labels.tolist() == [0] * 4 + [1] * 4
    assert images.dtype == torch.uint8
    swapped, _ = take_images(data, [5, 2])
    assert torch.equal(swapped, images[[5, 2]])


def test_kept_answers_are_those_of_this_network(results, tmp_path):
    run = real_run(results)
    first = answer(run)
    kept = (run.folder / FILE).read_bytes()
    shutil.rmtree(tmp_path / "images")
    again = answer(run)  # needs no data
    np.testing.assert_array_equal(first.probabilities, again.probabilities)
    assert again.classes == ("<a>", "b & c")
    # another network in the same folder is tested again
    shutil.copy(results / "runs" / "tiny-n=2-seed0" / "model.safetensors", run.folder)
    with pytest.raises(DataMissingError, match="cannot be read"):
        answer(run)
    assert (run.folder / FILE).read_bytes() == kept


def test_kept_answers_are_those_for_these_data(results, tmp_path, make_images):
    run = real_run(results)
    mine = answer(run)
    make_images(tmp_path / "others", seed=1)
    others = answer(run, {"data": {"root": str(tmp_path / "others")}})
    assert not np.array_equal(mine.probabilities, others.probabilities)
    np.testing.assert_array_equal(mine.probabilities, answer(run).probabilities)


def test_cases_are_the_most_certain_of_each_class():
    labels = np.array([0, 0, 1, 1, 2, 2])
    answers = Answers(
        ("a", "b", "c"),
        labels,
        np.array([0, 0, 1, 0, 2, 1]),
        np.array([0.8, 0.9, 0.6, 0.7, 0.5, 0.99], dtype=np.float32),
    )
    assert choose_cases(answers, right=True, count=3) == [1, 2, 4]
    assert choose_cases(answers, right=True, count=9) == [1, 2, 4, 0]
    assert choose_cases(answers, right=False, count=9) == [5, 3]


def test_the_real_network_and_the_best_other_are_shown(results):
    real, two = find_trained(read_results(results).runs)
    good, bad = (
        Answers(("a",), np.zeros(2, int), np.array([0, wrong]), np.ones(2, np.float32))
        for wrong in (0, 1)
    )
    assert choose_pair([(two, good), (real, bad)]) == [(real, bad), (two, good)]
    assert choose_pair([(two, bad), (two, good)]) == [(two, good)]
    assert choose_pair([(real, bad)]) == [(real, bad)]


def test_confusions():
    labels, predictions = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 0, 0, 2])
    classes = ("a", "b", "c", "d")
    matrix = count_confusions(Answers(classes, labels, predictions, np.ones(6, np.float32)))
    assert matrix.tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [2, 0, 1, 0], [0, 0, 0, 0]]
    first, second, third, empty = score_classes(matrix, classes)
    assert (first.recall, first.mistaken) == (50, "b")
    assert (second.images, second.recall, second.mistaken) == (1, 100, None)
    assert third.recall == pytest.approx(100 / 3)
    assert third.mistaken == "a"
    assert (empty.images, empty.recall, empty.mistaken) == (0, None, None)
    figure = draw_confusions(matrix, classes, "title")
    assert "67" in texts(figure)
    assert not overlaps(figure)
    many = draw_confusions(np.eye(100, dtype=int), [f"class {i}" for i in range(100)], "many")
    assert "class 7" not in texts(many)


def test_of_many_classes_the_worst_and_the_best_are_listed(tmp_path):
    labels = np.repeat(np.arange(30), 2)
    predictions = np.where(np.arange(60) % 2 == 0, labels, 0)  # one of two is taken for class 0
    predictions[58] = 0  # class 29 is never recognized
    np.savez(
        tmp_path / FILE, digest="x", classes=[f"class {i}" for i in range(30)], labels=labels,
        predictions=predictions, probabilities=np.ones(60),
    )  # fmt: skip
    run = SimpleNamespace(
        family="f",
        variant="real",
        name="f real",
        folder=tmp_path,
        result={},
        has_model=True,
        is_own=False,
    )
    loader = SimpleNamespace(digest=lambda run: "x")
    section = next(sections([run], loader, lambda text: None))
    (table,) = (element for element in section.elements if element.kind == "table")
    head, rows = table.content
    assert head == ["class (the 10 worst and the 10 best)", "images", "real"]
    assert len(rows) == 20
    assert rows[0] == ["class 29", "2", "0.0 (class 0)"]
    assert rows[-1] == ["class 0", "2", "100.0"]


class Corner(nn.Module):
    """Its first class is likely when the upper left corner is bright, its second never."""

    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(4)
        self.narrow = nn.AvgPool2d(4)

    def forward(self, images):
        maps = self.pool(images[:, :1])
        self.narrow(maps)
        corner = maps[:, 0, 0, 0]
        return torch.stack([10 * corner, 0 * corner], 1)


def test_gradcam_finds_what_the_answer_depends_on():
    model = Corner().eval()
    images = torch.full((2, 3, 16, 16), 0.5)
    images[:, :, :4, :4] = 1.0
    assert find_layer(model, images) is model.pool  # the map of one pixel says nothing
    found = look("corner", model, images, ["bright", "dark"])
    assert found.maps.shape == (2, 16, 16)
    assert found.maps.amax() == 1
    assert found.answers[0][0] == "bright"
    row, column = divmod(int(found.maps[0].argmax()), 16)
    assert row < 4
    assert column < 4
    figure = draw_looks((255 * images).byte(), ["a", "b"], [found], "title")
    assert texts(figure).count("bright (100 %)") == 2
    assert not overlaps(figure)


def test_gradcam_needs_positions():
    with pytest.raises(ValueError, match="no feature map of 4×4 pixels"):
        find_layer(nn.Flatten(), torch.zeros(1, 3, 8, 8))
