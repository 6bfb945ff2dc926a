"""Programs with weights and activations in int8, by onnxruntime's own quantizer."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from phnn.runtimes.graph_runtime import to_numpy
from phnn.runtimes.nested import leaves

QUANTIZE = ("static",)

Arrays = list[np.ndarray[Any, Any]]


def check_calibration(
    calibration: Iterable[Any] | None, inputs: Sequence[Tensor], dynamic_batch: bool
) -> list[Arrays]:
    """Return the batches of a calibration set as arrays, all of them checked.

    Args:
        calibration: One batch as a tensor, or batches: each a tensor, or a sequence or mapping that
            begins with the inputs of the model, as those of a `DataLoader` do; labels after them
            are left out.
        inputs: The example.
        dynamic_batch: Whether batches may have another size than the example.

    Raises:
        ValueError: There are none, or their shapes are not those of the example.
    """
    if calibration is None:
        raise ValueError(
            "static quantization reads the range of activations from data; give calibration=, "
            "batches of inputs such as a DataLoader"
        )
    if isinstance(calibration, Tensor):
        calibration = [calibration]
    first = 1 if dynamic_batch else 0
    expected = [(tuple(x.shape[first:]), x.dtype) for x in inputs]
    batches = []
    for i, batch in enumerate(calibration):
        found = leaves(batch)[: len(inputs)]
        if [(tuple(x.shape[first:]), x.dtype) for x in found] != expected:
            wanted, got = (
                ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in tensors)
                for tensors in (inputs, found)
            )
            hint = "; only the first axis may differ" if dynamic_batch else ""
            raise ValueError(
                f"batch {i} of calibration= holds {got or 'no tensors'}, the example {wanted}{hint}"
            )
        batches.append([to_numpy(x) for x in found])
    if not batches:
        raise ValueError("calibration= holds no batches")
    return batches


def quantize_static(file: Path, batches: Sequence[Arrays]) -> None:
    """Replace an ONNX file by one with int8 weights, for each channel, and int8 activations.

    Args:
        file: A plain network.
        batches: What the ranges of its activations are read from.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
    from onnxruntime.quantization import quantize_static as quantize
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [value.name for value in onnx.load(file, load_external_data=False).graph.input]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Gives one batch after the other."""

        def __init__(self) -> None:
            self.batches = iter(batches)

        def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
            """Return the next batch, or None."""
            batch = next(self.batches, None)
            return None if batch is None else dict(zip(names, batch, strict=True))

    prepared, target = (file.with_name(f"{kind}-{file.name}") for kind in ("prepared", "int8"))
    with _quiet():
        quant_pre_process(file, prepared, skip_symbolic_shape=True)
        quantize(
            prepared,
            target,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            # 7 bits: 8 overflow on processors with AVX2 alone
            reduce_range=True,
        )
    target.replace(file)
    for leftover in file.parent.iterdir():
        if leftover != file:
            leftover.unlink()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence advice of the quantizer to do what was done before."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
