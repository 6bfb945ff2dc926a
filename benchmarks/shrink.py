"""What trained networks keep when they are shrunk, by phnn and by its rivals.

    python benchmarks/shrink.py --weights FOLDER --root FOLDER [--only PATTERN] [--seed 0]
        [--steps 0] [--out results/shrink.csv]

The networks, their data and their scores are in `subjects.py`: `--weights` holds
resnet20.safetensors and resnet56.safetensors (the CIFAR-10 networks of He et al. 2016 with
parameter-free shortcuts), `--root` CIFAR-10; CREPE and MiniLM come with packages. Every method sees
the same 1,024 inputs, without labels. With `--steps` each network is then fine-tuned by
distillation from the original, on batches of 128 augmented inputs without labels. A row that is in
the table is not computed again. `shrink_table.py` makes a page and a picture of the rows.
"""

from __future__ import annotations

import argparse
import copy
import csv
import subprocess
import tempfile
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import phnn
from measure import provenance
from phnn.lab import distill
from subjects import SUBJECTS, Subject

BUDGETS = (0.7, 0.5, 0.3, 0.2)
OWN_BUDGETS = {"crepe": (0.5, 0.25, 0.15), "minilm": (0.766,)}  # of MiniLM the linear layers' half
KEY = ["network", "method", "budget", "seed", "steps"]
FIELDS = [*KEY, "score", "parameters", "share", "multiplications", "file_bytes", "seconds"]

Method = Callable[[Subject, float], "nn.Module | Small"]


def shrink(subject: Subject, budget: float) -> nn.Module:
    return convert(subject, budget)


def shrink_unrefined(subject: Subject, budget: float) -> nn.Module:
    return convert(subject, budget, refine=0)


def low_rank(subject: Subject, budget: float) -> nn.Module:
    """Low rank weighted by activations: the same search and the same fits."""
    return convert(subject, budget, kinds=["low rank"])


def low_rank_unrefined(subject: Subject, budget: float) -> nn.Module:
    return convert(subject, budget, kinds=["low rank"], refine=0)


def square(subject: Subject, budget: float) -> nn.Module:
    return convert(subject, budget, kinds=["square"])


def by_weights(subject: Subject, budget: float) -> nn.Module:
    return phnn.convert(subject.model, budget=budget, exclude=subject.exclude or None)


def svd(subject: Subject, budget: float) -> nn.Module:
    """Truncated SVD of the weights, with the same search."""
    exclude = subject.exclude or None
    return phnn.convert(subject.model, budget=budget, kinds=["low rank"], exclude=exclude)


def convert(subject: Subject, budget: float, **options: object) -> nn.Module:
    return phnn.convert(
        subject.model,
        budget=budget,
        calibration=subject.calibration,
        exclude=subject.exclude or None,
        **options,  # type: ignore[arg-type]
    )


class Small(NamedTuple):
    """A network, and the numbers that its file stores."""

    model: nn.Module
    parameters: int


def tucker(subject: Subject, budget: float) -> Small:
    """Tucker decompositions of all convolutions by tltorch, all of one relative rank."""
    low, high = 0.0, 1.0
    best: Small | None = None
    for _ in range(7):
        rank = (low + high) / 2
        found = decompose(subject.model, rank)
        if found.parameters <= budget * count(subject.model):
            low, best = rank, found
        else:
            high = rank
    if best is None:
        raise ValueError(f"no Tucker decomposition keeps {budget} of the parameters")
    return best


