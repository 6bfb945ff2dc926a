"""What a model keeps at several sizes."""

import pytest
import torch
from torch import nn

from phnn.conversion import Point, convert, tradeoff


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).eval()


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(64, 16)


def test_points_are_those_of_convert(net, x, tmp_path):
    points = list(
        tradeoff(
            net,
            [0.3, 0.6, 0.001],  # the last cannot be met
            calibration=iter(x.split(16)),
            evaluate=lambda model: -(model(x) - net(x)).square().mean(),
            cache=tmp_path,
        )
    )
    assert [point.budget for point in points] == [1.0, 0.6, 0.3]
    assert points[0].parameters == 1072
    assert points[0].multiplications == 1024
    assert (points[0].distance, points[0].score) == (0, 0)
    assert 0 > points[1].score > points[2].score
    assert points[1].distance < points[2].distance
    assert not any(point.chosen for point in points)
    report = convert(net, budget=0.3, calibration=list(x.split(16))).phnn_report
    assert points[2].parameters == report.parameters_after
    assert points[2].multiplications == report.multiplications_after
    assert points[2].distance == pytest.approx(report.distance)
    assert list(tmp_path.iterdir())


def test_points_come_one_by_one(net, x):
    points = tradeoff(net, [0.5, 0.25], calibration=x)
    assert next(points).budget == 1
    assert next(points).budget == 0.5
    assert next(points).score is None


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ([], "at least one budget"),
        ([0.5, 1.5], r"budgets are shares of the parameters in \(0, 1\), got 1.5"),
    ],
)
def test_mistakes_show_at_once(net, x, budgets, message):
    with pytest.raises(ValueError, match=message):
        tradeoff(net, budgets, calibration=x)


def test_no_budget_can_be_met(net, x):
    with pytest.raises(ValueError, match="cannot be met"):
        list(tradeoff(net, [0.01], calibration=x))


def test_a_picture():
    pytest.importorskip("matplotlib")
    from phnn.lab import draw_tradeoff

    points = [
        Point(1.0, 1000, 5e6, 0.0, 0.9),
        Point(0.5, 500, 3e6, 0.1, 0.85, chosen=True),
        Point(0.25, 240, 2e6, 0.4, 0.6),
    ]
    figure = draw_tradeoff(points, score="accuracy")
    left, right = figure.axes
    assert (left.get_xlabel(), left.get_ylabel()) == ("parameters", "accuracy")
    assert list(left.lines[0].get_xdata()) == [240, 500, 1000]
    assert list(left.lines[0].get_ydata()) == [0.6, 0.85, 0.9]
    assert list(right.lines[0].get_xdata()) == [2e6, 3e6, 5e6]
    texts = {text.get_text() for text in right.texts}
    assert texts == {"original", "0.5 chosen"}
    (panel,) = draw_tradeoff([Point(1.0, 10, None, 0.0), Point(0.5, 5, None, 0.2)]).axes
    assert panel.get_ylabel() == "distance of the outputs"
    with pytest.raises(ValueError, match="neither scores nor distances"):
        draw_tradeoff([Point(1.0, 10)])
