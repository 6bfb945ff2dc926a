"""One of several processes that share a PH network by fully_shard; run by test_sharding.py.

Usage: sharded_worker.py RANK WORLD STORE OUT FIRST LAST, where FIRST and LAST are steps. A
checkpoint of step FIRST is resumed, and one of step LAST is written, both sharded.
"""

import os
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

import phnn
from phnn.lab.tasks.sharding import is_sharded, shard

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
GLOBAL_BATCH = 4


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Sequential(phnn.PHConv2d(4, 8, 3, n=4), nn.ReLU())),
        phnn.PHConv2d(8, 8, 3, algebra="quaternion"),
        nn.Flatten(),
        phnn.PHLinear(8 * 4, 6, n=2, terms=3),  # three terms on two devices
        phnn.PHLinear(6, 3, n=3, rank=4),
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, part: slice) -> None:
    for step in steps:
        x = torch.randn(GLOBAL_BATCH, 4, 6, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x[part]).square().mean().backward()
        optimizer.step()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    groups = phnn.param_groups(model, lr=0.05, algebra_lr=0.02)
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def check_refusals(model: nn.Module, out: Path) -> None:
    for use in (lambda: phnn.save(model, out / "x.safetensors"), lambda: phnn.to_dense(model)):
        with pytest.raises(ValueError, match="get_model_state_dict"):
            use()


def save_as_the_page_says(model: nn.Module) -> None:
    """Gather and save a model with the code of the page, as written; all processes have to."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(code, PAGE.name, "exec"), {"model": model, "make_model": build})


def main(rank: int, world: int, store: str, out: Path, first: int, last: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model = build()
    shard(model, init_device_mesh("cpu", (world,)))
    assert is_sharded(model)
    optimizer = make_optimizer(model)
    if first:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=str(out / f"step{first}"))
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
    each = GLOBAL_BATCH // world
    train(model, optimizer, range(first, last), slice(rank * each, (rank + 1) * each))
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save(
        {"model": model_state, "optimizer": optimizer_state},
        checkpoint_id=str(out / f"step{last}"),
    )
    check_refusals(model, out)
    os.chdir(out)
    save_as_the_page_says(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    rank, world, store, out, first, last = sys.argv[1:]
    main(int(rank), int(world), store, Path(out), int(first), int(last))
