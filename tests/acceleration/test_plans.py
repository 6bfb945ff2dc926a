"""Plans: forms that are repeated without timing."""

import json
import os
import sys

import pytest
import torch
from torch import nn

import phnn
from helpers.accelerating import FOLDED, X, close, entry_of, network
from phnn import PHConv2d, PHLinear
from phnn.acceleration import accelerating
from phnn.decompose import bilinear
from phnn.runtimes import Eager


@torch.no_grad()
def test_a_plan_repeats_the_choices_without_timing(tmp_path, monkeypatch):
    model = network()
    first = phnn.accelerate(model, X, rounds=1)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(first.phnn_report.plan))
    monkeypatch.setattr(Eager, "time", None)  # must not be asked
    for plan in (first.phnn_report.plan, path, str(path)):
        again = phnn.accelerate(model, X, plan=plan)
        assert again.phnn_report.plan == first.phnn_report.plan
        assert again.phnn_report.seconds == {}
        assert torch.equal(again(X), first(X))
        assert again.state_dict().keys() == first.state_dict().keys()


def test_a_plan_of_products_gives_the_same_numbers_each_time():
    model = nn.Sequential(PHLinear(8, 8, n=2), PHLinear(8, 8, n=2)).eval()
    x = torch.randn(1, 8)
    plan = {str(i): entry_of("cp_rows", bilinear(layer.A).rank) for i, layer in enumerate(model)}
    states = [phnn.accelerate(model, x, plan=plan).state_dict() for _ in range(2)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"9": FOLDED}, "names layers the model does not have: '9'"),
        ({"2": None}, "the plan of '2': None is not a form"),
        ({"2": {"form": "fast"}}, "the plan of '2': .* is not a form"),
        ({"2": {"form": "cp_grouped", "rank": "3"}}, "the options of cp_grouped are .*rank"),
        ({"8": {"form": "folded", "channels_last": True}}, "channels last for '8'"),
        ({"8": {"form": "folded", "channels_last": 1}}, "the plan of '8': .* is not a form"),
        (
            {"2": entry_of("cp_rows")},
            "'cp_rows' for '2'; here PHConv2d has folded, filter_first, mix_first, cp_grouped, ",
        ),
        ({"2": entry_of("cp_grouped", 1)}, "uses 'cp_grouped' for '2', which fails"),
        ({"2": {"form": "filter_first", "rank": 3}}, "uses 'filter_first' for '2'"),
        ({"2": {"form": "winograd", "tile_size": 3}}, "uses 'winograd_3' for '2'"),
    ],
)
def test_plans_that_do_not_fit(change, message):
    plan = {"2": FOLDED, "5": FOLDED, "8": FOLDED, **change}
    with pytest.raises(ValueError, match=message):
        phnn.accelerate(network(), X, plan=plan)


def test_plans_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="does not name all layers of the model: '5', '8'"):
        phnn.accelerate(network(), X, plan={"2": FOLDED})
    with pytest.raises(TypeError, match="must map layers to forms, got list"):
        phnn.accelerate(network(), X, plan=[FOLDED])
    path = tmp_path / "plan.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"plan\.json' is not JSON"):
        phnn.accelerate(network(), X, plan=path)
    with pytest.raises(FileNotFoundError):
        phnn.accelerate(network(), X, plan=tmp_path / "none.json")


@torch.no_grad()
def test_a_plan_may_have_more_products_than_are_of_use():
    model = nn.Sequential(PHConv2d(8, 8, 3, n=2, rank=4)).eval()
    x = torch.randn(1, 8, 5, 5)
    plan = {"0": entry_of("cp_grouped_padded", 4)}
    assert close(phnn.accelerate(model, x, plan=plan)(x), model(x))
    assert "no fewer than n² = 4" in phnn.accelerate(model, x, rounds=1).phnn_report.entries[0].note


def test_a_plan_says_where_it_was_made():
    model, x = nn.Sequential(PHLinear(8, 8, n=2)).eval(), torch.randn(1, 8)
    plan = phnn.accelerate(model, x, rounds=1).phnn_report.plan
    assert list(plan) == ["runtime", "version", "machine", "layers"]
    assert (plan["runtime"], plan["version"]) == ("torch", torch.__version__)
    assert f"{torch.get_num_threads()} threads" in plan["machine"]
    older = phnn.accelerate(model, x, plan={**plan, "version": "2.6.0"}).phnn_report
    assert "the plan was made with torch 2.6.0 on " in older.note
    with pytest.raises(ValueError, match=r"made for the runtime 'openvino'.*slow in 'torch'"):
        phnn.accelerate(model, x, plan={**plan, "runtime": "openvino"})
    with pytest.raises(TypeError, match="must have a mapping of layers, got NoneType"):
        phnn.accelerate(model, x, plan={**plan, "layers": None})


@pytest.mark.parametrize(
    ("text", "message"),
    [("[" * 100_000, "is not JSON"), ("\ufeff{", "is not JSON"), ("3", "must map layers")],
)
def test_files_that_are_no_plan(tmp_path, text, message):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises((ValueError, TypeError), match=rf"plan\.json' {message}"):
        phnn.accelerate(phnn.PHLinear(8, 8, n=4).eval(), torch.randn(1, 8), plan=path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fifos")
def test_a_plan_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "plan.json")
    layer = phnn.PHLinear(8, 8, n=4).eval()
    with pytest.raises(FileNotFoundError, match=r"plan\.json' is not a file"):
        phnn.accelerate(layer, torch.randn(1, 8), plan=tmp_path / "plan.json")


def test_a_plan_with_a_rank_beyond_reason():
    layer = phnn.PHLinear(8, 8, n=4).eval()
    plan = {"": {"form": "cp_rows", "rank": 10**5}}
    with pytest.raises(ValueError, match=r"rank 100000 is more than the 64 numbers of the algebra"):
        phnn.accelerate(layer, torch.randn(1, 8), plan=plan)


def test_a_plan_has_a_limit_of_time(monkeypatch):
    seen = []

    def note(layers, ranks, seconds):
        seen.append(seconds)
        return original(layers, ranks, 0.0)

    original = accelerating.decompose_algebras
    monkeypatch.setattr(accelerating, "decompose_algebras", note)
    layer = phnn.PHLinear(64, 64, n=8).eval()
    with pytest.raises(ValueError, match=r"the plan uses .* which fails"):
        phnn.accelerate(layer, torch.randn(1, 64), plan={"": {"form": "cp_rows", "rank": 12}})
    assert seen == [accelerating.PLAN_SECONDS]
