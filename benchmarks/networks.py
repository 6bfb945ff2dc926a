"""Whole networks against the real ones: time, multiplications and memory, in one run each.

The forms of a network take turns, so that their ratios hold on a busy machine, too: the real one;
the real one with its batch norms fused and its channels last, the best that plain torch does for
it; the real one accelerated, as far as that goes without an algebra; PH layers by the textbook
construction, as this library assembles them, folded, accelerated (if compiled, also for an input
with channels last), and of rank n; convolutions of low rank with as many parameters, and, unless
compiled, those of tltorch where `pip install tensorly-torch` has been run.

    python benchmarks/networks.py [--only "vgg16*batch 16*"] [--compile] [--threads 2]
    python benchmarks/networks.py --markdown > results/networks.md

The rows of each setting are appended to the table when it is done. Forms that are there already are
not measured again, but for the real one, with which others are compared.
"""

from __future__ import annotations

import argparse
import copy
import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import phnn
from layers import TextbookConv2d
from low_rank import factorized, low_rank
from measure import peak_memory, provenance
from phnn.acceleration.contest import compete
from phnn.models.registry import MODELS
from phnn.runtimes import Eager

DIMENSIONS = (2, 3, 4, 8)
BATCHES = (1, 16)
FACTORIZATIONS = {"CP, tltorch": "cp", "Tucker, tltorch": "tucker"}
FORMS = (
    "real",
    "real, tuned",
    "real, accelerated",
    "textbook",
    "assembled",
    "folded",
    "accelerated",
    "accelerated, last",
    "rank n",
    "low rank",
    *FACTORIZATIONS,
)  # in the order of the table
TRAINED = ("real", "textbook", "assembled", "rank n", "low rank", *FACTORIZATIONS)
# name in the table, name of the network, options, shape of an input
CASES: tuple[tuple[str, str, dict[str, Any], tuple[int, ...]], ...] = (
    ("resnet18", "resnet18", {}, (3, 32, 32)),
    ("resnet50", "resnet50", {}, (3, 32, 32)),
    ("vgg16", "vgg16", {}, (3, 32, 32)),
    ("sednet", "sednet", {}, (8, 256, 400)),
    (
        "resnet50 imagenet",
        "resnet50",
        {"widths": "standard", "stem": "imagenet", "num_classes": 1000},
        (3, 224, 224),
    ),
)


@dataclass(frozen=True)
class Setting:
    """What one comparison is about."""

    case: str
    name: str
    options: dict[str, Any]
    shape: tuple[int, ...]
    batch: int
    n: int
    compiled: bool

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        mode = "compiled" if self.compiled else "eager"
        return f"{self.case} {size} batch {self.batch} n={self.n} {mode}"

    def create(self, **options: Any) -> nn.Module:
        """The network, by default the real one."""
        return phnn.create_model(self.name, **self.options, **options).eval()


def settings(compiled: bool) -> Iterator[Setting]:
    """All of them; with the standard widths where n does not divide the paper's."""
    for (case, name, options, shape), n, batch in product(CASES, DIMENSIONS, BATCHES):
        for widths in (options.get("widths"), "standard"):
            chosen = options if widths is None else {**options, "widths": widths}
            setting = Setting(case, name, chosen, shape, batch, n, compiled)
            try:
                with torch.device("meta"):
                    setting.create(n=n)
            except ValueError:
                continue
            yield setting
            break


