import csv

import pytest

from phnn.lab.tables import render

HEAD, ROWS = ["name", "count"], [["a | b", 1], ["c, d", None]]


def test_text_is_aligned():
    assert (
        render(HEAD, [["long name", 1], ["x", 23]])
        == "name       count\nlong name  1\nx          23"
    )


def test_markdown():
    assert render(HEAD, ROWS, "markdown").splitlines() == [
        "| name | count |", "| --- | --- |", r"| a \| b | 1 |", "| c, d |  |",
    ]  # fmt: skip


def test_csv():
    assert list(csv.reader(render(HEAD, ROWS, "csv").splitlines())) == [
        ["name", "count"], ["a | b", "1"], ["c, d", ""],
    ]  # fmt: skip


@pytest.mark.parametrize("format", ["text", "markdown", "csv"])
def test_without_rows(format):
    assert render(HEAD, [], format).count("\n") == (format == "markdown")


def test_unknown_format():
    with pytest.raises(ValueError, match="unknown format 'html'; known are text, markdown, csv"):
        render(HEAD, ROWS, "html")
