import xml.etree.ElementTree as ET
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import phnn
from helpers.figures import overlaps, texts
from phnn import algebra, cli
from phnn.lab.drawing import COLOURS, assign_colours, save_figure, tint
from phnn.lab.reports.algebras import choose_spread, draw_algebras, list_learned
from phnn.lab.reports.bubbles import draw_bubbles
from phnn.lab.reports.curves import draw_curves, list_quantities, read_curve
from phnn.lab.reports.kronecker import draw_kronecker
from phnn.lab.reports.multiplication import draw_nested_tables, draw_tables
from phnn.lab.reports.sizes import draw_sizes
from phnn.lab.reports.successes import count_successes, draw_successes, gather_contests
from phnn.lab.reports.summaries import Spread, Summary
from phnn.lab.tasks import Score
from phnn.lab.tasks.images import IMAGES


def test_figures_without_a_run(tmp_path, capsys):
    assert cli.main(["figures", "-o", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in ("multiplication", "algebras", "kronecker"):
        assert str(tmp_path / f"{name}.png") in printed
        with Image.open(tmp_path / f"{name}.png") as picture:
            # opaque, so that dark screens show it as paper does
            assert picture.convert("RGBA").getextrema()[3] == (255, 255)
        ET.parse(tmp_path / f"{name}.svg")


def test_multiplication_table_is_the_octonions():
    figure = draw_nested_tables()
    (panel,) = figure.axes
    cells = {tuple(map(round, t.get_position()[::-1])): t.get_text() for t in panel.texts}
    basis = torch.eye(8, dtype=torch.float64)
    for row, column in product(range(8), repeat=2):
        value = algebra.octonion.multiply(basis[row], basis[column])
        index = int(value.abs().argmax())
        sign = "−" if value[index] < 0 else ""
        assert cells[row, column] == sign + algebra.octonion.labels[index]
    assert not overlaps(figure)


def test_tables_of_algebras():
    figure = draw_tables([algebra.dual, algebra.quaternion])
    words = texts(figure)
    assert "dual" in words
    assert "quaternion" in words
    assert words.count("0") == 1  # ε² = 0
    assert not overlaps(figure)


def test_kronecker_blocks_are_those_of_the_weight():
    figure = draw_kronecker()
    weight = [t.get_text() for t in figure.axes[-1].texts][:-1]
    n = 4
    blocks = {
        (round(t.get_position()[1] - 0.5), round(t.get_position()[0] - 0.5)): t.get_text()
        for t in figure.axes[-1].texts[:-1]
    }
    assert len(weight) == n * n
    A = algebra.quaternion.structure
    for a, b in product(range(n), repeat=2):
        i = int(A[:, a, b].abs().argmax())
        assert blocks[a, b] == f"${'-' if A[i, a, b] < 0 else ''}F_{{{i + 1}}}$"
    assert not overlaps(figure)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(algebra.octonion, "n=8"), (algebra.Algebra("double", 2 * np.ones((1, 1, 1))), "not one ±F")],
)
def test_kronecker_of_other_algebras(wrong, message):
    with pytest.raises(ValueError, match=message):
        draw_kronecker(wrong)


def test_colours():
    assert assign_colours(["real", "n=4", "real"]) == {"real": COLOURS[0], "n=4": COLOURS[4]}
    assert len(assign_colours(map(str, range(20)))) == 20
    assert tint("#000000", 0) == (1, 1, 1)
    assert tint("#ff0000", 1) == (1, 0, 0)


def test_curves(tmp_path):
    assert read_curve(tmp_path) == {}
    (tmp_path / "metrics.csv").write_text("epoch,step,lr,train_loss,val_accuracy\n0,9,0.1,2.0,\n")
    curve = read_curve(tmp_path)
    assert curve["train_loss"] == [2.0]
    assert np.isnan(curve["val_accuracy"][0])
    assert list_quantities([curve]) == ["loss", "accuracy"]
    curve = {"epoch": [0, 1], "val_accuracy": [0.5, 0.75]}
    figure = draw_curves([("real", {}), ("n=2", curve)], "accuracy", IMAGES.primary)
    (drawn,) = figure.axes[0].lines
    assert drawn.get_xydata().tolist() == [[1, 50], [2, 75]]
    assert drawn.get_color() == COLOURS[2]  # of n=2, whatever else is drawn
    assert "accuracy (%)" in texts(figure)
    assert "real" not in texts(figure)


def test_learned_algebras():
    model = phnn.create_model("resnet20", n=2, widths=[4, 4, 4])
    layers = list_learned(model)
    assert next(iter(layers)) == "conv1"
    chosen = choose_spread(layers)
    assert len(chosen) == 3
    assert list(chosen)[-1] == list(layers)[-1]
    assert choose_spread({}) == {}
    figure = draw_algebras(chosen, "title")
    drawn = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(drawn, layers["conv1"].A[0].detach())
    assert not overlaps(figure)
    for fixed in ({"algebra": "quaternion"}, {"n": 1}, {}):
        assert list_learned(phnn.create_model("resnet20", widths=[4, 4, 4], **fixed)) == {}


def test_successes():
    assert count_successes([{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 2.0}, {"a": 1.0, "b": 1.0}]) == {
        "a": 1.5,
        "b": 1.5,
    }
    figure = draw_successes([{"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}], "title")
    assert [bar.get_height() for bar in figure.axes[0].patches] == [0, 100]
    assert not overlaps(figure)


@pytest.mark.parametrize(("higher", "best"), [(True, "b"), (False, "a")])
def test_contests_are_between_all_variants(higher, best):
    def run(variant, seed, value):
        result = None if value is None else {"test_x": value}
        return SimpleNamespace(family="f", variant=variant, seed=seed, result=result)

    runs = [run("a", 0, 0.1), run("b", 0, 0.2), run("a", 1, 0.1), run("b", 1, None)]
    (contest,) = gather_contests(runs, Score("x", "X", higher=higher))
    assert max(contest, key=contest.get) == best


def summary(variant, **values):
    scores = {score.name: Spread(50, 1) for score in IMAGES.scores}
    return Summary("family", variant, IMAGES, (0,), 0, 0, scores=scores, **values)


def test_bubbles():
    summaries = [summary("real", parameters=100), summary("n=4", parameters=25)]
    figure = draw_bubbles("title", [*summaries, Summary("family", "n=2", IMAGES, (), 0, 1)])
    assert figure.axes[0].get_xlabel() == "parameters"
    assert "n=4  50.00 ± 1.00 %" in texts(figure)
    assert not any(text.startswith("n=2") for text in texts(figure))


def test_sizes():
    figure = draw_sizes(
        [
            summary("real", parameters=100, storage_mb=1.0, parameters_percent=100.0),
            summary("n=4", parameters=25, storage_mb=0.25, parameters_percent=25.0),
        ],
        "title",
    )
    assert [bar.get_width() for bar in figure.axes[0].patches] == [100, 25]
    assert "25 %" in texts(figure)
    assert not overlaps(figure)


def test_names_of_files_have_no_folders(tmp_path):
    paths = save_figure(draw_kronecker(), tmp_path, "sizes-owner/data set")
    assert [path.name for path in paths] == ["sizes-owner-data-set.png", "sizes-owner-data-set.svg"]
    assert all(path.is_file() for path in paths)
