"""Images and metadata that somebody made to do harm."""

import gc
import io
import os
import random
import sys
import weakref

import numpy as np
import pytest
from PIL import Image

from phnn.lab.drawing import render_figure
from phnn.lab.tasks.images import CorruptImageError, prediction, preprocess, read_image
from phnn.lab.tasks.images.decode import FORMATS, find_suffixes
from phnn.lab.tasks.images.prediction import classify
from phnn.lab.tasks.images.sources import open_source
from phnn.models import create_model

METADATA = {
    "classes": ["a", "b"],
    "image_size": [32, 32],
    "crop": 1.0,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}


@pytest.fixture(scope="module")
def network():
    return create_model("vgg11", widths=[4] * 6, num_classes=2).eval()


def encode(format, size=(16, 16)):
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


@pytest.mark.parametrize("format", FORMATS)
def test_formats_that_are_read(format):
    assert read_image(encode(format)).size == (16, 16)


@pytest.mark.parametrize("format", ["EPS", "PPM", "ICO", "PDF", "SGI"])
def test_formats_that_are_not(format):
    with pytest.raises(CorruptImageError, match="cannot identify image file"):
        read_image(encode(format))
    assert not {".eps", ".ps", ".ppm", ".pdf"} & find_suffixes()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_damaged_images_are_named(format):
    draw, content, errors = random.Random(format), encode(format), []
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(draw.choice([1, 4, 40])):
            damaged[draw.randrange(min(len(damaged), 400))] = draw.randrange(256)
        damaged = damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])]
        try:
            read_image(bytes(damaged), "hostile")
        except CorruptImageError as error:  # anything else would be a traceback
            errors.append(str(error))
    assert errors
    assert all(error.startswith("hostile: ") for error in errors)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch):
    content = encode("PNG", (100, 120))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100 * 120 - 1)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(CorruptImageError, match=r"120x100 pixels, more than Pillow's limit"):
        read_image(content)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fifos")
def test_a_fifo_is_no_image(tmp_path, network):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(CorruptImageError, match="not a regular file"):
        list(classify(network, METADATA, [tmp_path]))


def test_one_photo_is_in_memory_at_a_time(tmp_path, network, monkeypatch):
    opened, shapes = [], []

    def watch(file):
        gc.collect()
        assert not any(each() for each in opened)  # those before it have gone
        image = read_image(file)
        opened.append(weakref.ref(image))
        return image

    def note(images, metadata):
        shapes.append(tuple(images.shape))
        return preprocess(images, metadata)

    monkeypatch.setattr(prediction, "read_image", watch)
    monkeypatch.setattr(prediction, "preprocess", note)
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(encode("PNG", (64, 64)))
    assert len(list(classify(network, METADATA, [tmp_path]))) == 4
    assert shapes == [(4, 3, 32, 32)]  # the network's size, not the photo's


def test_large_images_come_in_small_batches(tmp_path, network, monkeypatch):
    monkeypatch.setattr(prediction, "PIXELS", 32 * 32 * 3)
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(encode("PNG"))
    sizes = []
    monkeypatch.setattr(
        prediction, "preprocess", lambda x, m: (sizes.append(len(x)), preprocess(x, m))[1]
    )
    assert len(list(classify(network, METADATA, [tmp_path]))) == 5
    assert sizes == [3, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"std": [0.5, 0.0, 0.5]}, "std=.* must be above 0"),
        ({"mean": [float("inf"), 0, 0]}, "mean=.* three finite numbers"),
        ({"mean": "abc"}, "mean=.* three finite numbers"),
        ({"image_size": [30000, 30000]}, "two sides up to 4096"),
        ({"image_size": [4096, 4096]}, "more than 4,194,304 pixels"),
        ({"image_size": [True, 8]}, "two sides"),
        ({"image_size": 8}, "two sides"),
        ({"crop": 0}, "crop=0"),
        ({"crop": "1"}, "crop='1'"),
        ({"classes": "ab"}, "list of names"),
        ({"classes": ["a"]}, "2 outputs, its metadata 1 classes"),
    ],
)
def test_metadata_are_checked_before_anything_is_read(network, change, message):
    with pytest.raises(ValueError, match=message):
        list(classify(network, {**METADATA, **change}, ["nowhere.png"]))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_a_damaged_table_is_named(tmp_path, content):
    (tmp_path / "train.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"train\.parquet is damaged, or not parquet"):
        open_source("mine", tmp_path).open()


@pytest.mark.parametrize("name", ["$a$", "$\\frac{$", "a$b$c", "\x1b[2J", "50 $ or $x"])
def test_names_are_drawn_as_they_are(name):
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot([1, 1000], [0, 1], label=name)
    axes.set_xscale("log")
    axes.set_yticks([0, 1], [name, "other"])
    axes.set_title(name)
    axes.legend()
    drawn = render_figure(figure, "svg", "x").decode()
    shown = name.replace("\x1b", "\\x1b").replace("<", "&lt;")
    assert drawn.count(f">{shown}</text>") == 3
    assert ">$" + r"\mathdefault" not in drawn  # powers of ten are still formulas


def test_what_the_system_refuses_is_not_corrupt(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        read_image(encode("PNG"))