class TuckerConv(nn.Module):
    """A convolution whose weight is a Tucker decomposition by tltorch."""

    def __init__(self, dense: nn.Conv2d, rank: float) -> None:
        import tltorch

        super().__init__()
        out, inputs, *kernel = dense.weight.shape
        plain = nn.Conv2d(inputs, out, (kernel[0], kernel[1]), bias=False)
        plain.weight = dense.weight
        self.weight = tltorch.FactorizedConv.from_conv(
            plain, rank=rank, factorization="tucker", decompose_weights=True
        ).weight
        self.bias = dense.bias
        self.options: Any = (dense.stride, dense.padding, dense.dilation, dense.groups)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the weight, and filter."""
        return nn.functional.conv2d(x, self.weight.to_tensor(), self.bias, *self.options)


def decompose(model: nn.Module, rank: float) -> Small:
    """Return the model with Tucker decompositions in place of its convolutions."""
    small = copy.deepcopy(model)
    for name, layer in list(small.named_modules()):
        if isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.weight.shape[1] > 3:
            parent, _, child = name.rpartition(".")
            setattr(small.get_submodule(parent), child, TuckerConv(layer, rank))
    return Small(small, count(small))


def prune(subject: Subject, budget: float) -> Small:
    """Keep the largest weights of all layers; the positions of zeros are not counted."""
    pruned = copy.deepcopy(subject.model)
    layers = [m for m in pruned.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    total = count(pruned)
    keep = int(budget * total) - (total - sum(layer.weight.numel() for layer in layers))
    sizes = torch.cat([layer.weight.detach().abs().flatten() for layer in layers])
    least = sizes.kthvalue(len(sizes) - keep + 1).values
    for layer in layers:
        layer.register_forward_pre_hook(Mask(layer.weight.detach().abs() >= least))
    return Small(pruned, int(budget * total))


class Mask:
    """Sets weights to zero before each call, so that they stay zero while the others learn."""

    def __init__(self, kept: Tensor) -> None:
        self.kept = kept

    def __call__(self, layer: nn.Module, args: object) -> None:
        """Write the zeros."""
        with torch.no_grad():
            layer.get_parameter("weight").mul_(self.kept)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


METHODS: dict[str, Method] = {
    "phnn": shrink,
    "phnn, not refined": shrink_unrefined,
    "low rank by activations": low_rank,
    "low rank by activations, not refined": low_rank_unrefined,
    "square PH by activations": square,
    "phnn by weights": by_weights,
    "truncated SVD": svd,
    "Tucker": tucker,
    "magnitude pruning": prune,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--only", default="*", help='pattern of "NETWORK METHOD BUDGET"')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="of fine-tuning, by distillation")
    parser.add_argument("--out", type=Path, default=Path("results/shrink.csv"))
    arguments = parser.parse_args()
    done: set[tuple[str, ...]] = set()
    if arguments.out.exists():
        with arguments.out.open(newline="", encoding="utf-8") as file:
            done = {tuple(row[field] for field in KEY) for row in csv.DictReader(file)}
    for name, make in SUBJECTS.items():
        jobs: list[tuple[str, float, Method | None]] = []
        if not arguments.steps:
            jobs.append(("original", 1.0, None))
        for share in OWN_BUDGETS.get(name, BUDGETS):
            jobs += [(method, share, run) for method, run in METHODS.items()]
        wanted = [
            (method, share, run)
            for method, share, run in jobs
            if (name, method, str(share), str(arguments.seed), str(arguments.steps)) not in done
            and fnmatchcase(f"{name} {method} {share}", arguments.only)
        ]
        if not wanted:
            continue
        subject = make(arguments.weights, arguments.root, arguments.seed)
        for method, share, run in wanted:
            row = measure(subject, method, share, run, arguments.seed, arguments.steps)
            if row is not None:
                append(arguments.out, row)
                print(*row, flush=True)


def measure(
    subject: Subject, method: str, share: float, run: Method | None, seed: int, steps: int
) -> list[object] | None:
    """Return one row of the table; None where a method has no network of this size."""
    start = time.perf_counter()
    try:
        found = subject.model if run is None else run(subject, share)
    except (ValueError, ModuleNotFoundError) as error:
        print(subject.name, method, share, "skipped:", error, flush=True)
        return None
    small = found if isinstance(found, Small) else Small(found, count(found))
    if steps:
        assert subject.batches is not None, f"{subject.name} has no data to fine-tune with"
        distill(small.model, subject.model, subject.batches(steps, seed), epochs=1)
    seconds = time.perf_counter() - start
    report = getattr(small.model, "phnn_report", None)
    work, size = "", 4 * small.parameters
    if report is not None:
        work = "" if report.multiplications_after is None else f"{report.multiplications_after:.0f}"
        with tempfile.TemporaryDirectory() as folder:
            size = phnn.save(small.model, Path(folder) / "model.safetensors").stat().st_size
    score = subject.score(small.model if report is None else phnn.to_dense(small.model))
    kept = small.parameters / count(subject.model)
    key = [subject.name, method, share, seed, steps]
    return [*key, f"{score:.4f}", small.parameters, f"{kept:.4f}", work, size, f"{seconds:.1f}"]


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def append(path: Path, row: list[object]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow([*FIELDS, "commit", "made by"])
        writer.writerow([*row, commit(), provenance()])


if __name__ == "__main__":
    main()
