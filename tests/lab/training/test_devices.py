"""Runs on several processes, each compared with a run of one: networks without batch norm."""

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from helpers.processes import PATIENCE, list_children, wait_for, wait_until_gone
from helpers.training import rows, run
from phnn.lab.recipe import build_recipe, differences, merge
from phnn.lab.runs import LAST
from phnn.lab.tasks.batches import Plan

WORKER = Path(__file__).parents[2] / "helpers" / "train_worker.py"
DDP = {"data": {"batch_size": 2}, "trainer": {"devices": 2, "strategy": "ddp"}}
# the order of sums differs between one process and two; the last batch is smaller than others
CLOSE = {"rtol": 1e-3, "atol": 1e-5}


@pytest.fixture
def plain(tiny):
    """A recipe without dropout; 4 = 2 × 2 images a step, and 2 = 2 × 1 in the last of five."""
    return merge(
        tiny,
        {
            "model": {"name": "resnet20", "widths": [4, 4, 4]},
            "data": {"image_size": 8, "batch_size": 4, "limit": 18},
            "trainer": {"max_epochs": 2, "logger": "none"},
        },
    )


@pytest.fixture
def alone(plain, tmp_path, monkeypatch):
    """A function that trains in this process, and returns the state at the end."""

    def train(name="alone", **overrides):
        with monkeypatch.context() as patch:
            runpy.run_path(str(WORKER))["leave_batch_norm_out"](patch.setattr)
            run(plain, tmp_path / name, **overrides)
        return state(tmp_path / name)

    return train


def state(out):
    return torch.load(out / LAST, weights_only=True)["state_dict"]


def start_together(tree, out, *words, python=(sys.executable,), environment=None):
    command = [*python, str(WORKER), json.dumps(tree), str(out), "plain", *words]
    variables = {**os.environ, "PYTHONWARNINGS": "ignore", **(environment or {})}
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=variables
    )


def finish(*processes):
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors


def find_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_accumulated_gradients_learn_as_larger_batches(alone):
    data = {"limit": 16, "augment": []}  # augmentation is drawn for a batch
    whole = alone("whole", data=data)
    parts = alone("parts", data={**data, "batch_size": 2}, trainer={"accumulate_grad_batches": 2})
    torch.testing.assert_close(parts, whole, **CLOSE)


def test_another_number_of_processes_may_continue_with_the_same_global_batch(plain):
    one = build_recipe(plain).to_dict()
    two = build_recipe(merge(plain, DDP)).to_dict()
    assert not differences(one, two, ended=False)
    other = build_recipe(merge(plain, {"data": {"batch_size": 2}})).to_dict()
    assert differences(one, other, ended=False) == ["data.batch_size: 4 → 2"]
    assert differences(
        one, merge(one, {"trainer": {"accumulate_grad_batches": 2}}), ended=False
    ) == ["trainer.accumulate_grad_batches: 1 → 2"]


