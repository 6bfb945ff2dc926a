"""A PH convolution against the real one and against the textbook construction, in one run.

The textbook construction is what the paper's equation says literally, and what published code does:
the n Kronecker products are formed as one n times larger broadcast product, then summed.

    python benchmarks/layers.py [--out results/layers.md]
    python benchmarks/layers.py --assembly [--out results/assembly.md]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import phnn
from measure import peak_memory, provenance
from phnn.functional import kronecker_sum
from phnn.runtimes.timing import interleave, median_ratio

WIDTHS = (64, 128, 256, 512)
DIMENSIONS = (1, 2, 3, 4, 8, 16)


def textbook_kronecker_sum(A: Tensor, F: Tensor) -> Tensor:
    terms, n, _ = A.shape
    blocks: Tensor = F.unflatten(0, (terms, -1))
    kernel = (1,) * (F.dim() - 2)
    products = A.reshape(terms, n, 1, n, 1, *kernel) * blocks[:, None, :, None]
    return products.sum(0).flatten(0, 1).flatten(1, 2)


class TextbookConv2d(phnn.PHConv2d):
    """The same layer, assembled the literal way."""

    def forward(self, input: Tensor) -> Tensor:
        """Applies the layer."""
        H = textbook_kronecker_sum(self.A, self.F)
        return nn.functional.conv2d(input, H, self.bias, self.stride, self.padding)


def forward(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    def call() -> None:
        with torch.no_grad():
            layer(x)

    return call


def training_step(layer: nn.Module, x: Tensor, gradient: Tensor) -> Callable[[], object]:
    """Forward and backward, with the input's gradient as inside a network."""
    x = x.clone().requires_grad_()

    def call() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x).backward(gradient)

    return call


def measure(n: int, width: int, batch: int, size: int, rounds: int) -> dict[str, float]:
    width -= width % n
    layers: dict[str, nn.Module] = {
        "real": nn.Conv2d(width, width, 3, padding=1),
        "PH": phnn.PHConv2d(width, width, 3, padding=1, n=n),
        "textbook": TextbookConv2d(width, width, 3, padding=1, n=n),
    }
    x = torch.randn(batch, width, size, size)
    gradient = torch.randn_like(x)
    A, F = layers["PH"].A, layers["PH"].F
    with torch.no_grad():
        assert isinstance(A, Tensor)
        assert isinstance(F, Tensor)
        torch.testing.assert_close(kronecker_sum(A, F), textbook_kronecker_sum(A, F))
        assembly = interleave(
            {
                "PH": lambda: kronecker_sum(A, F),
                "textbook": lambda: textbook_kronecker_sum(A, F),
            },
            rounds=3 * rounds,
            seconds=0.3,
        )
    inference = interleave({name: forward(layer, x) for name, layer in layers.items()}, rounds)
    steps = {name: training_step(layer, x, gradient) for name, layer in layers.items()}
    training = interleave(steps, rounds)
    row = {
        "n": n,
        "width": width,
        "assembly": assembly["textbook"] / assembly["PH"],
        "inference": inference["PH"] / inference["real"],
        "inference textbook": inference["textbook"] / inference["real"],
        "training": training["PH"] / training["real"],
        "training median": median_ratio(steps["PH"], steps["real"], rounds),
        "training textbook": training["textbook"] / training["real"],
    }
    for name, step in steps.items():
        row[f"memory {name}"] = (peak_memory(step) or float("nan")) / 2**20
    return row


def measure_assembly(n: int, width: int) -> dict[str, float]:
    """Microseconds of H alone, the least of a second of calls that take turns."""
    layer = phnn.PHConv2d(width - width % n, width - width % n, 3, n=n)
    A, F = layer.A, layer.F
    assert isinstance(A, Tensor)
    assert isinstance(F, Tensor)
    with torch.no_grad():
        torch.testing.assert_close(kronecker_sum(A, F), textbook_kronecker_sum(A, F))
        times = interleave(
            {
                "ours": lambda: kronecker_sum(A, F),
                "textbook": lambda: textbook_kronecker_sum(A, F),
            },
            seconds=1.0,
        )
    return {"n": n, "width": width - width % n, **times}


def render_assembly(rows: list[dict[str, float]], made_by: str) -> str:
    lines = [
        "# The assembly of H, compared with the textbook",
        "",
        "<!-- record: python benchmarks/layers.py --assembly -->",  # see tools/claims.py
        "",
        made_by,
        "",
        "The weight of a 3×3 convolution with equal input and output channels, float32, without "
        "gradients: the least time of calls that take turns for a second.",
        "",
        "| n | channels | ours, µs | textbook, µs | textbook / ours |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        ours, textbook = row["ours"], row["textbook"]
        cells = (row["n"], row["width"], f"{1e6 * ours:.1f}", f"{1e6 * textbook:.1f}")
        lines.append(f"| {' | '.join(map(str, cells))} | {textbook / ours:.2f} |")
    return "\n".join(lines) + "\n"


def render(rows: list[dict[str, float]], batch: int, size: int, made_by: str) -> str:
    head = (
        "| n | channels | assembly of H: textbook / ours | forward / real: ours | textbook "
        "| step / real: ours | (median) | textbook | peak MiB of a step: real | ours | textbook |"
    )
    lines = [
        "# A PH convolution, compared with the real one",
        "",
        "<!-- record: python benchmarks/layers.py -->",  # see tools/claims.py
        "",
        made_by,
        "",
        "3×3 convolution with equal input and output channels (the nearest number that n divides), "
        f"batch {batch}, {size}×{size}, float32. Ratios of the least times of interleaved rounds. "
        "A step is forward and backward. (median) is the median ratio of neighbouring "
        "measurements.",
        "",
        head,
        "|" + "---|" * 11,
    ]
    for row in rows:
        ratios = [
            row[key]
            for key in (
                "assembly",
                "inference",
                "inference textbook",
                "training",
                "training median",
                "training textbook",
            )
        ]
        memory = [row[f"memory {name}"] for name in ("real", "PH", "textbook")]
        cells = [f"{row['n']}", f"{row['width']}", *(f"{value:.2f}" for value in ratios)]
        cells += [f"{value:.0f}" for value in memory]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="also write the table here, row by row")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--assembly", action="store_true", help="measure the assembly alone")
    options = parser.parse_args()
    rows, made_by = [], provenance()  # before the table that it stands in makes the commit dirty
    for width in options.widths:
        for n in DIMENSIONS:
            if options.assembly:
                rows.append(measure_assembly(n, width))
                table = render_assembly(rows, made_by)
            else:
                rows.append(measure(n, width, options.batch, options.size, options.rounds))
                table = render(rows, options.batch, options.size, made_by)
            print(" ".join(f"{key}={value:.3g}" for key, value in rows[-1].items()), flush=True)
            if options.out:
                options.out.write_text(table)
    print(table)


if __name__ == "__main__":
    main()
