"""Processes killed at random moments: what they do next must be what an unbroken one does."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import phnn
from attack.outcomes import Outcome
from helpers.training import rows

PATIENCE = 600.0  # seconds for a command to end by itself
GONE = 45.0  # for the children of a killed one: those that train write a checkpoint first
COMMANDS = ("train", "train", "train", "train", "compare", "simulate", "report", "export")


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
    name = draw.choice(COMMANDS)
    out = ground.folder / f"case-{number}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    reference = ground.reference(name)
    argv = ground.command(name, out)
    moments = []
    for _ in range(draw.choice([1, 1, 2])):
        signum = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        moment = draw.random() * ground.seconds(name)
        moments.append(f"{signum.name} after {moment:.1f} s")
        verdict = _kill_once(argv, ground.folder, moment, signum)
        if verdict:
            return Outcome("kills", number, *verdict, 0.0)
    code, text = finish(start(argv, ground.folder))
    what = f"{name}, {', '.join(moments)}"
    if code is None:
        return Outcome("kills", number, "hung", what)
    if code != 0:
        return Outcome("kills", number, "wrong", f"{what}: exit code {code}: {text[-800:]}")
    difference = compare(name, reference, out)
    shutil.rmtree(out, ignore_errors=True)
    verdict = "wrong" if difference else "fine"
    return Outcome("kills", number, verdict, f"{what}: {difference}" if difference else what)


def _kill_once(argv, folder, moment, signum):
    """Start a command, kill it, and return a verdict if something stays behind."""
    process = start(argv, folder)
    deadline = time.monotonic() + moment
    children = {}
    while time.monotonic() < deadline and process.poll() is None:
        for child in _children(process):
            children[child.pid] = child
        time.sleep(0.05)
    children |= {child.pid: child for child in _children(process)}
    if process.poll() is None:
        process.send_signal(signum)
    code, text = finish(process)
    if signum == signal.SIGTERM and code not in (0, 143):
        return "wrong", f"SIGTERM gave {code}: {text[-500:]}"
    _, alive = psutil.wait_procs(list(children.values()), GONE)
    alive = [each for each in alive if each.is_running() and each.status() != "zombie"]
    if alive:
        return "wrong", f"{len(alive)} children live on: {alive}"
    return None


def _children(process):
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return []


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
        return "" if (out / "report.html").stat().st_size > 10_000 else "the report is too small"
    if name == "export":
        same = (out / "net.onnx").stat().st_size == (reference / "net.onnx").stat().st_size
        return "" if same else "another size of the program"
    waves = [path.relative_to(reference) for path in sorted(reference.rglob("*.wav"))]
    labels = [path.relative_to(reference) for path in sorted(reference.rglob("*.csv"))]
    differing = [
        str(path)
        for path in (*waves, *labels)
        if not (out / path).exists() or (out / path).read_bytes() != (reference / path).read_bytes()
    ]
    return f"scenes differ: {differing[:3]}" if differing else ""


def compare_runs(reference, out):
    first, second = (load_file(folder / "model.safetensors") for folder in (reference, out))
    if not all(torch.equal(first[key], second[key]) for key in first):
        return f"{out.name}: other weights"
    return "" if rows(reference) == rows(out) else f"{out.name}: another log"
