"""The checker of the numbers on our pages."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "claims.py"


@pytest.fixture
def claims(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("claims", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.csv").write_text(
        'network,form,ms,accuracy,made by\nvgg,"real, tuned",10.0,82.04,x\nvgg,ours,4.81,0.805,x\n'
    )
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")

    def check(text):
        page = tmp_path / "README.md"
        page.write_text(text)
        monkeypatch.setattr(module, "STRICT", [page])
        return list(module.check_page(page))

    check.module = module
    return check


def mark(condition):
    return f"<!-- claim a.csv: {condition} -->"


@pytest.mark.parametrize(
    "text",
    [
        f"It has 82.0{mark('[form=real, tuned].accuracy')} here.",
        f"Ours takes 0.48{mark('[form=ours].ms / [form=real, tuned].ms')} of it.",
        f"It has 80.5 %{mark('[form=ours].accuracy * 100')}.",
        "<!-- claims a.csv -->\n\n| network | x |\n|---|---|\n| vgg | 82.0 |\n| vgg | 0.805 |\n",
        "<!-- claims a.csv by network -->\n\n| ms |\n|---|\n| 10.0, 4.81 |\n",
        "<!-- no claims: of the paper -->\n\nIt has 99.9 %.",
        "Python 3.11 and `0.5` and n = 4, torch 2.13.0, [x](a-1.5.md) and batch 16.",
        "```\n0.5 %\n```\n",
        "<!-- record: python x.py -->\n\nIt has 99.9 %.",
    ],
)
def test_what_holds(claims, text):
    assert claims(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"It has 82.1{mark('[form=real, tuned].accuracy')}.", "has 82.040 for"),
        (f"It has 82.0{mark('[form=real].accuracy')}.", "0 records of a.csv have form=real"),
        (f"It has 82.0{mark('[network=vgg].accuracy')}.", "2 records of a.csv"),
        (f"It has 82.0{mark('[form=ours].speed')}.", "a.csv has no column speed; it has network"),
        (f"It has 82.0{mark('accuracy')}.", "is not of the form"),
        (
            "<!-- claims a.csv -->\n\n| ms |\n|---|\n| 10.0, 4.81 |\n",
            "no record of a.csv has all of",
        ),
        ("<!-- claims a.csv -->\n\nIt has 33.3 %.", "a.csv has no 33.3"),
        ("It has 82.0 %.\n\nAnd 3 times more.", "README.md:1: 82.0: like results"),
        ("One\n\nAnd 3 times more.", "README.md:3: 3: like results, and without a mark"),
    ],
)
def test_what_does_not(claims, text, message):
    assert any(message in problem for problem in claims(text)), claims(text)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("4.0,8.0,0.500", None),
        ("4.0,8.0,0.510", "b.csv:2: ours / real is 0.510, but its times differ"),
        ("4.0,,0.500", "b.csv:2: ours / real lacks the times it comes from"),
    ],
)
def test_ratios_have_their_times(claims, row, message):
    folder = claims.module.RESULTS
    (folder / "b.csv").write_text(f"ours ms,real ours ms,ours / real,made by\n{row},x\n")
    assert list(claims.module.check_ratios()) == ([] if message is None else [message])
