"""One of two processes that train a small PH network together; run by test_distributed.py."""

import sys

import torch
import torch.distributed as dist
from torch import nn

import phnn
from phnn import algebra


class Sequences(nn.Module):
    """One of each layer for sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.table = phnn.PHEmbedding(20, 8, n=4)
        self.gru = phnn.PHGRU(8, 8, batch_first=True, n=4)
        self.attention = phnn.PHTransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, n=2)
        # running statistics differ between processes, as those of torch's norms do
        self.norm = phnn.WhiteningBatchNorm(8, track_running_stats=False, n=4)
        self.residual = phnn.ZeroResidual(phnn.PHLinear(8, 8, algebra=algebra.quaternion))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames, _ = self.gru(self.table(x))
        y: torch.Tensor = self.residual(self.norm(self.attention(frames).mT).mT)
        return y


def draw(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An input for each of the two networks."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    return (
        torch.randn(5, 4, 6, 6, generator=generator),
        torch.randint(20, (5, 7), generator=generator),
    )


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
    models = nn.ModuleList([model, Sequences()])
    for number, part in enumerate(models):
        replica = nn.parallel.DistributedDataParallel(part)
        optimizer = torch.optim.SGD(phnn.param_groups(part, algebra_lr=0.05), lr=0.1, momentum=0.9)
        for step in range(3):
            x = draw(step, rank)[number]
            optimizer.zero_grad()
            (replica(x) - 1).square().mean().backward()
            optimizer.step()
    torch.save(models.state_dict(), f"{out}/{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
