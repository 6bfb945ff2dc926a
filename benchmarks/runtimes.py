"""Networks in the runtimes that people deploy in: time, file, load, memory; real, PH, low rank.

Every row is one network in one form, in one runtime, for one batch. The forms of a setting take
turns, and the least time counts. "real" is the real network at its best there: batch norms fused,
in the better memory format, with the runtime's own optimizations; "real, again" is the same file
once more, so that its ratio is the noise. "real, Winograd" is the real network with the Winograd
forms of this library, in torch alone. Rows are written as they come; a second call goes on.
With --cache, networks and files that need no quiet are made by a call with --prepare before.

    python benchmarks/runtimes.py --out results/runtimes.csv [--only "vgg16*onnxruntime*"]
    python benchmarks/runtimes.py --markdown results/runtimes.csv > results/runtimes.md
"""

from __future__ import annotations

import argparse
import copy
import csv
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import phnn
from low_rank import low_rank
from measure import peak_memory, provenance
from phnn.functional._formats import put_channels_last
from phnn.runtimes import GraphRuntime, Runtime, find_runtime

FIELDS = (
    "setting", "network", "batch", "runtime", "form", "ms", "/ real", "file MB", "load ms",
    "peak MiB", "provenance",
)  # fmt: skip
RUNTIMES = ("onnxruntime", "openvino", "torch")
BATCHES = (16, 1)
IMAGENET = {"widths": "standard", "stem": "imagenet", "num_classes": 1000}


def zoo(name: str, **options: Any) -> tuple[nn.Module, nn.Module]:
    """A network of this library, real and with n = 4."""
    return phnn.create_model(name, **options), phnn.create_model(name, n=4, **options)


def shrunk() -> tuple[nn.Module, nn.Module]:
    """A network fitted to data with 0.3 of the parameters and half of the multiplications."""
    real = phnn.create_model("resnet18").eval()
    images = torch.randn(64, 3, 32, 32)
    return real, phnn.convert(real, budget=0.3, compute=0.5, calibration=images)


def foreign(name: str) -> tuple[nn.Module, nn.Module]:
    """A model of timm, and what conversion with n = 4 makes of it."""
    import timm

    real = timm.create_model(name).eval()
    return real, phnn.convert(real, n=4, start="random")


