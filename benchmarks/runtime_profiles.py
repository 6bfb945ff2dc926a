"""Which operators take the time, by the profilers of onnxruntime and OpenVINO.

It reads the files that `runtimes.py --cache FOLDER` left, and adds the times of equal operators.

    python benchmarks/runtime_profiles.py FOLDER "resnet18 16" --out results/runtime-profiles.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from measure import provenance
from phnn.runtimes import OnnxRuntime, OpenVINO

FIELDS = ("network", "batch", "runtime", "form", "operator", "count", "ms", "provenance")
RUNS, WARMUP = 8, 3
Profile = dict[str, tuple[int, float]]  # count and milliseconds, by operator


def profile_onnxruntime(file: Path) -> Profile:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = OnnxRuntime().count_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        (argument,) = session.get_inputs()
        x = np.random.default_rng(0).standard_normal(argument.shape, np.float32)
        for _ in range(RUNS):
            session.run(None, {argument.name: x})
        events = json.loads(Path(session.end_profiling()).read_text())
    ours = [
        (event["name"], event["args"]["op_name"], event["dur"] / 1e3)
        for event in events
        if event["name"].endswith("_kernel_time")
    ]
    nodes: dict[tuple[str, str], list[float]] = {}
    for name, operator, milliseconds in ours:
        nodes.setdefault((operator, name), []).append(milliseconds)
    return _add({key: min(times) for key, times in nodes.items()})


def profile_openvino(file: Path) -> Profile:
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": OpenVINO().count_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERF_COUNT": True,
    }
    compiled = openvino.Core().compile_model(file, "CPU", options)
    request = compiled.create_infer_request()
    shape = [axis.get_length() for axis in compiled.input(0).partial_shape]
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    nodes: dict[tuple[str, str], float] = {}
    for _ in range(RUNS):
        request.infer([x])
        for node in request.profiling_info:
            if node.status == openvino.ProfilingInfo.Status.EXECUTED:
                key = (f"{node.node_type} {node.exec_type}", node.node_name)
                milliseconds = 1e3 * node.real_time.total_seconds()
                nodes[key] = min(nodes.get(key, milliseconds), milliseconds)
    return _add(nodes)


def _add(nodes: dict[tuple[str, str], float]) -> Profile:
    counts, sums = (
        Counter(operator for operator, _ in nodes),
        dict.fromkeys((o for o, _ in nodes), 0.0),
    )
    for (operator, _), milliseconds in nodes.items():
        sums[operator] += milliseconds
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return {operator: (counts[operator], value) for operator, value in ordered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("networks", nargs="+", help='name and batch, such as "vgg16 16"')
    parser.add_argument("--out", type=Path, default=Path("runtime-profiles.csv"))
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for text in arguments.networks:
        network, batch = text.rsplit(" ", 1)
        for runtime, profile in (
            ("onnxruntime", profile_onnxruntime),
            ("openvino", profile_openvino),
        ):
            accelerated = f"{network} batch {batch} {runtime} accelerated.onnx"
            files = {"real": f"{network} {batch} real.onnx", "accelerated": accelerated}
            for form, name in files.items():
                for operator, (count, milliseconds) in profile(arguments.folder / name).items():
                    found = (operator, count, f"{milliseconds:.2f}", provenance())
                    values = (network, batch, runtime, form, *found)
                    rows.append(dict(zip(FIELDS, values, strict=True)))
                    print(*values[:-1], flush=True)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
