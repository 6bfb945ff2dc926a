"""Files that somebody made to do harm, or that have decayed."""

import io
import json
import os
import pickle
import random
import shutil
import wave
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import phnn
from attack import parts, records
from attack.harm import alter, build, command, damage, refusal
from attack.sandbox import RefusedError
from helpers.files import read_parts, reseal
from phnn.io import ModelFileError
from phnn.lab import comparison, packaged, recipe
from phnn.lab.training import check_recipe

REPOSITORY = Path(__file__).parents[2]
METADATA = {
    "task": "images",
    "classes": ["a", "b"],
    "image_size": [32, 32],
    "crop": 1.0,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}
SUFFIXES = {"PNG": "png", "JPEG": "jpg", "GIF": "gif", "BMP": "bmp", "WEBP": "webp", "TIFF": "tif"}
RECIPE = {
    "model": {"name": "vgg11", "n": 2, "widths": [4] * 6},
    "data": {"name": "digits", "batch_size": 5},
    "optimizer": {"lr": 0.01},
    "schedule": {"name": "onecycle"},
    "trainer": {"max_epochs": 1, "threads": 1, "energy": False, "accelerator": "cpu"},
}


class Evil:
    """What a pickle would execute."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Ground:
    """The sound files that cases start from.

    Args:
        folder: Where they are; made once.
    """

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        network = phnn.create_model("vgg11", widths=[4] * 6, num_classes=2, n=2).eval()
        self.zoo = phnn.save(network, folder / "zoo.safetensors", metadata=METADATA)
        self.own = phnn.save(phnn.convert(build(), n=2), folder / "own.safetensors")
        self.state = {"zoo": load_file(self.zoo), "own": load_file(self.own)}
        self.plan = phnn.accelerate(ph_model(), torch.randn(1, 8, 8, 8), rounds=1, seconds=1.0)
        self.photo = folder / "photo.png"
        draw_image(random.Random(0)).save(self.photo)
        parts.make_ground(self)
        records.make_ground(self)


def ph_model():
    torch.manual_seed(0)
    return nn.Sequential(phnn.PHConv2d(8, 8, 3, n=4), phnn.PHConv2d(8, 8, 1, n=2)).eval()


def draw_image(draw):
    pixels = np.random.default_rng(draw.randrange(2**31)).integers(0, 255, (40, 48, 3), np.uint8)
    return Image.fromarray(pixels)


# --- cases ---------------------------------------------------------------------------------------


def model_bytes(draw, ground, folder):
    """A model file with other bytes: it is refused, or its weights are the same."""
    name = draw.choice(["zoo", "own"])
    path = folder / "model.safetensors"
    path.write_bytes(damage(draw, getattr(ground, name).read_bytes()))
    return load_model(ground, name, path)


def load_model(ground, name, path):
    try:
        model = phnn.load(path, model=build if name == "own" else None)
    except ModelFileError as error:
        raise refusal(error, path) from None
    state = model.state_dict()
    for key, value in ground.state[name].items():
        assert torch.equal(state[key], value), f"{key} was altered"
    return "the same weights"


def model_header(draw, ground, folder):
    """A model file whose header says something else, with a seal that holds."""
    name = draw.choice(["zoo", "own"])
    path = shutil.copy(getattr(ground, name), folder / "model.safetensors")
    header, _, _ = read_parts(path)
    alter(draw, header)
    reseal(path, header)
    which = draw.randrange(3)
    if which == 0:
        return command("inspect", path)
    if which == 1 or name == "own":
        return load_model(ground, name, path)
    return command("predict", path, ground.photo)


def model_tensors(draw, ground, folder):
    """A safetensors file of somebody else, or with other tensors."""
    path = folder / "model.safetensors"
    tensors = dict(ground.state["zoo"])
    key = draw.choice(list(tensors))
    other = [
        torch.zeros(0),
        torch.tensor(1.0),
        torch.zeros(3, dtype=torch.int64),
        tensors[key][None],
    ]
    tensors[key] = draw.choice(other)
    _, entries, _ = read_parts(ground.zoo)
    save_file(tensors, path, entries["__metadata__"] if draw.random() < 0.7 else None)
    return load_model(ground, "zoo", path)


def metadata(draw, ground, folder):
    """A model saved with metadata of wrong kinds, asked about a photo."""
    changed = json.loads(json.dumps(METADATA))
    alter(draw, changed)
    path = shutil.copy(ground.zoo, folder / "model.safetensors")
    header, _, _ = read_parts(path)
    reseal(path, {**header, "metadata": changed})
    return command("predict", path, ground.photo)


def checkpoint(draw, ground, folder):
    """A checkpoint that is something else, or would run code."""
    path, canary = folder / "last.ckpt", folder / "canary"
    content = [{}, [], 3, None, {"state_dict": 3}, {"phnn": {}, "state_dict": {}}, torch.zeros(3)]
    content += [{"phnn": {"recipe": RECIPE}, "state_dict": {"x": torch.zeros(2)}}, Evil(canary)]
    content += [{"phnn": Evil(canary), "state_dict": {}}, {"phnn": [1], "state_dict": []}]
    chosen = draw.choice(content)
    if draw.random() < 0.5:
        torch.save(chosen, path)
    else:
        path.write_bytes(pickle.dumps(chosen))
    if draw.random() < 0.4:
        path.write_bytes(damage(draw, path.read_bytes()))
    try:
        if draw.random() < 0.5:
            return command("test", path)
        return command("predict", path, ground.photo)
    finally:
        assert not canary.exists(), "code was executed"


def text_of(draw, tree):
    """Return a tree as YAML, sometimes not quite."""
    text = yaml.safe_dump(tree, allow_unicode=draw.random() < 0.5)
    if draw.random() < 0.25:
        text = damage(draw, text.encode()).decode(errors=draw.choice(["replace", "ignore"]))
    return text


def yaml_recipe(draw, ground, folder):
    """A recipe with wrong values: refused before training, or a recipe."""
    tree = json.loads(json.dumps(RECIPE))
    alter(draw, tree)
    path = folder / "mine.yaml"
    path.write_text(text_of(draw, tree), encoding="utf-8", errors="replace")
    try:
        check_recipe(recipe.build_recipe(packaged.read_recipe(path)))
    except (ValueError, TypeError, OSError) as error:
        raise RefusedError(str(error)) from None
    return "a recipe"


def yaml_comparison(draw, ground, folder):
    """A comparison with wrong values: refused before training, or a list of runs."""
    tree = {"seeds": [0, 1], "title": "T", "families": {"digits": {"real": None, "n=2": {"n": 2}}}}
    alter(draw, tree)
    path = folder / "mine.yaml"
    path.write_text(text_of(draw, tree), encoding="utf-8", errors="replace")
    try:
        runs = comparison.plan(comparison.load_comparison(path), folder / "out", {})
    except (ValueError, TypeError, OSError) as error:
        raise RefusedError(str(error)) from None
    folders = [run.folder for run in runs]
    assert len({str(each).casefold() for each in folders}) == len(folders)
    assert all(each.resolve().parent == (folder / "out/runs").resolve() for each in folders)
    return f"{len(runs)} runs"


def picture(draw, ground, folder):
    """An image that is damaged, of another format, or no file."""
    kind = draw.choice([*SUFFIXES])
    path = folder / f"photo.{SUFFIXES[kind]}"
    how = draw.randrange(10)
    if how == 0:
        os.mkfifo(path)
    elif how == 1:
        path.symlink_to(path)
    elif how == 2:
        path.mkdir()
    else:
        content = io.BytesIO()
        draw_image(draw).save(content, draw.choice([kind, kind, kind, "EPS", "PPM", "PDF"]))
        path.write_bytes(damage(draw, content.getvalue()))
    return command("predict", ground.zoo, path)


def table(draw, ground, folder):
    """A parquet table of images, damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = io.BytesIO()
    draw_image(draw).save(content, "PNG")
    rows = [
        {"image": {"bytes": content.getvalue(), "path": None}, "label": i % 2} for i in range(4)
    ]
    rows[0]["label"] = draw.choice([0, -1, 10**9, None])
    for split in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
    victim = folder / draw.choice(["train.parquet", "test.parquet"])
    if draw.random() < 0.8:
        victim.write_bytes(damage(draw, victim.read_bytes()))
    else:
        victim.unlink()
        os.mkfifo(victim)
    from phnn.lab.tasks.images.sources import open_source

    try:
        opened = open_source("mine", folder).open()
        count = sum(1 for split in opened.splits.values() for _ in split)
    except (ValueError, TypeError, OSError) as error:
        raise RefusedError(str(error)) from None
    return f"{count} images"


