"""What do PH adapters keep of full fine-tuning, compared with LoRA and LoKr of equal size?

A network with four linear layers learns the digits 0 to 4 of scikit-learn's 8×8 digits. Then it is
frozen and adapted to the digits 5 to 9, with 20 images of each. All methods train the last layer
and their deltas of the other three. The last layer has one rate in all methods. For the delta each
rate of a grid is tried; the validation images choose one, and the accuracy is that of the test
images. LoRA and LoKr are peft's, where it is installed.

    python benchmarks/adapters.py [--seeds 3] [--out results/adapters.csv]
"""

from __future__ import annotations

import argparse
import copy
import csv
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import phnn
from measure import provenance
from phnn.lab.training.provenance import find_commit

WIDTH = 256
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # of the delta, one grid for all methods
HEAD_RATE = 1e-2  # the best for the last layer alone; tuned together, one rate fails both
HIDDEN = ("0", "2", "4")
SHOTS = 20  # images of each class, for training and for validation
FIELDS = ("method", "delta parameters", "seed", "rate", "accuracy", "commit", "made by")
Split = tuple[Tensor, Tensor]


def main() -> None:
    """Compare the methods."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("results/adapters.csv"))
    options = parser.parse_args()
    done = _read(options.out)
    for seed in range(options.seeds):
        old, *new = split_digits(seed)
        base: nn.Module | None = None
        for method, build in methods():
            if (method, str(seed)) in done:
                continue
            if base is None:
                base = pretrain(old, seed)
            rate, accuracy, size = tune(build, base, new, seed, options.epochs)
            values = (method, size, seed, rate, f"{accuracy:.2f}", find_commit(), provenance())
            _append(options.out, dict(zip(FIELDS, values, strict=True)))
            print(f"{method:44} seed {seed}: {size:6} parameters, {accuracy:.2f} %", flush=True)


def methods() -> Iterator[tuple[str, Callable[[nn.Module], nn.Module]]]:
    """Yield each method with the function that adapts a network."""
    yield "last layer alone", freeze
    yield "full fine-tuning", lambda model: model.requires_grad_(True)
    choices: dict[str, dict[str, Any]] = {
        "phnn n=16 terms=1": {"n": 16, "terms": 1},
        "phnn n=16 terms=4": {"n": 16, "terms": 4},
        "phnn n=8 terms=2 filter_rank=4": {"n": 8, "terms": 2, "filter_rank": 4},
        "phnn n=16 terms=5 share_algebra": {"n": 16, "terms": 5, "share_algebra": True},
        "phnn cyclic(64)": {"algebra": "cyclic(64)"},
        "phnn cyclic(32)": {"algebra": "cyclic(32)"},
    }
    for label, choice in choices.items():
        yield label, partial(phnn.adapt, include=HIDDEN, **choice)
    if importlib.util.find_spec("peft") is None:
        print("peft is not installed: LoRA and LoKr are left out")
        return
    import peft

    for rank in (1, 4):
        config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=list(HIDDEN))
        yield f"peft LoRA r={rank}", partial(_peft, config=config)
    for rank, factor in ((64, 16), (16, 4)):
        lokr = peft.LoKrConfig(
            r=rank, alpha=rank, decompose_factor=factor, target_modules=list(HIDDEN)
        )
        name = f"peft LoKr r={rank} decompose_factor={factor}"
        yield name, partial(_peft, config=lokr)


def _peft(model: nn.Module, config: Any) -> nn.Module:
    import peft

    wrapped: nn.Module = peft.get_peft_model(model, config)
    return wrapped


def freeze(model: nn.Module) -> nn.Module:
    """Let nothing learn."""
    return model.requires_grad_(False)


def split_digits(seed: int) -> tuple[Split, Split, Split, Split]:
    """Return the old digits, and of the new ones training, validation and test images."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32) / 8 - 1
    y = torch.tensor(labels)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    x, y = x[order], y[order]
    parts: list[list[Tensor]] = [[], [], []]
    for digit in range(5, 10):
        rows = (y == digit).nonzero().flatten()
        for part, chosen in zip(
            parts, (rows[:SHOTS], rows[SHOTS : 2 * SHOTS], rows[2 * SHOTS :]), strict=True
        ):
            part.append(chosen)
    chosen_rows = [torch.cat(part) for part in parts]
    train, validation, test = ((x[rows], y[rows]) for rows in chosen_rows)
    return (x[y < 5], y[y < 5]), train, validation, test


def build_network() -> nn.Sequential:
    """Return the network."""
    return nn.Sequential(
        nn.Linear(64, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 10),
    )


def pretrain(data: Split, seed: int) -> nn.Module:
    """Return a network that knows the old digits."""
    torch.manual_seed(seed)
    model = build_network()
    train(model, [{"params": list(model.parameters()), "lr": 1e-3}], data, 30)
    return model


def train(model: nn.Module, groups: list[dict[str, Any]], data: Split, epochs: int) -> None:
    """Train parameters with Adam, on batches of 50 and with rates that fall to zero."""
    x, y = data
    optimizer = torch.optim.Adam(groups)
    steps = epochs * -(-len(x) // 50)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(50):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def tune(
    build: Callable[[nn.Module], nn.Module],
    base: nn.Module,
    data: list[Split],
    seed: int,
    epochs: int,
) -> tuple[float, float, int]:
    """Return the best rate, its accuracy on the test images, and the parameters of the delta."""
    fitting, validation, test = data
    best = (-1.0, 0.0, 0.0, 0)
    for rate in RATES:
        torch.manual_seed(seed)
        model = build(copy.deepcopy(base))
        head = next(m for m in model.modules() if getattr(m, "out_features", 0) == 10)
        for parameter in head.parameters():
            parameter.requires_grad_(True)
        last = {id(p) for p in head.parameters()}
        delta = [p for p in model.parameters() if p.requires_grad and id(p) not in last]
        size = sum(p.numel() for p in delta)
        groups = [{"params": list(head.parameters()), "lr": HEAD_RATE}]
        groups += [{"params": delta, "lr": rate}] if delta else []
        train(model.train(), groups, fitting, epochs)
        model.eval()
        best = max(best, (measure(model, validation), measure(model, test), rate, size))
    _, accuracy, rate, size = best
    return rate, accuracy, size


def measure(model: nn.Module, data: Split) -> float:
    """Return the accuracy in per cent."""
    with torch.no_grad():
        return float((model(data[0]).argmax(1) == data[1]).float().mean()) * 100


def _read(path: Path) -> set[tuple[str, str]]:
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {(row["method"], row["seed"]) for row in csv.DictReader(file)}


def _append(path: Path, row: dict[str, Any]) -> None:
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
