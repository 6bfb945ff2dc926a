"""What smaller files and int8 arithmetic cost: accuracy on the test set, time, file size.

The files of the last epoch's network of each run: float32, filters stored in float16 and int8, and
static quantization, calibrated with 400 images of the training data. Times are of 100 images in
onnxruntime and OpenVINO, all files by turns.

    python benchmarks/quantized.py RUN … --folder FOLDER --out results/quantized.csv
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import phnn
from measure import provenance
from phnn.lab.conversion import read_training_inputs
from phnn.lab.trained import fit_data, load_trained
from phnn.lab.training.build import build_data
from phnn.runtimes import OnnxRuntime, OpenVINO
from phnn.runtimes.timing import interleave

BATCH = 100
CALIBRATION = 4  # batches
FORMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16 storage": {"storage": "float16"},
    "int8 storage": {"storage": "int8"},
    "static int8": {"quantize": "static"},
}
FIELDS = (
    "run", "form", "accuracy", "correct", "images", "file MB", "outputs differ",
    "onnxruntime ms", "openvino ms", "provenance",
)  # fmt: skip


def read_test_images(run: Path) -> Iterator[tuple[Tensor, Tensor]]:
    trained = load_trained(run)
    data = build_data(trained.recipe)
    fit_data(data, trained)
    data.setup()
    for batch in data.test_dataloader():
        images, labels = data.on_after_batch_transfer(batch, 0)[:2]
        yield from zip(images.float().split(BATCH), labels.split(BATCH), strict=True)


def count_correct(run: Callable[[Tensor], Tensor], batches: list[tuple[Tensor, Tensor]]) -> int:
    return sum(int((run(images).argmax(1) == labels).sum()) for images, labels in batches)


def measure(run: Path, folder: Path) -> Iterator[dict[str, Any]]:
    trained = load_trained(run)
    model, batches = trained.model.float().eval(), list(read_test_images(run))
    images = sum(len(labels) for _, labels in batches)
    x = batches[0][0].contiguous()
    calibration = torch.cat(read_training_inputs(trained, CALIBRATION * BATCH)).float()
    with torch.no_grad():
        correct = count_correct(model, batches)
    row = {"run": run.name, "images": images, "provenance": provenance()}
    yield {**row, "form": "torch", "correct": correct, "accuracy": f"{100 * correct / images:.2f}"}
    for form, options in FORMS.items():
        if "quantize" in options:
            options = {**options, "calibration": calibration.contiguous().split(BATCH)}
        file = folder / f"{run.name} {form}.onnx"
        written = phnn.export(model, file, x, dynamic_batch=False, **options)
        session = OnnxRuntime().load(file)

        def call(images: Tensor) -> Tensor:
            return torch.from_numpy(session([images.contiguous().numpy()])[0])  # noqa: B023

        correct = count_correct(call, batches)
        yield {
            **row,
            "form": form,
            "correct": correct,
            "accuracy": f"{100 * correct / images:.2f}",
            "file MB": f"{written.size / 1e6:.3f}",
            "outputs differ": f"{written.relative_difference:.2g}",
        }


def time_files(rows: list[dict[str, Any]], folder: Path, seconds: float) -> None:
    x = torch.randn(BATCH, 3, 32, 32).numpy()
    for runtime in (OnnxRuntime(), OpenVINO()):
        files = {
            i: folder / f"{row['run']} {row['form']}.onnx"
            for i, row in enumerate(rows)
            if row["form"] in FORMS
        }
        loaded = {i: runtime.load(file) for i, file in files.items()}
        calls = {i: (lambda run=run: run([x])) for i, run in loaded.items()}
        for i, found in interleave(calls, 5, seconds=seconds).items():
            rows[i][f"{runtime.name} ms"] = f"{1e3 * found:.2f}"
            rows[i]["provenance"] = f"{provenance()}, {runtime.name} {runtime.version}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("runs", type=Path, nargs="*", help="folders of runs; none: only time")
    parser.add_argument("--folder", type=Path, required=True, help="where the files are written")
    parser.add_argument("--out", type=Path, default=Path("quantized.csv"))
    parser.add_argument("--seconds", type=float, default=10.0, help="of timing; 0 for none")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for run in arguments.runs:
        for row in measure(run, arguments.folder):
            print(*row.values(), flush=True)
            rows.append(row)
    if not rows:
        with arguments.out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    if arguments.seconds:
        time_files(rows, arguments.folder, arguments.seconds)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
