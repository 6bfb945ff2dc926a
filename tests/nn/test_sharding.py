"""PH networks shared out by fully_shard (FSDP2), against one process that has all of it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import phnn
from helpers import sharded_worker
from helpers.processes import PATIENCE

WORKER = Path(sharded_worker.__file__)


def run_together(world, out, first, last):
    store = out / f"store{first}"
    processes = []
    for rank in range(world):
        argv = map(str, [WORKER, rank, world, store, out, first, last])
        command = [sys.executable, "-W", "ignore", *argv]
        processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert not any(process.returncode for process in processes), errors


def learn_alone(steps):
    model = sharded_worker.build()
    optimizer = sharded_worker.make_optimizer(model)
    sharded_worker.train(model, optimizer, range(steps), slice(None))
    return model.state_dict()


def assert_same(out, steps):
    whole = phnn.load(out / "model.safetensors", model=sharded_worker.build).state_dict()
    expected = learn_alone(steps)
    assert whole.keys() == expected.keys()
    # sums over two halves of a batch round in another order than the sum over all of it
    torch.testing.assert_close(dict(whole), dict(expected), rtol=1e-5, atol=1e-6)


def test_two_processes_with_a_part_each_learn_as_one(tmp_path):
    run_together(2, tmp_path, 0, 3)
    assert_same(tmp_path, 3)


@pytest.mark.slow
def test_sharded_checkpoints_resume_on_other_numbers_of_processes(tmp_path):
    run_together(2, tmp_path, 0, 2)
    run_together(1, tmp_path, 2, 4)
    run_together(2, tmp_path, 4, 6)
    assert_same(tmp_path, 6)