def sound(draw, ground, folder):
    """A recording that is damaged, or of another format."""
    from phnn.lab.tasks.sound.recordings import read_wave

    path = folder / "scene_A.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(draw.choice([1, 4]))
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(os.urandom(8000))
    if draw.random() < 0.9:
        path.write_bytes(damage(draw, path.read_bytes()))
    else:
        path.unlink()
        os.mkfifo(path)
    try:
        return f"shape {tuple(read_wave([path]).shape)}"
    except (ValueError, OSError) as error:
        raise refusal(error, path) from None


def results(draw, ground, folder):
    """The folder of a comparison whose files were changed, in a report."""
    source = REPOSITORY / "results" / "digits"
    out = folder / "digits"
    shutil.copytree(source, out)
    files = [out / "results.json", *out.glob("runs/*/result.json"), *out.glob("runs/*/config.yaml")]
    victim = draw.choice([files[0], files[0], *files])
    how = draw.random()
    if how < 0.7:
        is_json = victim.suffix == ".json"
        tree = json.loads(victim.read_text()) if is_json else yaml.safe_load(victim.read_text())
        alter(draw, tree)
        victim.write_text(json.dumps(tree) if is_json else yaml.safe_dump(tree))
    elif how < 0.9:
        victim.write_bytes(damage(draw, victim.read_bytes()))
    else:
        victim.unlink()
        os.mkfifo(victim)
    found = command("report", out, "--out", folder / "report.html")
    assert not (folder.parent / "x").exists()
    return found


