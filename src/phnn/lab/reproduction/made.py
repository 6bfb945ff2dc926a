"""Tiny data sets in the formats of the real ones, for a dry run of everything."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phnn.io.atomic import write_text

SIDE = 32
WORDNET = ("n01440764", "n01443537")  # two classes of ImageNet
MADE = "made.txt"  # written last
SCENES = {"train": 5, "dev": 2}
SECONDS, RATE = 9.0, 8000


def make_datasets(root: Path) -> dict[str, Path]:
    """Make the data sets, unless they are there, and return their folders.

    Args:
        root: The folder for all of them.
    """
    makers = {
        "cifar10": _make_cifar10,
        "cifar100": _make_cifar100,
        "svhn": _make_svhn,
        "imagenet": _make_imagenet,
        "l3das21": _make_scenes,
    }
    for name, make in makers.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MADE).exists():
            make(folder)
            write_text(folder / MADE, "Random data in the format of a data set, made by phnn.\n")
    return {name: root / name for name in makers}


def _draw(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint8]:
    return rng.integers(0, 256, (count, 3 * SIDE * SIDE), dtype=np.uint8)


def _write_pickle(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def _make_cifar10(folder: Path) -> None:
    rng = np.random.default_rng(0)
    inside = folder / "cifar-10-batches-py"
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        content = {b"data": _draw(rng, 4), b"labels": rng.integers(0, 10, 4).tolist()}
        _write_pickle(inside / name, content)
    _write_pickle(inside / "batches.meta", {b"label_names": [f"class {i}" for i in range(10)]})


def _make_cifar100(folder: Path) -> None:
    rng = np.random.default_rng(1)
    inside = folder / "cifar-100-python"
    for name, count in (("train", 20), ("test", 4)):
        labels = rng.integers(0, 100, count).tolist()
        content = {b"data": _draw(rng, count), b"fine_labels": labels}
        _write_pickle(inside / name, content)
    names = [f"class {i}" for i in range(100)]
    _write_pickle(inside / "meta", {b"fine_label_names": names})


def _make_svhn(folder: Path) -> None:
    from scipy.io import savemat

    rng = np.random.default_rng(2)
    for name, count in (("train_32x32.mat", 20), ("test_32x32.mat", 4)):
        images = rng.integers(0, 256, (SIDE, SIDE, 3, count), dtype=np.uint8)
        savemat(folder / name, {"X": images, "y": rng.integers(1, 11, (count, 1))})


def _make_imagenet(folder: Path) -> None:
    from scipy.io import savemat

    rng = np.random.default_rng(3)
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as train:
        for name in WORDNET:
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as images:
                for i in range(4):
                    _add(images, f"{name}_{i}.JPEG", _make_jpeg(rng))
            _add(train, f"{name}.tar", inner.getvalue())
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as validation:
        for i in range(4):
            _add(validation, f"ILSVRC2012_val_{i + 1:08d}.JPEG", _make_jpeg(rng))
    meta = io.BytesIO()
    synsets = np.array(
        [(i + 1, name) for i, name in enumerate(WORDNET)],
        dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O")],
    )
    savemat(meta, {"synsets": synsets})
    with tarfile.open(folder / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as kit:
        inside = "ILSVRC2012_devkit_t12/data"
        _add(kit, f"{inside}/meta.mat", meta.getvalue())
        _add(kit, f"{inside}/ILSVRC2012_validation_ground_truth.txt", b"1\n2\n2\n1\n")


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _make_jpeg(rng: np.random.Generator) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    pixels = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def _make_scenes(folder: Path) -> None:
    from phnn.lab.tasks.sound.simulate import Simulation, simulate
    from phnn.lab.tasks.sound.synthesis import SyntheticClips

    simulation = Simulation(SyntheticClips(), seconds=SECONDS, rate=RATE, rt60=0.0, reflections=0)
    simulate(simulation, folder, **SCENES)
