"""What accelerate needs beyond what it returns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = Path(__file__).parents[1] / "helpers" / "accelerate_memory.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is Linux's")
def test_a_large_model_needs_little_more_than_it_returns():
    done = subprocess.run([sys.executable, str(MEASURE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert sizes["extra"] <= 2.5 * sizes["dense"], sizes