def textbook(model: nn.Module) -> nn.Module:
    """A copy whose convolutions are assembled the literal way."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if type(module) is phnn.PHConv2d:
            module.__class__ = TextbookConv2d
    return model


def forms(setting: Setting, x: Tensor, rounds: int) -> dict[str, Callable[[], nn.Module]]:
    """What makes each form of a network; it takes minutes for some."""
    real, assembled = setting.create(), setting.create(n=setting.n)
    last = torch.channels_last

    def tune() -> nn.Module:
        tuned = phnn.to_dense(real, fuse=True, example_input=x)
        return tuned.to(memory_format=last)  # type: ignore[call-overload, no-any-return]

    made: dict[str, Callable[[], nn.Module]] = {
        "real": lambda: real,
        "real, tuned": tune,
        "real, accelerated": lambda: phnn.accelerate(setting.create(n=1), x, rounds=rounds),
        "textbook": lambda: textbook(assembled),
        "assembled": lambda: assembled,
        "folded": lambda: phnn.to_dense(assembled, fuse=True, example_input=x),
        "accelerated": lambda: phnn.accelerate(assembled, x, rounds=rounds),
    }
    if setting.compiled:  # which turns to channels last what is not, in every call
        x_last = x.to(memory_format=last)
        made["accelerated, last"] = lambda: phnn.accelerate(assembled, x_last, rounds=rounds)
    if "rank" in signature(MODELS[setting.name]).parameters:
        made["rank n"] = lambda: setting.create(n=setting.n, rank=setting.n)
    made["low rank"] = lambda: low_rank(copy.deepcopy(real), n=setting.n, start="random").eval()
    # compiled, those of tltorch fall into hundreds of graphs, and take half an hour
    if find_spec("tltorch") is not None and not setting.compiled:
        for name, kind in FACTORIZATIONS.items():
            made[name] = partial(factorize, real, kind, setting.n)
    return made


def factorize(real: nn.Module, kind: str, n: int) -> nn.Module:
    """A copy with the layers of tltorch that have as many parameters."""
    return factorized(copy.deepcopy(real), kind, n=n, start="random").eval()


def measure(setting: Setting, rounds: int, done: set[str]) -> list[dict[str, Any]]:
    """A row for each form of a network that is not done, measured beside the real one."""
    torch.manual_seed(0)
    x = torch.randn(setting.batch, *setting.shape)
    wanted = {
        name: make
        for name, make in forms(setting, x, rounds).items()
        if name not in done or name == "real"
    }
    if wanted.keys() <= done:
        return []
    print(setting, flush=True)
    models = {name: make() for name, make in wanted.items()}
    # batch norms need more than one sample
    trained = [name for name in TRAINED if name in models] if setting.batch > 1 else []
    if trained == ["real"]:
        trained = []
    runtime = "compile" if setting.compiled else "torch"
    results = compete(models, x, trained, rounds, runtime)
    real = results[0]
    rows = []
    for result in results:
        if result.name in done:
            continue
        model = models[result.name]
        step, inference = result.training, Eager().prepare(model, [((x,), {})])
        rows.append(
            {
                "setting": str(setting),
                "network": setting.case,
                "widths": setting.options.get("widths", "paper"),
                "batch": setting.batch,
                "n": setting.n,
                "mode": "compiled" if setting.compiled else "eager",
                "form": result.name,
                "parameters": result.parameters,
                "multiplications": result.multiplications,
                "inference ms": f"{1e3 * result.inference:.3f}",
                "real inference ms": f"{1e3 * real.inference:.3f}",  # in this run
                "inference / real": f"{result.inference / real.inference:.3f}",
                "training ms": _milliseconds(step),
                "real training ms": "" if step is None else _milliseconds(real.training),
                "training / real": _ratio(step, real.training),
                "inference peak MiB": _memory(inference, setting.compiled),
                "training peak MiB": _training_memory(model, x, step, setting.compiled),
                "threads": torch.get_num_threads(),
                "made by": provenance(),
            }
        )
    return rows


def _milliseconds(time: float | None) -> str:
    return "" if time is None else f"{1e3 * time:.3f}"


def _ratio(time: float | None, reference: float | None) -> str:
    return "" if time is None or reference is None else f"{time / reference:.3f}"


def _training_memory(model: nn.Module, x: Tensor, step: float | None, compiled: bool) -> str:
    if step is None:
        return ""
    model.train()
    memory = _memory(Eager().prepare_step(model, ((x,), {})), compiled)
    model.eval().zero_grad()
    return memory


def _memory(call: Callable[[], object], compiled: bool) -> str:
    """Of the model as it is: the table of compiled ones leaves memory out."""
    peak = None if compiled else peak_memory(call)
    return "" if peak is None else f"{peak / 2**20:.1f}"


def append(rows: list[dict[str, Any]], out: Path) -> None:
    if not rows:
        return
    is_new = not out.exists()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def read(out: Path) -> list[dict[str, str]]:
    if not out.exists():
        return []
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def markdown(rows: list[dict[str, str]]) -> str:
    """Ratios at a glance, everything that was measured, and what made it."""
    text = "# Networks against the real ones\n"
    for mode in ("eager", "compiled"):
        chosen = [row for row in rows if row["mode"] == mode]
        if chosen:
            mark = "<!-- claims networks.csv by setting -->"  # see tools/claims.py
            text += f"\n## Time, {mode}, real network = 1\n\n{mark}\n\n{ratios(chosen)}\n"
    head = [
        name
        for name in rows[0]
        if name not in ("setting", "made by") and any(r[name] for r in rows)
    ]
    made_by = "\n".join(f"- {how}" for how in dict.fromkeys(row["made by"] for row in rows))
    table = _table(head, ([row[name] for name in head] for row in rows))
    mark = "<!-- claims networks.csv -->"
    return f"{text}\n## All that was measured\n\n{mark}\n\n{table}\n\n{made_by}\n"


def ratios(rows: list[dict[str, str]]) -> str:
    """A line for each setting: inference in each form, then a step of training."""
    measured: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows:
        measured.setdefault(row["setting"], {})[row["form"]] = row
    forms = sorted({row["form"] for row in rows} - {"real"}, key=FORMS.index)
    trained = [name for name in forms if name in TRAINED]
    cases = [case for case, *_ in CASES]

    def place(found: dict[str, dict[str, str]]) -> tuple[int, int, int]:
        real = found["real"]
        return cases.index(real["network"]), -int(real["batch"]), int(real["n"])

    lines = []
    for found in sorted(measured.values(), key=place):
        real = found["real"]
        line = [real["network"], real["n"], real["batch"]]
        for key, columns in (("inference / real", forms), ("training / real", trained)):
            line += [found.get(form, {}).get(key, "") for form in columns]
        lines.append(line)
    head = ["network", "n", "batch", *forms, *(f"training: {name}" for name in trained)]
    return _table(head, lines)


def _table(head: list[str], lines: Iterable[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("results/networks.csv"))
    parser.add_argument("--only", default="*", help="pattern of the settings to measure")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="compile every form")
    parser.add_argument("--list", action="store_true", help="print the settings alone")
    parser.add_argument("--markdown", action="store_true", help="print the table that there is")
    options = parser.parse_args()
    if options.markdown:
        rows = read(options.out)
        if not rows:
            parser.error(f"{options.out} holds no rows")
        print(markdown(rows), end="")
        return
    torch.set_num_threads(options.threads)
    rows = read(options.out)
    threads = {row["threads"] for row in rows} | {str(options.threads)}
    if len(threads) > 1:
        counts = " and ".join(sorted(threads))
        parser.error(f"{options.out} would hold times of {counts} threads; give another --out")
    done: dict[str, set[str]] = {}
    for row in rows:
        done.setdefault(row["setting"], set()).add(row["form"])
    for setting in settings(options.compile):
        if not fnmatchcase(str(setting), options.only):
            continue
        if options.list:
            print(setting)
            continue
        made = measure(setting, options.rounds, done.get(str(setting), set()))
        for row in made:
            print(
                f"  {row['form']:12} {row['inference / real']} {row['training / real']}", flush=True
            )
        append(made, options.out)


if __name__ == "__main__":
    main()
