"""One of two processes that train a small PH network together; run by test_distributed.py."""

import sys

import torch
import torch.distributed as dist
from torch import nn

import phnn
from phnn import algebra


def main(rank: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)  # replicas start differently: DDP must broadcast the state
    model = nn.Sequential(
        phnn.PHConv2d(4, 8, 3, n=4),
        nn.ReLU(),
        phnn.PHConv2d(8, 8, 3, algebra=algebra.quaternion),
        nn.Flatten(),
        phnn.PHLinear(8 * 4, 4, n=2, terms=3),
    )
    replica = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(phnn.param_groups(model, algebra_lr=0.05), lr=0.1, momentum=0.9)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(5, 4, 6, 6, generator=generator)
        optimizer.zero_grad()
        replica(x).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), f"{out}/{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
