"""A signal in the middle of an import waits until the import has ended."""

import subprocess
import sys

SWALLOWS = """
import signal, time

done = False
try:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)  # an impatient user
    time.sleep(0.3)
    done = True
except BaseException:
    pass
"""
MAIN = """
import signal, sys, time
from phnn._signals import after_imports

signal.signal(signal.SIGINT, after_imports(signal.default_int_handler))
try:
    import swallows
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted, imported", sys.modules["swallows"].done)
try:
    time.sleep(0.3)
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted at once")
"""


def test_a_signal_waits_for_the_end_of_an_import(tmp_path):
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    (tmp_path / "main.py").write_text(MAIN)
    command = [sys.executable, tmp_path / "main.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["interrupted, imported True", "interrupted at once"]
    assert not done.stderr
