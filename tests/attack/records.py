"""What runs and studies have written, altered by somebody; and files that stand for others."""

import itertools
import json
import os
import shutil
import wave
from pathlib import Path

import torch
import yaml

import phnn
from attack.harm import alter, command, damage, refusal
from attack.sandbox import RefusedError
from helpers.files import read_parts, reseal
from phnn.lab import files
from phnn.lab.comparison import load_comparison, plan
from phnn.lab.packaged import read_recipe
from phnn.lab.recipe import build_recipe
from phnn.lab.reports import study as studies
from phnn.lab.reports.curves import read_curve
from phnn.lab.reports.shipped import _show_speed
from phnn.lab.training import processes
from phnn.lab.training.epochs import MetricsFile
from phnn.lab.training.folder import open_folder

STUDY = Path(__file__).parents[2] / "results" / "tune-cifar10" / "study.json"
METRICS = (
    "epoch,step,lr,train_loss,val_accuracy,seconds\n0,4,0.1,1.0,0.5,1.0\n1,8,0.1,0.9,0.6,2.0\n"
)
BENCH = "form,runtime,inference_seconds,inference_ratio,bytes\nreal,torch,0.1,1.0,1000\n"
SOUND = {
    "task": "sound", "classes": ["a", "b"], "overlaps": 1, "rule": "paper", "rate": 8000,
    "seconds": 1.0, "bins": 256, "microphones": 1, "channels": 4, "phase": False,
    "order": "paper", "magnitudes": "linear", "mean": [0.0] * 4, "std": [1.0] * 4,
}  # fmt: skip


def make_ground(ground):
    """Make a network for sound, and a recording."""
    torch.manual_seed(2)
    network = phnn.create_model("sednet", num_classes=2, overlaps=1, in_channels=4, n=4).eval()
    ground.heard = phnn.save(network, ground.folder / "sound.safetensors", metadata=SOUND)
    ground.recording = ground.folder / "scene_A.wav"
    with wave.open(str(ground.recording), "wb") as file:
        file.setnchannels(4)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(2 * 4 * 8000))


def study(draw, ground, folder):
    """The summary of a study: refused by its name, or shown."""
    path = folder / "study.json"
    tree = json.loads(STUDY.read_text())
    alter(draw, tree)
    text = json.dumps(tree).encode()
    path.write_bytes(damage(draw, text) if draw.random() < 0.2 else text)
    try:
        found = studies.read_study(folder)
    except ValueError as error:
        raise refusal(error, path) from None
    studies._show_best(found)
    studies._show_trials(found)
    studies._show_provenance(found)
    for score in found.objectives:
        studies.draw_history(found, score)
    for option in found.options:
        studies.draw_slice(found, option)
    return "a study"


def metrics(draw, ground, folder):
    """The log of a run: refused by its name, or read."""
    path = folder / "metrics.csv"
    path.write_bytes(damage(draw, METRICS.encode() + b"x" * draw.choice([0, 0, 200_000])))
    try:
        read_curve(folder)
        MetricsFile(path).rewind(1)
    except files.FileError as error:
        raise refusal(error, path) from None
    return "a log"


def bench(draw, ground, folder):
    """A table of phnn bench: refused by its name, or shown."""
    path = folder / "bench.csv"
    path.write_bytes(damage(draw, BENCH.encode()))
    try:
        _show_speed(path)
    except files.FileError as error:
        raise refusal(error, path) from None
    return "a table"


def sound_metadata(draw, ground, folder):
    """A network for sound saved with metadata of wrong kinds, asked about a recording."""
    changed = json.loads(json.dumps(SOUND))
    alter(draw, changed)
    path = shutil.copy(ground.heard, folder / "model.safetensors")
    header, _, _ = read_parts(path)
    reseal(path, {**header, "metadata": changed})
    return command("predict", path, ground.recording)


def bomb(draw, ground, folder):
    """A few lines of YAML that stand for billions of values, or for themselves."""
    names = "abcdefghij"[: draw.randint(5, 10)]
    wide = draw.randint(6, 9)
    lines = [f"{names[0]}: &{names[0]} [{', '.join(['x'] * wide)}]"]
    for old, new in itertools.pairwise(names):
        lines.append(f"{new}: &{new} [{', '.join([f'*{old}'] * wide)}]")
    if draw.random() < 0.3:
        lines = ["a: &a {b: *a}"]
    path = folder / "mine.yaml"
    path.write_text("\n".join(lines))
    try:
        if draw.random() < 0.5:
            read_recipe(path)
        else:
            load_comparison(path)
    except ValueError as error:
        raise refusal(error, path) from None
    return "read"


def links(draw, ground, folder):
    """Links and fifos where phnn writes: what they point to stays as it is."""
    precious = folder / "precious"
    precious.mkdir()
    (precious / "file").write_text("epoch\n")
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"families": {"digits": {"real": None}}}))
    (run,) = plan(load_comparison(path), folder / "out", {})
    how = draw.randrange(4)
    name = ["train.log", "metrics.csv", ".lock", ""][how]
    run.folder.parent.mkdir(parents=True)
    if name:
        run.folder.mkdir()
        victim = run.folder / name
        os.mkfifo(victim) if draw.random() < 0.3 else victim.symlink_to(precious / "file")
    else:
        run.folder.symlink_to(precious)
    try:
        if how == 1:
            MetricsFile(run.folder / name).append({"epoch": 0})
        elif how == 2:
            with open_folder(run.folder, build_recipe(run.recipe), {}, 0):
                pass
        else:
            processes.start(run, "", 0, visible=False, module="json.tool").wait()
    except ValueError as error:
        raise RefusedError(str(error)) from None
    finally:
        assert [each.name for each in precious.iterdir()] == ["file"], "something was written"
        assert (precious / "file").read_text() == "epoch\n", "what a link points to was changed"
    return "left alone"
