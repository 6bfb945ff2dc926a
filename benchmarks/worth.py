"""Is it worth it? PH networks against what people would use instead, on CIFAR-10.

    python benchmarks/worth.py --root FOLDER [--only PATTERN ...] [--runs runs/worth]
        [--out results/worth.csv]

Trains the settings of `worth_settings.py`, one after the other, the most decisive first. Each row
is appended to the table when its run has ended. A row that is there is not computed again, and a
run that was stopped continues. Several processes with the same command share the work: each takes
the next setting that no other is at.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from phnn.lab.packaged import read_recipe
from phnn.lab.recipe import build_recipe, merge
from phnn.lab.runs import MODEL, public
from phnn.lab.tasks.optimization import NonFiniteLossError
from phnn.lab.training import train
from worth_settings import SETTINGS, Setting

FIELDS = (
    "setting", "seed", "parameters", "storage_bytes", "epochs", "val_accuracy", "test_accuracy",
    "train_processor_seconds", "precision", "resumed", "error", "options", "commit", "versions",
    "machine", "ended", "command",
)  # fmt: skip


def read_rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")), path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(row)


@contextmanager
def claim(folder: Path) -> Iterator[bool]:
    """Say whether this process may work in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".claim")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    with lock:
        yield True


def run(setting: Setting, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one setting with one seed and return its row."""
    folder = name_folder(options.runs, setting.name, seed)
    fixed: dict[str, Any] = {
        "data": {"root": str(options.root)},
        "trainer": {"threads": 1, "logger": "none"},
        "seed": seed,
    }
    tree = merge(read_recipe("cifar10-fast"), setting.options, fixed)
    if setting.start is not None:
        start = folder / "start.safetensors"
        if not start.exists():
            source = setting.needs and name_folder(options.runs, setting.needs, seed) / MODEL
            torch.manual_seed(seed)
            setting.start(start, build_recipe(tree), source or None)
        tree["start"] = str(start)
    recipe = build_recipe(tree)
    row = {
        "setting": setting.name,
        "seed": seed,
        "options": json.dumps(setting.options),
        "command": "python benchmarks/worth.py --root data/cifar10",
    }
    try:
        result = train(recipe, folder, command=str(row["command"]), progress=False)
    except NonFiniteLossError as error:
        return {**row, "error": str(error), "options": json.dumps(public(recipe))}
    known = {field: result[field] for field in FIELDS if field in result and field not in row}
    return {**row, **known, "versions": json.dumps(result["versions"])}


def name_folder(runs: Path, name: str, seed: int) -> Path:
    return runs / f"{name.replace(' ', '-').replace('/', '-')}-seed{seed}"


def find_next(options: argparse.Namespace, passed: set[tuple[str, int]]) -> tuple[Setting, int]:
    """Return the first setting to be done; raise StopIteration when there is none."""
    rows = read_rows(options.out)
    done = {(row["setting"], int(row["seed"])) for row in rows}
    return next(
        (setting, seed)
        for setting, seed in SETTINGS
        if (setting.name, seed) not in done | passed
        and any(fnmatchcase(setting.name, pattern) for pattern in options.only)
        and (setting.needs is None or (setting.needs, seed) in done)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of settings")
    parser.add_argument("--runs", type=Path, default=Path("runs/worth"))
    parser.add_argument("--out", type=Path, default=Path("results/worth.csv"))
    options = parser.parse_args()
    passed: set[tuple[str, int]] = set()  # other processes are at them
    while True:
        try:
            setting, seed = find_next(options, passed)
        except StopIteration:
            break
        with claim(name_folder(options.runs, setting.name, seed)) as mine:
            rows = read_rows(options.out)  # another process may just have ended
            done = {(row["setting"], int(row["seed"])) for row in rows}
            if mine and (setting.name, seed) not in done:
                row = run(setting, seed, options)
                append_row(options.out, row)
                print(row["setting"], seed, row.get("val_accuracy"), row.get("test_accuracy"))
                sys.stdout.flush()
                passed.clear()
            else:
                passed.add((setting.name, seed))


if __name__ == "__main__":
    main()
