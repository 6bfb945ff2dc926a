"""What accelerate needs beyond what it returns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from phnn.acceleration.candidates import LARGE

MEASURE = Path(__file__).parents[1] / "helpers" / "accelerate_memory.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is Linux's")
@pytest.mark.parametrize("layers", [14, 44])  # 132 MB, and 104 million parameters
def test_memory_is_bounded_by_what_is_returned(layers):
    done = subprocess.run(
        [sys.executable, str(MEASURE), str(layers)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert sizes["extra"] <= (2.5 * sizes["dense"] if sizes["dense"] > LARGE else 1e9), sizes
