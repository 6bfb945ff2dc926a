"""Ctrl-C, and readers who leave: one line, the right exit code, and whole files."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest

from phnn import cli
from phnn.cli.streams import PatientStream, announce, is_unread, patient_streams

CLOSED_PIPE = 141
windows = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")


@windows
@pytest.mark.parametrize("command", [*cli.LIBRARY, *cli.LAB])
def test_every_command_ends_with_143_after_sigterm(command, monkeypatch, capsys):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # or it could end all tests
    try:
        monkeypatch.setattr(cli, "_run", lambda *given: signal.raise_signal(signal.SIGTERM))
        assert cli.main([command]) == 143
        assert "phnn: stopped by SIGTERM; " in capsys.readouterr().err
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", ["convert", "report", "toy", "bench", "tables"])
def test_ctrl_c_is_one_line_and_130(command, monkeypatch, capsys):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupt)
    assert cli.main([command]) == 130
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("\nphnn: stopped by Ctrl-C; ")
    assert "the same command" in err


@pytest.mark.parametrize(
    ("signum", "name"),
    [
        (signal.SIGINT, "Ctrl-C"),
        pytest.param(signal.SIGTERM, "SIGTERM", marks=windows),
    ],
)
@pytest.mark.slow
def test_signals_in_a_process(tmp_path, signum, name):
    argv = [sys.executable, "-m", "phnn", "toy", "--steps", "100000", "--out", str(tmp_path / "o")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()  # it learns
    time.sleep(0.5)
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signum
    assert f"phnn: stopped by {name}; give the same command again" in err
    assert "Traceback" not in err


@pytest.fixture
def broken():
    """A stream whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as stream:
        yield stream


def test_a_closed_pipe_ends_no_work(broken, monkeypatch):
    done = []

    def work(command, argv):
        for _ in range(3):
            print("a line", flush=True)
        assert is_unread()
        done.append(True)
        return 0

    monkeypatch.setattr(sys, "stdout", broken)
    monkeypatch.setattr(cli, "_run", work)
    assert cli.main(["tables"]) == CLOSED_PIPE
    assert done == [True]
    assert sys.stdout is broken


def test_streams_are_themselves_otherwise(capsys):
    with patient_streams() as out:
        print("text")
        print("error", file=sys.stderr)
        assert isinstance(out, PatientStream)
        assert not is_unread()
        assert out.isatty() is False
    assert capsys.readouterr() == ("text\n", "error\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_notice_goes_away_when_something_is_written(monkeypatch):
    terminal, out = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", out)
    with patient_streams():
        announce("starting …")
        assert terminal.getvalue() == "starting …"
        print("result")
        print("more")
    assert terminal.getvalue() == "starting …\r\x1b[K"
    assert out.getvalue() == "result\nmore\n"


def test_a_notice_counts_while_nothing_else_is_written(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("phnn.cli.streams.BEAT", 0.01)
    monkeypatch.setattr(sys, "stderr", terminal)
    with patient_streams():
        announce("starting …")
        deadline = time.monotonic() + 5
        while "starting … 0 s" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        print("result", file=sys.stderr)
        written = terminal.getvalue()
        time.sleep(0.05)
    assert "\rstarting … 0 s" in written
    assert written.endswith("\r\x1b[Kresult\n")
    assert terminal.getvalue() == written  # it counts no more


def test_head_in_a_shell(tmp_path):
    command = f"{sys.executable} -m phnn tables --only tab:sed_4c | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.count("\n") == 1
    assert not [line for line in done.stderr.splitlines() if "counting networks" not in line]
