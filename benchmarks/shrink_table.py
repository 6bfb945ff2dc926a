"""A page and a picture of what `shrink.py` measured.

    python benchmarks/shrink_table.py [--rows results/shrink.csv] [--out results]

Writes shrink.md, and shrink as PNG and SVG: the score against the size, one panel for each network.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phnn.lab.drawing import assign_colours, save_figure
from phnn.lab.tables import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, str]
SCORES = {
    "resnet20": "accuracy on CIFAR-10, %",
    "resnet56": "accuracy on CIFAR-10, %",
    "crepe": "raw pitch accuracy",
    "minilm": "mean cosine with the original",
}
NONE = "–"  # in a cell without a number


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cell(rows: Sequence[Row], digits: int) -> str:
    """Return the mean score, with the deviation and the number of seeds where there are several."""
    if not rows:
        return NONE
    scores = [float(row["score"]) for row in rows]
    mean = f"{statistics.mean(scores):.{digits}f}"
    if len(scores) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(scores):.{digits}f} ({len(scores)})"


def table(network: str, rows: Sequence[Row], steps: str) -> str:
    """Return the scores of all methods at all budgets."""
    chosen = [row for row in rows if row["network"] == network and row["steps"] == steps]
    budgets = sorted({float(row["budget"]) for row in chosen if row["method"] != "original"})
    methods = list(dict.fromkeys(row["method"] for row in chosen if row["method"] != "original"))
    digits = 2 if network.startswith("resnet") else 3
    head = ["method", *(f"{budget:g}" for budget in reversed(budgets))]
    body = [
        [method]
        + [
            cell(
                [r for r in chosen if r["method"] == method and float(r["budget"]) == budget],
                digits,
            )
            for budget in reversed(budgets)
        ]
        for method in methods
    ]
    return render(head, body, "markdown")


def draw(rows: Sequence[Row]) -> Figure:
    """Draw scores without fine-tuning against the share of parameters."""
    from matplotlib.figure import Figure

    plain = [row for row in rows if row["steps"] == "0"]
    networks = list(dict.fromkeys(row["network"] for row in plain))
    methods = list(dict.fromkeys(r["method"] for r in plain if r["method"] != "original"))
    colours = assign_colours(["original", *methods])
    figure = Figure(figsize=(5.2 * len(networks), 4.6), layout="constrained")
    panels = figure.subplots(1, len(networks), squeeze=False)[0]
    for panel, network in zip(panels, networks, strict=True):
        ours = [row for row in plain if row["network"] == network]
        for row in ours:
            if row["method"] == "original":
                panel.axhline(float(row["score"]), color=colours["original"], ls=":", lw=1)
        for number, method in enumerate(methods):
            points = sorted(
                (float(r["share"]), float(r["score"])) for r in ours if r["method"] == method
            )
            if points:
                panel.plot(
                    *zip(*points, strict=True),
                    color=colours[method],
                    marker="osD^vP*Xh"[number % 9],
                    ls="-" if number == 0 else "--",
                    lw=2 if number == 0 else 1,
                    label=method,
                )
        panel.set_title(network)
        panel.set_xlabel("share of the parameters")
        panel.set_ylabel(SCORES.get(network, "score"))
        panel.set_xlim(0, 1)
        panel.grid(alpha=0.3)
    handles = {h.get_label(): h for p in panels for h in p.get_legend_handles_labels()[0]}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return figure


def write_page(rows: Sequence[Row]) -> str:
    """Return the page."""
    parts = [
        "# Trained networks made smaller",
        "<!-- record: python benchmarks/shrink_table.py -->",
        "What networks that others trained keep at a share of their parameters, by "
        "`benchmarks/shrink.py`. Every method sees the same 1,024 inputs without labels. "
        "One draw of these inputs unless a cell names more seeds: mean ± deviation (seeds).",
        "![Score against size](shrink.png)",
    ]
    for network in dict.fromkeys(row["network"] for row in rows):
        ours = [row for row in rows if row["network"] == network]
        original = next(row["score"] for row in ours if row["method"] == "original")
        what = SCORES.get(network, "score")
        parts += [f"## {network}", f"Original: {float(original):g} ({what})."]
        for steps in sorted({row["steps"] for row in ours}, key=int):
            if steps != "0":
                parts.append(f"After {steps} steps of distillation, batches of 128 without labels:")
            parts.append(table(network, ours, steps))
    runs = dict.fromkeys(f"- {row['commit']} · {row['made by']}" for row in rows)
    parts += ["## Runs", "\n".join(runs)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=Path, default=Path("results/shrink.csv"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    rows = read(options.rows)
    save_figure(draw(rows), options.out, "shrink")
    (options.out / "shrink.md").write_text(write_page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
