"""Tables and pictures of what `worth.py` trained.

    python benchmarks/worth_table.py [--rows results/worth.csv] [--speed results/worth-speed.csv]
        [--out results]

Writes worth.md, and pareto-size and pareto-time as PNG and SVG. Multiplications and times of
inference are those of `worth_speed.py`; without its file, these columns stay empty.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phnn.lab.drawing import assign_colours, save_figure
from phnn.lab.reports import paired_p_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = ("real", "narrow n=4")
SPEED = ("multiplications", "milliseconds")
PREFIXES = ("sweep ", "small ", "rotated ")  # of settings that are not rivals
NONE = "–"  # in a cell without a number


@dataclass(frozen=True)
class Line:
    """A setting over its seeds."""

    name: str
    rows: Sequence[Mapping[str, str]]

    def values(self, column: str) -> dict[int, float]:
        """Return the numbers of a column, by seed."""
        return {int(row["seed"]): float(row[column]) for row in self.rows if row[column]}

    @property
    def accuracies(self) -> dict[int, float]:
        """Percent on the test images, by seed."""
        return {seed: 100 * value for seed, value in self.values("test_accuracy").items()}

    @property
    def accuracy(self) -> float:
        """The mean over the seeds."""
        return statistics.mean(self.accuracies.values())

    @property
    def deviation(self) -> float | None:
        """The standard deviation over the seeds; None with one run."""
        values = list(self.accuracies.values())
        return statistics.stdev(values) if len(values) > 1 else None

    def mean(self, column: str) -> float:
        """Return the mean of a column over the seeds."""
        return statistics.mean(self.values(column).values())


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def group(rows: Iterable[dict[str, str]]) -> list[Line]:
    """Gather the rows of each setting that have a result, in the order of the file."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if not row["error"]:
            found.setdefault(row["setting"], []).append(row)
    return [Line(name, members) for name, members in found.items()]


def spread(line: Line) -> str:
    spread = "" if line.deviation is None else f" ± {line.deviation:.2f}"
    return f"{line.accuracy:.2f}{spread}"


def p_values(line: Line, lines: Mapping[str, Line]) -> list[str]:
    """Return the p-values of paired t-tests against the baselines."""
    cells = []
    for name in BASELINES:
        other = lines.get(name)
        same = other is None or other.name == line.name
        p = None if same else paired_p_value(line.accuracies, other.accuracies)  # type: ignore[union-attr]
        cells.append(NONE if p is None else f"{p:.3f}")
    return cells


def render(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    align = "|" + "|".join(["---"] + ["---:"] * (len(head) - 1)) + "|"
    rows = ["| " + " | ".join(row) + " |" for row in [head, *body]]
    return "\n".join([rows[0], align, *rows[1:]])


def rivals_table(lines: Sequence[Line], speed: Mapping[str, Mapping[str, str]]) -> str:
    by_name = {line.name: line for line in lines}
    head = ["network", "parameters", "file kB", "multiplications", "inference ms", "epochs"]
    head += ["training, processor s", "accuracy %", "seeds", "p against real", "against narrow"]
    body = [
        [
            line.name,
            f"{line.mean('parameters'):,.0f}",
            f"{line.mean('storage_bytes') / 1000:,.0f}",
            *(speed.get(line.name, {}).get(column, NONE) for column in SPEED),
            f"{line.mean('epochs'):.0f}",
            f"{line.mean('train_processor_seconds'):,.0f}",
            spread(line),
            str(len(line.accuracies)),
            *p_values(line, by_name),
        ]
        for line in lines
    ]
    return render(head, body)


def sweep_table(lines: Sequence[Line]) -> str:
    """Show validation accuracies alone: rates are not chosen by the test images."""
    body = [
        [line.name.removeprefix("sweep "), f"{100 * line.mean('val_accuracy'):.2f}"]
        for line in lines
    ]
    return render(["setting", "validation accuracy %"], body)


def small_table(lines: Sequence[Line]) -> str:
    return render(
        ["setting", "parameters", "accuracy %", "seeds"],
        [
            [
                line.name.split(" ", 1)[1],
                f"{line.mean('parameters'):,.0f}",
                spread(line),
                str(len(line.accuracies)),
            ]
            for line in lines
        ],
    )


def draw(lines: Sequence[Line], sizes: Mapping[str, float], label: str) -> Figure:
    """Draw accuracy against a cost; the line joins the networks that no other beats in both."""
    from matplotlib.figure import Figure

    known = [line for line in lines if line.name in sizes]
    colours = assign_colours(line.name for line in lines)
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for line in known:
        x, colour = sizes[line.name], colours[line.name]
        axes.errorbar(x, line.accuracy, line.deviation, color=colour, marker="o", capsize=4)
        axes.annotate(line.name, (x, line.accuracy), (6, 4), textcoords="offset points", fontsize=8)
    best: list[Line] = []
    for line in sorted(known, key=lambda each: (sizes[each.name], -each.accuracy)):
        if not best or line.accuracy > best[-1].accuracy:
            best.append(line)
    steps = [sizes[line.name] for line in best], [line.accuracy for line in best]
    axes.plot(*steps, "--", color="0.6", zorder=0)
    axes.set(xlabel=label, ylabel="accuracy on CIFAR-10 in %")
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=Path, default=Path("results/worth.csv"))
    parser.add_argument("--speed", type=Path, default=Path("results/worth-speed.csv"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    lines = group(read(options.rows))
    speed = {row["setting"]: row for row in read(options.speed)} if options.speed.exists() else {}
    kinds: dict[str, list[Line]] = {prefix: [] for prefix in PREFIXES}
    rivals: list[Line] = []
    for line in lines:
        kinds.get(f"{line.name.split()[0]} ", rivals).append(line)
    text = ["# Is it worth it?", ""]
    text += ["<!-- record: python benchmarks/worth_table.py -->", ""]
    text += ["From [worth.csv](worth.csv), which has seeds, commits and options of each run.", ""]
    sections = {
        "Rivals": rivals and rivals_table(rivals, speed),
        "Rates": kinds["sweep "] and sweep_table(kinds["sweep "]),
        "Fewer images": kinds["small "] and small_table(kinds["small "]),
        "Forty classes": kinds["rotated "] and small_table(kinds["rotated "]),
    }
    for title, content in sections.items():
        if content:
            text += [f"## {title}", "", str(content), ""]
    (options.out / "worth.md").write_text("\n".join(text), encoding="utf-8")
    written = [options.out / "worth.md"]
    if rivals:
        sizes = {line.name: line.mean("storage_bytes") / 1000 for line in rivals}
        written += save_figure(draw(rivals, sizes, "file in kB"), options.out, "pareto-size")
        times = {name: float(row["milliseconds"]) for name, row in speed.items()}
        if times:
            figure = draw(rivals, times, "inference in ms")
            written += save_figure(figure, options.out, "pareto-time")
    print("wrote", *written, sep="\n  ")


if __name__ == "__main__":
    main()
