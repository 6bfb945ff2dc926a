"""PH networks under DistributedDataParallel: two processes, and one that has the whole batch."""

import subprocess
import sys
from pathlib import Path

import torch

from helpers import ddp_worker
from helpers.processes import PATIENCE

WORKER = Path(ddp_worker.__file__)


def learn_alone():
    """Train the networks that one process can train alike: those without batch statistics."""
    torch.manual_seed(0)
    models = ddp_worker.build()
    ddp_worker.train(
        models[: ddp_worker.SEQUENCES],
        lambda step: [torch.cat([ddp_worker.draw(step, rank)[0] for rank in (0, 1)])],
    )
    return models.state_dict()


def test_two_processes_learn_as_one(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(tmp_path / "store"), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first.keys() == second.keys()
    for key in first:
        assert torch.equal(first[key], second[key]), key
    alone = learn_alone()
    # means of two halves round in another order than the mean of all; bfloat16 has eight bits
    tolerances = {0: {"rtol": 1e-5, "atol": 1e-6}, ddp_worker.MIXED: {"rtol": 0.02, "atol": 2e-3}}
    for number, close in tolerances.items():
        for key in (key for key in first if key.startswith(f"{number}.")):
            torch.testing.assert_close(first[key], alone[key], **close)
