import xml.etree.ElementTree as ET
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image
from torch import nn

import phnn
from phnn import algebra, cli
from phnn.lab.reports.algebras import choose_spread, draw_algebras, list_learned
from phnn.lab.reports.confusion import count_confusions, draw_confusions, score_classes
from phnn.lab.reports.curves import draw_curves, list_quantities, read_curve
from phnn.lab.reports.drawing import COLOURS, assign_colours, render_figure, save_figure, tint
from phnn.lab.reports.gradcam import draw_looks, find_layer, look
from phnn.lab.reports.kronecker import draw_kronecker
from phnn.lab.reports.lines import Line, Spread
from phnn.lab.reports.multiplication import draw_nested_tables, draw_tables
from phnn.lab.reports.radar import draw_radar, rate
from phnn.lab.reports.rolls import draw_roll
from phnn.lab.reports.sections.scores import gather_contests
from phnn.lab.reports.sizes import draw_sizes
from phnn.lab.reports.spectrograms import draw_spectrograms
from phnn.lab.reports.successes import count_successes, draw_successes
from phnn.lab.tasks.images import IMAGES
from phnn.lab.tasks.sound import SOUND


def texts(figure):
    """Returns the texts of a figure as its SVG has them."""
    root = ET.fromstring(render_figure(figure, "svg", "test"))
    found = root.iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()).strip() for text in found]


def overlaps(figure):
    """Returns pairs of texts of a figure that lie upon each other."""
    FigureCanvasAgg(figure).draw()
    shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    boxes = [(t.get_text(), t.get_window_extent()) for t in shown]
    return [
        (a, b)
        for i, (a, box) in enumerate(boxes)
        for b, other in boxes[i + 1 :]
        if box.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9))
    ]


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
        place = int(value.abs().argmax())
        sign = "−" if value[place] < 0 else ""
        assert cells[row, column] == sign + algebra.octonion.labels[place]
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
    assert assign_colours(["a", "b", "a"]) == {"a": COLOURS[0], "b": COLOURS[1]}
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
    assert drawn.get_color() == COLOURS[1]  # real's is kept for it
    assert "accuracy (%)" in texts(figure)
    assert "real" not in texts(figure)


def test_confusions():
    labels, predictions = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 0, 0, 2])
    matrix = count_confusions(labels, predictions, 4)
    assert matrix.tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [2, 0, 1, 0], [0, 0, 0, 0]]
    first, second, third, empty = score_classes(matrix, ["a", "b", "c", "d"])
    assert (first.recall, first.mistaken) == (50, "b")
    assert first.precision == pytest.approx(100 / 3)
    assert (second.recall, second.precision, second.mistaken) == (100, 50, None)
    assert third.mistaken == "a"
    assert (empty.images, empty.recall, empty.precision) == (0, None, None)
    figure = draw_confusions(matrix, ["a", "b", "c", "d"], "title")
    assert "67" in texts(figure)
    assert not overlaps(figure)
    many = draw_confusions(np.eye(100, dtype=int), [f"class {i}" for i in range(100)], "many")
    assert "class 7" not in texts(many)


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


def test_gradcam_needs_places():
    with pytest.raises(ValueError, match="no feature map of 4×4 pixels"):
        find_layer(nn.Flatten(), torch.zeros(1, 3, 8, 8))


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


@pytest.mark.parametrize(("task", "best"), [(IMAGES, "b"), (SOUND, "b")])
def test_contests_are_between_all_variants(task, best):
    key = f"test_{task.primary.name}"

    def run(variant, seed, value):
        result = None if value is None else {key: value}
        return SimpleNamespace(family="f", variant=variant, seed=seed, result=result)

    results = SimpleNamespace(
        task=task,
        lines=[SimpleNamespace(family="f", variant=name) for name in "ab"],
        runs=[run("a", 0, 0.1), run("b", 0, 0.2), run("a", 1, 0.1), run("b", 1, None)],
    )
    (contest,) = gather_contests(results)
    assert max(contest, key=contest.get) == best


def line(variant, task=SOUND, **values):
    scores = {score.name: Spread(0.5, None) for score in task.scores}
    return Line("family", variant, task, (0,), 0, 0, scores=scores, **values)


def test_radar_is_larger_where_things_are_better():
    lines = [
        line("real", parameters=100, train_seconds_per_100=1.0),
        line("n=2", parameters=50, train_seconds_per_100=2.0),
    ]
    lines[1].scores["er"] = Spread(0.2, None)
    axes = rate(lines)
    assert axes["fewness of\nparameters"] == [0.5, 1]
    assert axes["speed of\ntraining"] == [1, 0.5]
    assert axes["1 − ER"] == [0.5, 0.8]
    assert axes["F-score"] == [0.5, 0.5]
    assert "speed of\ntesting" not in axes  # was not measured
    figure = draw_radar([*lines, Line("family", "n=4", SOUND, (), 0, 1)], "title")
    assert not overlaps(figure)


def test_sizes():
    figure = draw_sizes(
        [
            line("real", IMAGES, parameters=100, storage_mb=1.0, parameters_percent=100.0),
            line("n=4", IMAGES, parameters=25, storage_mb=0.25, parameters_percent=25.0),
        ],
        "title",
    )
    assert [bar.get_width() for bar in figure.axes[0].patches] == [100, 25]
    assert "25 %" in texts(figure)
    assert not overlaps(figure)


def test_spectrograms():
    magnitudes = torch.ones(4, 8, 10)
    magnitudes[:, :, 5:] = 0  # silence
    phases = magnitudes - 0.5
    figure = draw_spectrograms(magnitudes, list("WXYZ"), phases=phases, seconds=2, hertz=8000)
    first = figure.axes[0].images[0]
    assert first.get_array()[0, 0] == 0
    assert first.get_array()[0, 9] == first.get_clim()[0]
    assert first.get_extent() == [0, 2, 0, 8]
    words = texts(figure)
    assert words.count("W") == 2
    assert "phase (π)" in words
    assert not overlaps(figure)
    with pytest.raises(ValueError, match=r"for 2 names the values have shape \(2,"):
        draw_spectrograms(magnitudes, list("WX"), seconds=2, hertz=8000)


def test_roll():
    truth = torch.tensor([[1, 0], [1, 0], [0, 0]], dtype=torch.bool)
    found = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
    figure = draw_roll(truth, found, ["dog", "car"], seconds=0.1, title="title")
    assert figure.axes[0].images[0].get_array().tolist() == [[1, 2, 0], [0, 3, 0]]
    assert not overlaps(figure)
    with pytest.raises(ValueError, match="for 3 classes"):
        draw_roll(truth, found, ["a", "b", "c"], seconds=0.1, title="title")


def test_names_of_files_have_no_folders(tmp_path):
    paths = save_figure(draw_kronecker(), tmp_path, "sizes-owner/data set")
    assert [path.name for path in paths] == ["sizes-owner-data-set.png", "sizes-owner-data-set.svg"]
    assert all(path.is_file() for path in paths)