def transformer() -> tuple[nn.Module, nn.Module]:
    """A small encoder of torch, and what conversion with n = 4 makes of it."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    real = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    return real, phnn.convert(real, n=4, start="random")


Make = Callable[[], tuple[nn.Module, nn.Module]]
CASES: dict[str, tuple[Make, tuple[int, ...]]] = {
    "vgg16": (lambda: zoo("vgg16"), (3, 32, 32)),
    "resnet18": (lambda: zoo("resnet18"), (3, 32, 32)),
    "resnet50": (lambda: zoo("resnet50"), (3, 32, 32)),
    "resnet50 224": (lambda: zoo("resnet50", **IMAGENET), (3, 224, 224)),
    "sednet": (lambda: zoo("sednet"), (8, 256, 400)),
    "resnet18 shrunk": (shrunk, (3, 32, 32)),
    "transformer": (transformer, (64, 256)),
}
if find_spec("timm") is not None:
    CASES["timm convnext_nano"] = (lambda: foreign("convnext_nano"), (3, 224, 224))


@dataclass(frozen=True)
class Setting:
    """What one comparison is about."""

    case: str
    batch: int
    runtime: str

    def __str__(self) -> str:
        return f"{self.case} batch {self.batch} {self.runtime}"


@dataclass
class Loaded:
    """A form as it runs.

    Attributes:
        run: Runs it once.
        size: Bytes of its file.
        load: Seconds to load it.
        peak: Bytes of memory to load it and to run it once.
    """

    run: Callable[[], object]
    size: int
    load: float
    peak: int | None


def load_graph(runtime: GraphRuntime, file: Path, x: Tensor) -> Loaded:
    start = time.perf_counter()
    run = runtime.load(file)
    seconds = time.perf_counter() - start
    inputs = [x.numpy()]
    peak = peak_memory(lambda: runtime.load(file)(inputs))
    return Loaded(lambda: run(inputs), file.stat().st_size, seconds, peak)


def load_module(runtime: Runtime, module: nn.Module, file: Path, x: Tensor) -> Loaded:
    torch.save(module, file)
    start = time.perf_counter()
    torch.load(file, weights_only=False)
    seconds = time.perf_counter() - start
    run = runtime.prepare(module, [((x,), {})])
    return Loaded(run, file.stat().st_size, seconds, peak_memory(run))


def make_networks(case: str, cache: Path) -> dict[str, nn.Module]:
    """The real network, the PH one, and one of low rank with as many parameters."""
    file = cache / f"{case}.pt"
    if not file.exists():
        torch.manual_seed(0)
        real, ph = CASES[case][0]()
        few = low_rank(copy.deepcopy(real), n=4, start="random")
        networks = {"real": real, "PH": ph, "low rank": few}
        torch.save({name: model.eval() for name, model in networks.items()}, file)
    found: dict[str, nn.Module] = torch.load(file, weights_only=False)
    return found


def fuse_networks(networks: Mapping[str, nn.Module], x: Tensor) -> dict[str, nn.Module]:
    """The same as plain layers with batch norms in them."""
    names = {"real": "real", "folded": "PH", "low rank": "low rank"}
    return {
        form: phnn.to_dense(networks[name], fuse=True, example_input=x)
        for form, name in names.items()
    }


def write_files(setting: Setting, x: Tensor, cache: Path) -> dict[str, Path]:
    """The graphs that need no acceleration; all runtimes have the same."""
    forms = ("real", "folded", "low rank")
    files = {form: cache / f"{setting.case} {setting.batch} {form}.onnx" for form in forms}
    if not all(file.exists() for file in files.values()):
        for form, model in fuse_networks(make_networks(setting.case, cache), x).items():
            phnn.export(model, files[form], x, dynamic_batch=False)
    return files


def load_forms(setting: Setting, x: Tensor, rounds: int, cache: Path) -> dict[str, Loaded]:
    networks = make_networks(setting.case, cache)
    ph, runtime = networks["PH"], find_runtime(setting.runtime)
    if isinstance(runtime, GraphRuntime):
        files = write_files(setting, x, cache)
        path = cache / f"{setting} accelerated.onnx"
        exported = phnn.export(ph, path, x, runtime=runtime, dynamic_batch=False)
        print(exported.acceleration)
        files["accelerated"] = exported.path
        loaded = {name: load_graph(runtime, file, x) for name, file in files.items()}
        return {**loaded, "real, again": load_graph(runtime, files["real"], x)}
    models = fuse_networks(networks, x)
    models["real, again"] = models["real"]
    models["accelerated"] = phnn.accelerate(ph, x, runtime=runtime, rounds=rounds)
    print(models["accelerated"].phnn_report)
    one = phnn.convert(networks["real"], n=1, start="random").eval()
    models["real, Winograd"] = phnn.accelerate(one, x, runtime=runtime, rounds=rounds)
    if x.dim() == 4:  # the better of both formats counts
        models["real, last"] = copy.deepcopy(models["real"]).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    found = {}
    for name, model in models.items():
        here = put_channels_last(x) if name == "real, last" else x
        found[name] = load_module(runtime, model, cache / f"{setting} model.pt", here)
    return found


def draw(setting: Setting) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(setting.batch, *CASES[setting.case][1])


def measure(setting: Setting, rounds: int, least: float, cache: Path) -> Iterator[dict[str, Any]]:
    loaded = load_forms(setting, draw(setting), rounds, cache)
    runtime = find_runtime(setting.runtime)
    calls = {name: form.run for name, form in loaded.items()}
    seconds = runtime.time(calls, rounds, seconds=least)
    last = seconds.pop("real, last", None)
    if last is not None and last < seconds["real"]:
        noise = seconds["real, again"] / seconds["real"]
        seconds["real"], seconds["real, again"] = last, last * noise
    for name, found in seconds.items():
        form = loaded[name]
        yield {
            "setting": str(setting),
            "network": setting.case,
            "batch": setting.batch,
            "runtime": setting.runtime,
            "form": name,
            "ms": f"{1e3 * found:.3f}",
            "/ real": f"{found / seconds['real']:.3f}",
            "file MB": f"{form.size / 1e6:.2f}",
            "load ms": f"{1e3 * form.load:.0f}",
            "peak MiB": "" if form.peak is None else f"{form.peak / 2**20:.0f}",
            "provenance": f"{provenance()}, {runtime.name} {runtime.version}",
        }


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def render(rows: list[dict[str, str]]) -> str:
    """A table with a line for each setting, and the commands that made it."""
    forms = ("real, again", "real, Winograd", "folded", "accelerated", "low rank")
    settings = {row["setting"]: {} for row in rows}  # type: dict[str, dict[str, dict[str, str]]]
    for row in rows:
        settings[row["setting"]][row["form"]] = row
    head = ["network", "batch", "runtime", "real ms", *forms, "file MB: real, PH, low rank"]
    head += ["load ms: real, PH", "peak MiB: real, PH"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for found in settings.values():
        real, fast, few = (found[name] for name in ("real", "accelerated", "low rank"))
        cells = [real["network"], real["batch"], real["runtime"], real["ms"]]
        cells += [found[form]["/ real"] if form in found else "" for form in forms]
        cells += [", ".join(form["file MB"] for form in (real, fast, few))]
        cells += [f"{real[key]}, {fast[key]}" for key in ("load ms", "peak MiB")]
        lines.append(f"| {' | '.join(cells)} |")
    sources = dict.fromkeys(row["provenance"] for row in rows)
    return "\n".join([*lines, "", *(f"- {source}" for source in sources)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("runtimes.csv"))
    parser.add_argument("--only", default="*", help='such as "vgg16 batch 1 *"')
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of all forms together")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no setting after them")
    parser.add_argument("--cache", type=Path, help="a folder to keep networks and files in")
    parser.add_argument("--prepare", action="store_true", help="fill the cache, time nothing")
    parser.add_argument("--markdown", type=Path, help="print the table of a CSV file")
    arguments = parser.parse_args()
    if arguments.markdown is not None:
        print(render(read(arguments.markdown)))
        return
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        cache = arguments.cache or Path(folder)
        cache.mkdir(parents=True, exist_ok=True)
        done = {row["setting"] for row in read(arguments.out)}
        settings = [
            setting
            for setting in itertools.starmap(Setting, product(CASES, BATCHES, RUNTIMES))
            if str(setting) not in done and fnmatch(str(setting), arguments.only)
        ]
        if arguments.prepare:
            for setting in settings:
                write_files(setting, draw(setting), cache)
            return
        end = time.monotonic() + 60 * arguments.minutes
        for setting in itertools.takewhile(lambda _: time.monotonic() < end, settings):
            print(setting, flush=True)
            append(measure(setting, arguments.rounds, arguments.seconds, cache), arguments.out)


def append(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Add rows to a CSV file, when all of them are known."""
    found, is_new = list(rows), not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
