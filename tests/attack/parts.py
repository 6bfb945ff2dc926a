"""Adapters, sharded checkpoints and arrays that somebody altered."""

import io
import json
import os
import shutil
import zipfile

import numpy as np
import torch
from safetensors.torch import save_file

import phnn
from attack.harm import alter, build, command, damage, refusal
from helpers.files import read_parts, reseal
from phnn.io import ModelFileError
from phnn.io.checkpoints import PROGRESS, Plan, convert_checkpoint
from phnn.io.shards import INDEX, digest_index
from phnn.lab.tasks.images.report.answers import _read


def make_ground(ground):
    """Make the sound files: an adapter, and a checkpoint in two files, converted."""
    torch.manual_seed(1)
    adapted = phnn.adapt(build(), n=2)
    ground.adapter = phnn.save_adapter(adapted, ground.folder / "adapter.safetensors")
    ground.adapted = {key: value.clone() for key, value in adapted.state_dict().items()}
    ground.dense, ground.shards = ground.folder / "dense", ground.folder / "shards"
    for folder in (ground.dense, ground.shards):
        shutil.rmtree(folder, ignore_errors=True)
    ground.dense.mkdir()
    state = build().state_dict()
    where = {name: f"{name[0]}.safetensors" for name in state}
    for file in set(where.values()):
        save_file({k: v for k, v in state.items() if where[k] == file}, ground.dense / file)
    (ground.dense / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    convert_checkpoint(ground.dense, ground.shards, Plan(2))
    ground.bomb = write_bomb(ground.folder / "bomb.npz")
    ground.sharded = phnn.load(ground.shards, model=build).state_dict()


def adapter(draw, ground, folder):
    """An adapter with another header, or other bytes: refused, or it adds the same."""
    path = shutil.copy(ground.adapter, folder / "adapter.safetensors")
    if draw.random() < 0.6:
        header, _, _ = read_parts(path)
        alter(draw, header)
        reseal(path, header)
    else:
        path.write_bytes(damage(draw, path.read_bytes()))
    model = build()
    try:
        state = phnn.load_adapter(model, path).state_dict()
    except ModelFileError as error:
        raise refusal(error, path) from None
    learned = [key for key in ground.adapted if ".deltas." in key]
    names = {key.split(".deltas.")[1].split(".")[0] for key in state if ".deltas." in key}
    for key in learned:  # the adapter may have another name
        own = [key.replace(".deltas.default.", f".deltas.{name}.") for name in names]
        found = [state[name] for name in own if name in state]
        assert all(torch.equal(each, ground.adapted[key]) for each in found), f"{key} was altered"
    return "an adapter"


def shards(draw, ground, folder):
    """A sharded checkpoint that was altered: refused with the model untouched, or the same."""
    out = folder / "shards"
    shutil.copytree(ground.shards, out)
    how = draw.randrange(4)
    index = json.loads((out / INDEX).read_text())
    if how < 2:
        alter(draw, index if how else index["phnn"])
        if isinstance(index.get("phnn"), dict) and "weight_map" in index:
            index["phnn_sha256"] = digest_index(index)
        (out / INDEX).write_text(json.dumps(index))
    else:
        victim = draw.choice(sorted(out.iterdir()) if how == 2 else [out / INDEX])
        victim.write_bytes(damage(draw, victim.read_bytes()))
    if draw.random() < 0.2:
        return convert_again(draw, ground, folder)
    given = build()
    before = {key: value.clone() for key, value in given.state_dict().items()}
    try:
        state = phnn.load(out, model=given).state_dict()
    except (ModelFileError, FileNotFoundError) as error:
        after = given.state_dict()
        assert all(torch.equal(after[key], value) for key, value in before.items()), "touched"
        raise refusal(error, folder) from None
    for key, value in ground.sharded.items():
        assert torch.equal(state[key], value), f"{key} was altered"
    return "the same weights"


def convert_again(draw, ground, folder):
    """A conversion that goes on from a record of progress that was altered."""
    out = folder / "again"
    out.mkdir()
    known = {"plan": Plan(2).to_dict(), "source": {}, "files": {}}
    alter(draw, known)
    text = json.dumps(known).encode()
    (out / PROGRESS).write_bytes(damage(draw, text) if draw.random() < 0.5 else text)
    try:
        convert_checkpoint(ground.dense, out, Plan(2))
    except ValueError as error:
        raise refusal(error, out) from None
    return "converted"


def arrays(draw, ground, folder):
    """Inputs of a model in a file that is damaged, a bomb, or no file."""
    path = folder / draw.choice(["x.npz", "x.npy"])
    content = io.BytesIO()
    if path.suffix == ".npz":
        np.savez_compressed(content, x=np.zeros((1, 3, 32, 32), np.float32))
    else:
        np.save(content, np.zeros((1, 3, 32, 32), np.float32))
    how = draw.random()
    if how < 0.1:
        os.mkfifo(path)
    elif how < 0.2:
        shutil.copy(ground.bomb, path)
    else:
        path.write_bytes(damage(draw, content.getvalue()))
    return command("bench", ground.zoo, "--input", path, "--rounds", "1", "--no-training")


def write_bomb(path):
    """Write a small archive that stands for 0.7 GB of zeros."""
    header, count = io.BytesIO(), 7 * 10**8
    shape = {"descr": "|u1", "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        for _ in range(70):
            file.write(bytes(10**7))
    return path


def answers(draw, ground, folder):
    """Answers that a report has kept, damaged: made again, or the same."""
    content, rng = io.BytesIO(), np.random.default_rng(0)
    labels, predictions = rng.integers(0, 2, (2, 500))
    np.savez_compressed(
        content, digest="d", classes=np.array(["a", "b"]), labels=labels,
        predictions=predictions, probabilities=rng.random(500).astype("f4"),
    )  # fmt: skip
    path = folder / "evaluation.npz"
    path.write_bytes(damage(draw, content.getvalue()))
    found = _read(path, "d")
    if found is None:
        return "made again"
    assert np.array_equal(found.labels, labels), "the labels were altered"
    assert np.array_equal(found.predictions, predictions), "the predictions were altered"
    return "the same answers"