@pytest.mark.parametrize("count", [8, 9, 7])
def test_processes_see_what_one_sees(count):
    """In training all shares are equal; in evaluation every sample is in exactly one."""
    parts = [Plan(4, shuffle=True, rank=rank, world_size=2).shard(count) for rank in (0, 1)]
    sizes = [part.stop - part.start for part in parts]
    assert sizes == [count // 2, count // 2]
    seen = [
        sample
        for rank in (0, 1)
        for sample in range(count)[Plan(4, rank=rank, world_size=2).shard(count)]
    ]
    assert seen == list(range(count))


def test_options_that_do_not_go_together(plain):
    with pytest.raises(ValueError, match=r"averaging=ema needs the whole network"):
        build_recipe(merge(plain, {"trainer": {"strategy": "fsdp2", "averaging": "ema"}}))
    with pytest.raises(ValueError, match=r"--trainer\.channels_last false"):
        build_recipe(merge(plain, {"trainer": {"strategy": "fsdp2", "channels_last": True}}))
    with pytest.raises(ValueError, match=r"optimizer\.balanced reads whole tensors"):
        build_recipe(
            merge(plain, {"trainer": {"strategy": "fsdp2"}, "optimizer": {"balanced": True}})
        )
    with pytest.raises(ValueError, match=r"momentum=0 leaves sgd without a state.*strategy ddp"):
        build_recipe(merge(plain, {"trainer": {"strategy": "fsdp2"}, "optimizer": {"momentum": 0}}))


@pytest.mark.slow
def test_two_parts_learn_as_one_and_are_saved_whole(plain, alone, tmp_path):
    together = tmp_path / "together"
    tree = merge(plain, DDP, {"trainer": {"strategy": "fsdp2"}})
    finish(start_together(tree, together))
    torch.testing.assert_close(state(together), alone(), **CLOSE)
    with (together / "model.safetensors").open("rb") as file:  # written by torch, by the worker
        saved = torch.load(file, weights_only=True)
    assert all(type(tensor) is torch.Tensor for tensor in saved.values())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_run_continues_on_other_numbers_of_processes(plain, alone, tmp_path, strategy):
    """Two processes, then one, then two: each trains an epoch, and all equal an unbroken run."""
    whole = alone(trainer={"max_epochs": 3})
    out = tmp_path / "out"
    together = merge(plain, DDP, {"trainer": {"strategy": strategy, "max_epochs": 3}})
    single = merge(plain, {"trainer": {"max_epochs": 3}})
    for tree in (together, single):
        finish(start_together(tree, out, "once"))
        (out / "validation.json").unlink()
    assert len(rows(out)) == 2
    finish(start_together(together, out))
    assert len(rows(out)) == 3
    torch.testing.assert_close(state(out), whole, **CLOSE)


@pytest.mark.slow
def test_two_hosts_learn_as_one(plain, alone, tmp_path):
    """Two hosts of torchrun, each with one process, that meet on the loopback device."""
    tree = merge(plain, DDP, {"trainer": {"devices": 1, "num_nodes": 2}})
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node"]
    torchrun += ["1", "--master-addr", "127.0.0.1", "--master-port", str(find_port())]
    hosts = []
    for rank in (0, 1):
        own = ["--node-rank", str(rank), "--local-addr", f"127.0.0.{rank + 1}"]
        loopback = {"GLOO_SOCKET_IFNAME": "lo"}
        out = tmp_path / "together"
        hosts.append(start_together(tree, out, python=[*torchrun, *own], environment=loopback))
    finish(*hosts)
    torch.testing.assert_close(state(tmp_path / "together"), alone(), **CLOSE)


@pytest.mark.slow
def test_bfloat16_on_two_processes_learns_as_on_one(plain, alone, tmp_path):
    mixed = {"trainer": {"precision": "bf16-mixed"}}
    finish(start_together(merge(plain, DDP, mixed), tmp_path / "together"))
    # eight bits of precision, summed in another order over ten steps
    torch.testing.assert_close(state(tmp_path / "together"), alone(**mixed), rtol=0.1, atol=0.02)


@pytest.mark.slow
def test_a_compiled_network_learns_alike(alone):
    # not 4: inductor chooses channels last, and torch 2.13 then writes beyond the memory of the
    # gradient of a 1×1 convolution with stride 2 and fewer than 8 input channels
    wide = {"model": {"widths": [8, 8, 8]}}
    compiled = alone("compiled", **wide, trainer={"compile": True})
    torch.testing.assert_close(compiled, alone(**wide), **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_takes_the_others_down(plain, alone, tmp_path, victim):
    out = tmp_path / "out"
    tree = merge(plain, DDP, {"trainer": {"max_epochs": 100_000}})
    process = start_together(tree, out)
    wait_for(lambda: (out / LAST).exists(), process)
    (child,) = [each for each in list_children(process) if str(WORKER) in each.cmdline()]
    began = time.monotonic()
    (child if victim else process).send_signal(signal.SIGKILL)
    if victim:
        _, errors = process.communicate(timeout=60)
        assert process.returncode != 0
        assert re.search(r"Connection (closed|reset) by peer|terminated with code", errors), errors
    else:
        process.communicate(timeout=60)
    wait_until_gone([child], 60 - (time.monotonic() - began))
    epochs = len(rows(out))
    again = start_together(tree, out)
    wait_for(lambda: len(rows(out)) > epochs, again)
    again.send_signal(signal.SIGKILL)
    again.communicate()
