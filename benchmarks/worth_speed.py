"""Multiplications and times of inference of the networks that `worth.py` trained.

    python benchmarks/worth_speed.py --runs runs/worth [--batch 16] [--out results/worth-speed.csv]

Each network of the first seed is loaded from its run and accelerated by `phnn.accelerate`, the real
ones, too. They take turns, and the least time of each counts. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch

import phnn
from measure import provenance
from phnn.analysis.counting import count_multiplications
from phnn.lab.runs import MODEL
from phnn.runtimes.timing import interleave
from worth import name_folder
from worth_settings import list_rivals

FIELDS = ("setting", "multiplications", "milliseconds", "batch", "made by")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=Path, default=Path("runs/worth"))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/worth-speed.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = torch.randn(options.batch, 3, 32, 32)
    fast = {}
    for setting in list_rivals():
        file = name_folder(options.runs, setting.name, 0) / MODEL
        if file.exists():
            fast[setting.name] = phnn.accelerate(phnn.load(file).eval(), images)
    with torch.inference_mode():
        calls = {name: (lambda model=model: model(images)) for name, model in fast.items()}
        seconds = interleave(calls, options.rounds)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for name, model in fast.items():
            count = count_multiplications(model, images[:1])
            milliseconds = f"{1000 * seconds[name]:.2f}"
            writer.writerow([name, count, milliseconds, options.batch, provenance()])
            print(name, count, milliseconds)


if __name__ == "__main__":
    main()
