"""Processes killed at random moments: what they do next must be what an unbroken one does."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from itertools import zip_longest

import numpy as np
import psutil
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import phnn
from attack.outcomes import Outcome
from helpers.training import rows
from phnn.lab.runs import LAST, RESULT

PATIENCE = 600.0  # seconds for a command to end by itself
GONE = 45.0  # for the children of a killed one: those that train write a checkpoint first
COMMANDS = ("train", "compare", "simulate", "report", "export")  # in turn


class Ground:
    """Data, a recipe, and what unbroken commands make of them."""

    def __init__(self, folder):
        self.folder = folder
        self.images = folder / "images"
        self.recipe = folder / "tiny.yaml"
        if not self.recipe.exists():
            self._make()
        self.references = {}

    def _make(self):
        rng = np.random.default_rng(0)
        for split in ("train", "test"):
            for level, name in enumerate(("dark", "light")):
                place = self.images / split / name
                place.mkdir(parents=True)
                for i in range(12):
                    pixels = rng.integers(90 * level, 90 * level + 120, (32, 32, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(place / f"{i}.png")
        tree = {
            "model": {"name": "vgg11", "n": 2, "widths": [4] * 6},
            "data": {
                "name": "mine",
                "root": str(self.images),
                "batch_size": 5,
                "augment": ["crop", "flip"],
                "validation": 0.2,
            },
            "optimizer": {"lr": 0.01},
            "schedule": {"name": "onecycle"},
            "trainer": {
                "max_epochs": 6,
                "threads": 1,
                "energy": False,
                "accelerator": "cpu",
                "checkpoint_steps": 1,
            },
        }
        torch.manual_seed(0)
        network = phnn.create_model("resnet20", widths=[8, 8, 8], n=4).eval()
        phnn.save(network, self.folder / "net.safetensors")
        (self.folder / "pair.yaml").write_text("families: {tiny.yaml: {real: , n=2: }}")
        self.recipe.write_text(yaml.safe_dump(tree))

    def command(self, name, out):
        """Return the arguments of a command that writes to a folder."""
        if name == "train":
            return ["train", self.recipe, "--out", out]
        if name == "compare":
            return ["compare", self.folder / "pair.yaml", "--out", out, "--jobs", "2"]
        if name == "simulate":
            sizes = ["--train", "6", "--dev", "2", "--seconds", "2", "--rate", "8000"]
            return ["simulate", "--out", out, *sizes, "--rt60", "0.1", "--jobs", "2"]
        if name == "report":
            return ["report", self.reference("train"), "--out", out / "report.html"]
        return ["export", self.folder / "net.safetensors", out / "net.onnx"]

    def reference(self, name):
        """Return the folder of an unbroken command, made once; and how long it took."""
        out = self.folder / f"reference-{name}"
        stamp = self.folder / f"reference-{name}.seconds"
        if not stamp.exists():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            began = time.monotonic()
            code, text = finish(start(self.command(name, out), self.folder))
            assert code == 0, text
            stamp.write_text(str(time.monotonic() - began))
        return out

    def seconds(self, name):
        self.reference(name)
        return float((self.folder / f"reference-{name}.seconds").read_text())


def start(argv, folder):
    environment = {**os.environ, "PHNN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "phnn", *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )


def finish(process):
    try:
        text, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return None, "it did not end"
    return process.returncode, text


def kill(seed, number, ground):
    """Kill a command, give it again, and compare what it made."""
    draw = random.Random(f"{seed} kills {number}")
    name = COMMANDS[number % len(COMMANDS)]
    out = ground.folder / f"case-{number}"
    reference = ground.reference(name)
    argv = ground.command(name, out)
    wanted, sent = draw.choice([1, 1, 2]), []
    share = draw.random()
    while not sent:  # one that ended before its signal is no case
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        sent, verdict = _kill_often(draw, argv, ground, name, wanted, share)
        if verdict:
            return Outcome("kills", number, *verdict, sent=len(sent))
        share /= 2
    what = f"{name}, {', '.join(sent)}"
    left = find_state(name, out)
    code, text = finish(start(argv, ground.folder))
    if code is None:
        return Outcome("kills", number, "hung", what, sent=len(sent))
    lost = f"exit code {code}: {text[-800:]}" if code else find_loss(name, out, left, text)
    difference = lost or compare(name, reference, out)
    if difference:
        return Outcome("kills", number, "wrong", f"{what}: {difference}", sent=len(sent))
    shutil.rmtree(out, ignore_errors=True)
    return Outcome("kills", number, "fine", what, sent=len(sent))


def _kill_often(draw, argv, ground, name, wanted, share):
    """Kill a command several times; return the signals that reached it, and what is wrong."""
    sent = []
    for _ in range(wanted):
        signum = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        moment = share * ground.seconds(name)
        reached, verdict = _kill_once(argv, ground.folder, moment, signum)
        sent += [f"{signum.name} after {moment:.1f} s"] * reached
        if verdict or not reached:
            return sent, verdict
        share = draw.random()
    return sent, None


def _kill_once(argv, folder, moment, signum):
    """Start a command and kill it.

    Returns:
        Whether the signal reached it, and a verdict if something is wrong.
    """
    process = start(argv, folder)
    deadline = time.monotonic() + moment
    children = {}
    while time.monotonic() < deadline and process.poll() is None:
        for child in _children(process):
            children[child.pid] = child
        time.sleep(0.05)
    children |= {child.pid: child for child in _children(process)}
    reached = process.poll() is None
    if reached:
        process.send_signal(signum)
    code, text = finish(process)
    # before Python handles signals, SIGTERM ends the process itself, which shells call 143 as well
    right = {signal.SIGTERM: (143, -15), signal.SIGKILL: (-9,)}[signum] if reached else (0,)
    if code not in right:
        return reached, ("wrong", f"{signum.name} gave {code}: {text[-500:]}")
    if code == 143 and "stopped by SIGTERM; " not in text:
        return reached, ("wrong", f"SIGTERM without a word on how to go on: {text[-500:]}")
    _, alive = psutil.wait_procs(list(children.values()), GONE)
    alive = [each for each in alive if each.is_running() and each.status() != "zombie"]
    if alive:
        return reached, ("wrong", f"{len(alive)} children live on: {alive}")
    return reached, None


def _children(process):
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return []


def find_state(name, out):
    """Return what a killed command has left behind that the next one must not do again."""
    if name == "train":
        return {"": find_step(out)}
    if name == "compare":
        return {folder.name: find_step(folder) for folder in (out / "runs").glob("*")}
    if name == "simulate":
        return len(list(out.rglob("label_*.csv")))
    return None


def find_step(folder):
    """Return the step of the last checkpoint; None where there is none, or the run has ended."""
    if (folder / RESULT).exists() or not (folder / LAST).exists():
        return None
    return torch.load(folder / LAST, weights_only=True)["global_step"]


def find_loss(name, out, left, text):
    """Return what a command has done again, although a checkpoint or a file had it."""
    if name == "simulate":
        found = re.search(r"made (\d+) scenes .* in .*, (\d+) were there", text)
        if found is None or int(found[2]) != left:
            return f"{left} scenes were there: {text[-300:]}"
    for folder, step in (left if name in ("train", "compare") else {}).items():
        place = out / "runs" / folder if name == "compare" else out
        result = json.loads((place / RESULT).read_text())
        if step is not None and (result["resumed"], result["resumed_step"]) != (True, step):
            return (
                f"{folder}: a checkpoint of step {step}, resumed={result['resumed']} from "
                f"{result['resumed_step']}"
            )
    return ""


def compare(name, reference, out):
    """Return how what a command made differs from what an unbroken one made."""
    torn = list(out.rglob("*.tmp"))
    if torn:
        return f"torn files stay: {torn}"
    if name == "train":
        return compare_runs(reference, out)
    if name == "compare":
        folders = sorted((reference / "runs").iterdir())
        return "; ".join(filter(None, (compare_runs(f, out / "runs" / f.name) for f in folders)))
    if name == "report":
        return compare_reports(reference / "report.html", out / "report.html")
    if name == "export":
        first, second = (run_program(folder / "net.onnx") for folder in (reference, out))
        return "" if np.array_equal(first, second) else "the program computes something else"
    waves = [path.relative_to(reference) for path in sorted(reference.rglob("*.wav"))]
    labels = [path.relative_to(reference) for path in sorted(reference.rglob("*.csv"))]
    differing = [
        str(path)
        for path in (*waves, *labels)
        if not (out / path).exists() or (out / path).read_bytes() != (reference / path).read_bytes()
    ]
    return f"scenes differ: {differing[:3]}" if differing else ""


def run_program(path):
    """Return the outputs of an ONNX program for an input that is always the same."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (argument,) = session.get_inputs()
    shape = [size if isinstance(size, int) else 1 for size in argument.shape]
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    return session.run(None, {argument.name: x})[0]


class Page(HTMLParser):
    """The words and the figures of a report."""

    def __init__(self, path):
        super().__init__()
        self.words, self.figures = [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        self.figures += [dict(attributes).get("src")] if tag == "img" else []

    def handle_data(self, data):
        self.words += data.split()


def compare_reports(reference, out):
    first, second = Page(reference), Page(out)
    if first.words != second.words:
        pairs = zip_longest(first.words, second.words)
        return f"other words: {next(pair for pair in pairs if pair[0] != pair[1])}"
    if len(first.words) < 100 or not first.figures:
        return "the report is empty"
    return "" if first.figures == second.figures else "other figures"


def compare_runs(reference, out):
    first, second = (load_file(folder / "model.safetensors") for folder in (reference, out))
    if not all(torch.equal(first[key], second[key]) for key in first):
        return f"{out.name}: other weights"
    return "" if rows(reference) == rows(out) else f"{out.name}: another log"
