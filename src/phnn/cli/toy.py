"""The command that shows what PH layers can learn."""

from __future__ import annotations

from pathlib import Path

from phnn.cli.training import FAILED_RUNS


def toy(out: Path | None = None, steps: int = 400, seed: int = 0) -> int:
    """Let PH layers find the rules of known algebras, and check that they do.

    These are the learning tests of the paper: data from a quaternion convolution, from pure
    quaternions, and from other algebras. The command fails when a rule is not found.

    Args:
        out: Folder of the results; runs/toy by default.
        steps: Training steps for each problem.
        seed: Seed of filters, starting values and data.
    """
    from phnn.lab.reports.toy import draw_algebras, draw_losses, render_toy, write_toy
    from phnn.lab.tasks.toy import PROBLEMS, solve

    folder = out or Path("runs") / "toy"
    results = []
    for problem in PROBLEMS:
        print(f"{problem.name}, n={problem.algebra.n}: learning {problem.learned}", flush=True)
        results.append(solve(problem, steps, seed))
        written = write_toy(results, folder)
    pictures = draw_losses(results, folder) + draw_algebras(results, folder)
    print(f"\n{render_toy(results)}\n\nwrote", written, *pictures, sep="\n  ")
    return 0 if all(result.passed for result in results) else FAILED_RUNS
