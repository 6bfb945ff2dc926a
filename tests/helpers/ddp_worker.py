"""One of two processes that train small PH networks together; run by test_distributed.py."""

import sys
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

import phnn
from phnn import algebra

MIXED, SEQUENCES = 1, 2  # of the networks


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


def build() -> nn.ModuleList:
    """A network that is compared with one process, the same in bfloat16, and one for sequences."""
    pictures = [
        nn.Sequential(
            phnn.PHConv2d(4, 8, 3, n=4),
            nn.ReLU(),
            phnn.PHConv2d(8, 8, 3, algebra=algebra.quaternion),
            nn.Flatten(),
            phnn.PHLinear(8 * 4, 4, n=2, terms=3),
        )
        for _ in range(2)
    ]
    return nn.ModuleList([*pictures, Sequences()])


def train(models: Iterable[nn.Module], inputs: Callable[[int], Sequence[torch.Tensor]]) -> None:
    """Train networks for three steps each.

    Args:
        models: The networks of `build`, or what holds them.
        inputs: The inputs of a step, for pictures and for sequences.
    """
    for number, model in enumerate(models):
        groups = phnn.param_groups(model, lr=0.1, algebra_lr=0.05)
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        for step in range(3):
            x = inputs(step)[number == SEQUENCES]
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=number == MIXED):
                output = model(x)
            (output.float() - 1).square().mean().backward()
            optimizer.step()


def main(rank: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)  # replicas start differently: DDP must broadcast the state
    models = build()
    replicas = [nn.parallel.DistributedDataParallel(model) for model in models]
    train(replicas, lambda step: draw(step, rank))
    torch.save(models.state_dict(), f"{out}/{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
