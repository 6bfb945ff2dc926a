"""Attack phnn, and print what was tried, refused, wrong and hung.

Usage: python -m attack [--full] [--seed N] [--only KIND] [--minutes M] [--out FOLDER]

Outcomes are written as they come, in a folder for each state of the sources; the same command
continues. The exit code is 1 if anything was
wrong or hung.
"""

import argparse
import hashlib
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import phnn
from attack.outcomes import Log
from attack.sandbox import run_case

# kind: cases of the sample, and of the full attack
KINDS = {
    "comparisons": (40, 200),
    "hostile files": (250, 2000),
    "random models": (40, 1000),
    "kills": (5, 100),
}
SAMPLE_MINUTES = 13.0  # of all kinds together; the rest is left out, and the table says so


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="all cases, without a limit of time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--out", type=Path, default=Path("attack"), help="folder of the outcomes")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    # outcomes of other sources say nothing about these
    out = given.out.resolve() / name_version()
    log = Log(out / f"seed{given.seed}{'-full' * given.full}.jsonl")
    kinds = given.only or list(KINDS)
    minutes = given.minutes or (None if given.full else SAMPLE_MINUTES)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    for position, kind in enumerate(kinds):
        now = time.monotonic()
        # the time that is left belongs to the kinds that are left, in equal parts
        until = None if deadline is None else now + (deadline - now) / (len(kinds) - position)
        attack(kind, KINDS[kind][given.full], given.seed, log, work, until)
    print(f"{out.name}\n{log.table(kinds)}")
    if "kills" in kinds:
        signals = sum(outcome.sent for outcome in log.outcomes)
        print(f"kills: {signals} signals reached their processes")
    for kind in kinds:
        left = KINDS[kind][given.full] - len(log.done(kind))
        if left > 0:
            print(
                f"{kind}: {left} cases were left out for want of time; the same command continues"
            )
    bad = [outcome for outcome in log.outcomes if outcome.is_bad and outcome.kind in kinds]
    for outcome in bad:
        print(f"\n{outcome.kind} {outcome.case} {outcome.verdict}: {outcome.detail}")
    return 1 if bad else 0


def name_version():
    """Return a name of the sources under attack: the commit, and what the files hold now."""
    root = Path(__file__).parents[2]
    git = ["git", "-C", str(root), "rev-parse", "--short=10", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    digest = hashlib.sha256()
    for folder in (Path(phnn.__file__).parent, root / "tests" / "attack", root / "tests/helpers"):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in (".py", ".yaml", ".html", ".css"):
                digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return f"{commit or 'no-commit'}-{digest.hexdigest()[:10]}"


def attack(kind, count, seed, log, work, until):
    """Try the cases of a kind that have not been tried, as long as there is time."""
    left = [number for number in range(count) if number not in log.done(kind)]
    if not left:
        return
    ground = None
    began = time.monotonic()
    for done in itertools.count():
        if done == len(left) or (until is not None and time.monotonic() > until):
            break
        number = left[done]
        if kind == "kills":
            from attack import kills

            folder = work / "kills"
            folder.mkdir(exist_ok=True)
            ground = ground or kills.Ground(folder)
            outcome = kills.kill(seed, number, ground)
        else:
            ground = ground or make_ground(kind, work)
            outcome = run_in_sandbox(kind, number, seed, ground, work)
        log.add(outcome)
        if outcome.is_bad or done % 25 == 0:
            rate = (time.monotonic() - began) / (done + 1)
            print(f"{kind} {number}: {outcome.verdict} ({rate:.1f} s each)", flush=True)


def make_ground(kind, work):
    """Import what the cases need, before any is forked."""
    import torch

    torch.set_num_threads(1)
    if kind == "hostile files":
        import lightning  # noqa: F401

        from attack import hostile

        return hostile.Ground(work / "ground")
    if kind == "comparisons":
        from attack import comparisons

        comparisons.warm_up(work)
    if kind == "random models":
        from attack import models

        models.warm_up(work)
    return kind


def run_in_sandbox(kind, number, seed, ground, work):
    from attack import comparisons, hostile, models

    folder = Path(tempfile.mkdtemp(dir=work)) / "case"
    module = {"hostile files": hostile, "random models": models, "comparisons": comparisons}[kind]
    name, case = module.make_case(number, seed, ground, folder)
    # models take as long as they take; a hostile file may not
    limits = {} if kind == "hostile files" else {"cpu": 300.0, "wall": 900.0, "memory": 2**32}
    if name == "results":
        limits = {"cpu": 60.0, "wall": 300.0}  # a whole report with its figures
    try:
        outcome = run_case(kind, number, case, **limits)
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
    detail = outcome.detail.replace(str(folder.parent), "…")
    return type(outcome)(kind, number, outcome.verdict, f"{name}: {detail}", outcome.seconds)


if __name__ == "__main__":
    sys.exit(main())
