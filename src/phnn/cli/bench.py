"""The command that times a model."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from phnn._screen import ProgressBar
from phnn._tables import align, fit_lines, keep_columns
from phnn.cli.example_input import add_example, make_example
from phnn.cli.model_argument import add_build_option, find_model
from phnn.cli.parser import Parser, parse_count, speaking_of

if TYPE_CHECKING:
    from phnn.acceleration.contest import Result
    from phnn.runtimes import Runtime

BATCH = 16
IMAGE = (3, 32, 32)  # for a model without a known input shape
HEAD = ("form", "ms", "/ real", "train ms", "/ real", "file MB", "parameters", "mult.", "runtime")
FIELDS = (
    "runtime",
    "form",
    "bytes",
    "parameters",
    "multiplications",
    "inference_seconds",
    "inference_ratio",
    "training_seconds",
    "training_ratio",
)


def add_arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_model()
    add_build_option(parser)
    parser.add_out("a CSV file for the table", required=False)
    add_example(parser, "16 images it was trained for, or 16,3,32,32")
    parser.add_argument(
        "--n",
        type=parse_count,
        default=4,
        help="dimension of the algebras, 4 by default; a model that has PH layers keeps its own",
    )
    parser.add_flag("training", "also time forward and backward in training mode", default=True)
    parser.add_argument(
        "--runtime",
        type=split_names,
        default=["torch"],
        help="runtimes, separated by commas: torch (default), compile, "
        "onnxruntime, openvino; the model is accelerated for each",
    )
    parser.add_argument(
        "--device", default="cpu", help="where torch computes: cpu (default) or cuda"
    )
    parser.add_argument(
        "--rounds",
        type=parse_count,
        default=7,
        help="runs of each form, 7 by default; they take turns, and the fastest run counts",
    )
    parser.add_argument(
        "--threads", type=parse_count, help="number of CPU threads; torch's choice by default"
    )


def split_names(text: str) -> list[str]:
    """Return the names in a text such as torch,onnxruntime."""
    return [name.strip() for name in text.split(",")]


def run(
    model: str,
    build: str | None,
    out: Path | None,
    shape: tuple[int, ...] | None,
    input: Path | None,
    n: int,
    training: bool,
    runtime: list[str],
    device: str,
    rounds: int,
    threads: int | None,
) -> int:
    """Time a model as it is, with PH layers, folded and accelerated, side by side.

    Examples:
      phnn bench vgg16 --n 4
      phnn bench package.module:make_network --shape 8,3,224,224
      phnn bench resnet18 --runtime torch,onnxruntime,openvino --shape 1,3,32,32
    """
    import torch

    from phnn.acceleration.contest import compete, make_contestants
    from phnn.io import check_output
    from phnn.runtimes.machine import describe_machine

    if out is not None:
        check_output(out)
    if threads is not None:
        torch.set_num_threads(threads)
    with speaking_of(runtime="--runtime", device="--device"):
        runtimes = _find_runtimes(runtime, device)
    found = find_model(model, build=build)
    example, *others = make_example(
        replace(found, shape=found.shape or IMAGE), shape, input, batch=BATCH
    )
    if others:
        raise ValueError(f"phnn bench times models of one input, {input} holds {1 + len(others)}")
    network, example = found.model.to(device), example.to(device)
    trained = ("real", "assembled") if training else ()
    results: list[list[Result]] = []
    with ProgressBar() as bar:
        for there in runtimes:
            with speaking_of(n="--n", rounds="--rounds"):
                models = make_contestants(network, example, n, rounds, there, bar)
            results.append(compete(models, example, trained, rounds, there, bar))
            if out is not None:
                _write(results, out)
    print(_render(results))
    print(fit_lines(_name_fastest(results)))
    sizes = ",".join(map(str, example.shape))
    versions = ", ".join(f"{there.name} {there.version}" for there in runtimes)
    print(f"{model}, input {sizes}, {versions}, {describe_machine(device)}")
    if out is not None:
        print(f"wrote {out}")
    return 0


def _find_runtimes(names: list[str], device: str) -> list[Runtime]:
    """Return the runtimes, all of them checked before the work."""
    import torch

    from phnn.runtimes import GraphRuntime, find_runtime

    runtimes = [find_runtime(name) for name in names]
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda; got {device!r}")
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device={device!r}: torch finds no GPU here; use device='cpu'")
        graphs = [there.name for there in runtimes if isinstance(there, GraphRuntime)]
        if graphs:
            raise ValueError(
                f"device={device!r} is for torch and compile; {', '.join(graphs)} run on the CPU"
            )
    return runtimes


def _name_fastest(results: list[list[Result]]) -> str:
    """Return a sentence about the fastest form."""
    everything = [result for found in results for result in found]
    fastest = min(everything, key=lambda result: result.inference)
    real = min(
        (result for result in everything if result.name.startswith("real")),
        key=lambda result: result.inference,
    )
    text = (
        f"fastest here: {fastest.name} in {fastest.runtime}, {1e3 * fastest.inference:.2f} ms "
        f"({fastest.size / 1e6:.1f} MB)"
    )
    if fastest is real:
        return text
    return (
        f"{text}; {fastest.inference / real.inference:.2f} of the fastest real one, "
        f"{real.name} in {real.runtime} ({real.size / 1e6:.1f} MB)"
    )


def _rows(results: list[list[Result]]) -> list[tuple[str | float | None, ...]]:
    """Return the fields of each form; ratios are to the real network in the same runtime."""
    rows: list[tuple[str | float | None, ...]] = []
    for found in results:
        real = found[0]
        for result in found:
            times = (result.inference, result.inference / real.inference, result.training)
            is_timed = result.training is not None and real.training is not None
            ratio = result.training / real.training if is_timed else None  # type: ignore[operator]
            rows.append(
                (
                    result.runtime,
                    result.name,
                    result.size,
                    result.parameters,
                    result.multiplications,
                    *times,
                    ratio,
                )
            )
    return rows


def _render(results: list[list[Result]]) -> str:
    """Return a table of 80 columns: the times first."""
    cells = [HEAD]
    for runtime, name, size, parameters, multiplications, *times in _rows(results):
        texts = [
            "" if value is None else f"{value:.2f}" if i % 2 else f"{1e3 * float(value):.2f}"
            for i, value in enumerate(times)
        ]
        counts = (
            f"{float(size or 0) / 1e6:.2f}",
            f"{parameters:,}",
            f"{float(multiplications or 0) / 1e6:.3g} M",
        )
        where = str(runtime) if len(results) > 1 else ""
        cells.append((str(name), *texts, *counts, where))  # type: ignore[arg-type]
    kept = keep_columns(cells, first=6)
    return "\n".join(align(kept, right=range(1, len(kept[0]) - (len(results) > 1))))


def _write(results: list[list[Result]], out: Path) -> None:
    from phnn.io.atomic import write_text

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([FIELDS, *_rows(results)])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, text.getvalue())
