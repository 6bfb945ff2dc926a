import subprocess
import sys
from pathlib import Path

import torch

WORKER = Path(__file__).parents[1] / "helpers" / "ddp_worker.py"


def test_two_processes_keep_their_replicas_identical(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(tmp_path / "store"), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first.keys() == second.keys()
    for key in first:
        assert torch.equal(first[key], second[key]), key
