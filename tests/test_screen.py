"""Progress on stderr: live lines on a terminal, plain lines elsewhere."""

import io
import time

import pytest

from phnn import _screen
from phnn._screen import ProgressBar, Screen
from phnn._tables import COLUMNS, fit_lines, keep_columns


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(_screen.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines(clock):
    stream = io.StringIO()
    with ProgressBar(stream) as bar:
        for second in range(15):
            clock[0] = second
            bar("fitting layers", second, 15)
        bar("searching budgets", 1, 8)
        bar("fitting layers", 1, 15)  # too soon after the last line
    assert stream.getvalue() == (
        "fitting layers: 2 of 15, 13 s left\n"
        "fitting layers: 12 of 15, 3 s left\n"
        "searching budgets: 1 of 8\n"
    )


def test_a_bar_on_a_terminal(clock):
    stream = Terminal()
    with ProgressBar(stream) as bar:
        bar("fitting layers", 1, 4)
        assert not stream.getvalue()  # too quick to be worth a word
        clock[0] = 3.0
        bar("fitting layers", 2, 4)
    assert stream.getvalue() == f"{'█' * 10}{'·' * 10} fitting layers: 2 of 4, 6 s left\r\x1b[J"


def test_the_time_goes_on_while_a_step_takes_long(monkeypatch):
    monkeypatch.setattr(_screen, "BEAT", 0.02)
    monkeypatch.setattr(_screen, "QUIET", 0.0)
    stream = Terminal()
    with ProgressBar(stream) as bar:
        bar("fitting layers", 0, 4)
        end = time.monotonic() + 10
        while stream.getvalue().count("0 of 4, 0 s so far") < 3 and time.monotonic() < end:
            time.sleep(0.01)
        bar.phase("writing the file")
        while stream.getvalue().count("writing the file … 0 s") < 3 and time.monotonic() < end:
            time.sleep(0.01)
        bar.show("written", now=True)
        assert not stream.getvalue().endswith("… 0 s")
    assert stream.getvalue().count("fitting layers: 0 of 4, 0 s so far") >= 3
    assert stream.getvalue().count("writing the file … 0 s") >= 3
    assert stream.getvalue().endswith("\r\x1b[J")


def test_several_live_lines_below_lines_that_stay(clock, monkeypatch):
    monkeypatch.setattr(_screen.shutil, "get_terminal_size", lambda: (10, 24))
    stream = Terminal()
    screen = Screen(stream, quiet=0.0)
    screen.show("first", "a line that is too long")
    assert stream.getvalue() == "first\na line th"
    clock[0] = 1.0
    screen.say("done")
    assert stream.getvalue().endswith("\r\x1b[1A\x1b[Jdone\n")
    screen.close()  # nothing is live
    assert stream.getvalue().endswith("done\n")


def test_plain_lines_are_not_repeated(clock):
    stream = io.StringIO()
    screen = Screen(stream, quiet=0.0)
    for second in (0, 20, 40):
        clock[0] = second
        screen.show("waiting" if second else "starting")
    assert stream.getvalue() == "starting\nwaiting\n"


def test_tables_keep_the_columns_that_fit():
    rows = [["network", "score", "empty", "wide", "small"], ["real", "1", "", "x" * 80, "2"]]
    assert keep_columns(rows, first=2) == [["network", "score", "small"], ["real", "1", "2"]]


def test_long_lines_go_on_below():
    text = fit_lines("layer  " + "word " * 40)
    assert all(len(line) <= COLUMNS for line in text.splitlines())
    assert text.split() == ["layer", *["word"] * 40]
