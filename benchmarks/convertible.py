"""What `phnn.convert(model, n=4)` does to models that people have, as a table.

The models are built from their definitions with random weights; nothing is downloaded. torchvision,
timm and transformers are not dependencies: where one is missing, its rows are left out.

    python benchmarks/convertible.py [--n 4] [--out docs/convertible-models.md]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import phnn
from measure import provenance
from phnn.conversion import Report, convert

PACKAGES = ("torchvision", "timm", "transformers")

TORCHVISION = (
    "resnet18",
    "resnet50",
    "vgg16_bn",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "convnext_tiny",
    "vit_b_16",
    "swin_t",
)
TIMM = (
    "resnet50",
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "convnext_tiny",
    "vit_small_patch16_224",
    "swin_tiny_patch4_window7_224",
    "mixer_b16_224",
)
# class and configuration, each with its defaults: the base size of the architecture
TRANSFORMERS = (
    ("BertModel", "BertConfig"),
    ("GPT2LMHeadModel", "GPT2Config"),
    ("ViTForImageClassification", "ViTConfig"),
    ("WhisperForConditionalGeneration", "WhisperConfig"),
    ("T5Model", "T5Config"),
    ("Wav2Vec2Model", "Wav2Vec2Config"),
)

# notes of the report, grouped for the table
REASONS = (
    (r"does not divide the 1 and 1 channels of each", "depthwise"),
    (r"does not divide", "indivisible"),
    (r"^tied to", "tied to an embedding"),
    (r"rows of a table", "embedding"),
    (r"subclass", "subclass"),
    (r"is computed", "computed weight"),
)


def models() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Names, and functions that build the model; the packages that are missing contribute none."""
    yield "phnn resnet50 (standard)", partial(phnn.create_model, "resnet50", widths="standard")
    yield "torch.nn.Transformer", partial(nn.Transformer, batch_first=True)
    for name in TORCHVISION if (torchvision := package("torchvision.models")) else ():
        yield f"torchvision {name}", getattr(torchvision, name)
    for name in TIMM if (timm := package("timm")) else ():
        yield f"timm {name}", partial(timm.create_model, name)
    for name, config in TRANSFORMERS if (transformers := package("transformers")) else ():
        make, default = getattr(transformers, name), getattr(transformers, config)()
        yield f"transformers {name}", partial(make, default)


def package(name: str) -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def allow_torchvision() -> None:
    """Lets its models load beside a torch that its compiled operators were not built for."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)


def reasons(report: Report) -> str:
    """Why layers were left alone, most frequent first."""
    counts = Counter(
        next((word for pattern, word in REASONS if re.search(pattern, entry.note)), entry.note)
        for entry in report.left_alone
    )
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def row(name: str, model: nn.Module, n: int) -> str:
    start = time.process_time()
    report = convert(model, n=n, inplace=True).phnn_report
    seconds = time.process_time() - start
    assert isinstance(report, Report)
    before, after = report.parameters_before, report.parameters_after
    cells = (
        name,
        f"{before / 1e6:.2f} M",
        f"{after / 1e6:.2f} M",
        f"{after / before:.1%}",
        f"{len(report.changed)} of {len(report.entries)}",
        reasons(report),
        f"{seconds:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def table(n: int) -> str:
    head = ("model", "parameters", f"n={n}", "kept", "replaced", "left alone", "CPU s")
    lines = [f"| {' | '.join(head)} |", "|---|--:|--:|--:|--:|---|--:|"]
    for name, make in models():
        lines.append(row(name, make(), n))
        print(lines[-1], flush=True)
    return "\n".join(lines)


def page(n: int) -> str:
    torch.manual_seed(0)
    allow_torchvision()
    rows = table(n)
    found = {name: importlib.metadata.version(name) for name in PACKAGES if package(name)}
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    return f"""# Models that convert

What `phnn.convert(model, n={n})` does to models as their packages define them, with random weights.

- *depthwise*: a convolution with one channel in each group, for which only n = 1 is possible.
- *indivisible*: a layer with a channel count that {n} does not divide, such as three colours.
- *embedding*: a table, whose rows are in no order. A budget converts it, with a linear layer that
  is *tied* to it.
- *subclass*: a subclass of a torch layer, which may do more than its parent.

[Conversion](conversion.md) says what you can do about each. A budget also replaces layers that one
n does not divide.

{rows}

{provenance()}; {versions}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    text = page(options.n)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)


if __name__ == "__main__":
    main()