def plan(draw, ground, folder):
    """A plan for acceleration that is something else."""
    path = folder / "plan.json"
    tree = json.loads(json.dumps(ground.plan.phnn_report.plan))
    alter(draw, tree)
    text = json.dumps(tree).encode()
    path.write_bytes(damage(draw, text) if draw.random() < 0.3 else text)
    model, x = ph_model(), torch.randn(1, 8, 8, 8)
    try:
        fast = phnn.accelerate(model, x, plan=path)
    except (ValueError, TypeError) as error:
        raise RefusedError(str(error)) from None
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-3), "another model"
    return "a plan"


CASES = {  # with their shares
    model_bytes: 4, model_header: 6, model_tensors: 1, metadata: 3, checkpoint: 2, yaml_recipe: 3,
    yaml_comparison: 2, picture: 3, table: 1, sound: 1, results: 1, plan: 2, parts.adapter: 3,
    parts.shards: 3, parts.arrays: 2, parts.answers: 1, records.study: 2, records.metrics: 2,
    records.bench: 1, records.sound_metadata: 2, records.bomb: 1, records.links: 1,
}  # fmt: skip


def make_case(number, seed, ground, folder):
    """Return the case of a number."""
    draw = random.Random(f"{seed} hostile {number}")
    case = draw.choices(list(CASES), list(CASES.values()))[0]

    def run():
        folder.mkdir(parents=True)
        torch.set_num_threads(1)
        return case(draw, ground, folder)

    return case.__name__, run
