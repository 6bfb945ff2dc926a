"""The command that reproduces the paper."""

from __future__ import annotations

from pathlib import Path

from phnn.cli.training import FAILED_RUNS, count_jobs, parse_seeds, show_command


def paper(
    out: Path,
    data: Path | None = None,
    tiny: bool = False,
    jobs: int | None = None,
    seeds: str | None = None,
    only: str | None = None,
    shard: str | None = None,
    estimate: bool = False,
    accelerator: str = "auto",
    precision: str = "32-true",
) -> int:
    """Carry out every experiment of the paper, and set each of its numbers beside yours.

    First it says how many hours of a GPU the runs would take. The same command continues where it
    was stopped. At the end, paper.html has every number of the paper, yours, and a verdict.

    Example: phnn paper --tiny -o dry-run

    Args:
        out: Folder of the results, with a folder for each table.
        data: Folder with a folder for each data set: cifar10, cifar100, svhn, imagenet, l3das21.
            What is missing is not run.
        tiny: Few steps of tiny networks on made data, to see that everything works.
        jobs: Runs at once; one for each GPU by default.
        seeds: Seeds of all runs, such as 0,1,2, instead of those of the tables.
        only: Tables such as vgg, or patterns of recipes and variants such as '* n=4', with commas
            between them.
        shard: The share of this process, such as 3/20, for as many machines with one --out on a
            shared disk.
        estimate: Only say how long it would take.
        accelerator: cpu, gpu, mps or auto.
        precision: The paper's 32-true, bf16-mixed or another of Lightning's.
    """
    import torch

    from phnn.lab.reproduction import reproduce

    overrides = {"trainer": {"accelerator": accelerator, "precision": precision}}
    has_gpu = torch.accelerator.current_accelerator() is not None
    if not (tiny or estimate or has_gpu or accelerator == "cpu"):
        raise ValueError(
            "there is no GPU here, and the paper's experiments took the authors 2000 hours of one; "
            "give --tiny for a dry run, --estimate for the hours, or --accelerator cpu"
        )
    count, devices = count_jobs(1 if tiny else jobs, overrides)
    page, failed = reproduce(
        data,
        out,
        tiny=tiny,
        only=only.split(",") if only else (),
        seeds=None if seeds is None else parse_seeds(seeds),
        shard=shard,
        jobs=count,
        devices=devices,
        overrides={} if tiny else overrides,
        start=not estimate,
        command=show_command(),
    )
    if page is not None:
        print(f"wrote {page}")
    return FAILED_RUNS if failed else 0
