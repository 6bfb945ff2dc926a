"""Data sets in the files of their authors."""

import io
import pickle
import tarfile

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from phnn.lab.reproduction.made import make_datasets
from phnn.lab.tasks.images import ImageData, load_images
from phnn.lab.tasks.images.sources import open_source
from phnn.lab.tasks.images.stored import read_pickle
from phnn.lab.tasks.images.tars import ImageNetArchives


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    from phnn.lab.reproduction import made as module

    with pytest.MonkeyPatch.context() as patch:  # the scenes have tests of their own
        patch.setattr(module, "_make_scenes", lambda folder: None)
        return make_datasets(root)


def test_cifar10_of_torchvision(made):
    splits = load_images("cifar10", made["cifar10"])
    assert (len(splits.train), len(splits.test)) == (20, 4)
    assert splits.train.classes[3] == "class 3"
    with (made["cifar10"] / "cifar-10-batches-py" / "data_batch_2").open("rb") as file:
        second = pickle.load(file, encoding="bytes")
    pixels = torch.from_numpy(second[b"data"].reshape(-1, 3, 32, 32))
    assert torch.equal(splits.train.images[4:8], pixels)
    assert splits.train.labels[4:8].tolist() == second[b"labels"]
    # the folder inside is as good
    inside = load_images("cifar10", made["cifar10"] / "cifar-10-batches-py")
    assert torch.equal(inside.test.images, splits.test.images)


def test_cifar100(made):
    splits = load_images("cifar100", made["cifar100"])
    assert (len(splits.train), len(splits.test), len(splits.train.classes)) == (20, 4, 100)


def test_svhn(made):
    from scipy.io import loadmat

    splits = load_images("svhn", made["svhn"])
    content = loadmat(made["svhn"] / "train_32x32.mat")
    assert splits.train.labels.tolist() == [int(y) % 10 for y in content["y"][:, 0]]
    assert torch.equal(
        splits.train.images[3], torch.from_numpy(content["X"][..., 3]).permute(2, 0, 1)
    )


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


class Sneaky:
    def __reduce__(self):
        return np.save, ("somewhere.npy", 1)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"label_names": Bomb()}, 2),
        pickle.dumps({b"label_names": Sneaky()}, 2),
        b"cnumpy\ndtype\n(S'f4'\ntR(S'x'\nS'y'\nd" + b"b.",  # changes what it names
        b"cnumpy.core.multiarray\n_reconstruct\n}b.",
        b"\x80\x02Q.",
        b"not a pickle",
        b"",
        pickle.dumps([1, 2], 2),
    ],
    ids=["exec", "numpy's writer", "state", "stand-in", "persistent", "text", "empty", "list"],
)
def test_pickles_execute_nothing(tmp_path, content):
    path = tmp_path / "batches.meta"
    path.write_bytes(content)
    if content.startswith(b"cnumpy\n"):
        with pytest.raises(ValueError, match=r"batches\.meta"):
            read_pickle(path)
        return
    with pytest.raises(ValueError, match=r"batches\.meta (cannot be read|holds a list)"):
        read_pickle(path)


def test_pickles_of_either_python(tmp_path):
    data = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for protocol in (0, 1, 2, 4):
        (tmp_path / "file").write_bytes(pickle.dumps({"data": data}, protocol))
        found = read_pickle(tmp_path / "file")["data"]
        assert np.array_equal(found.to_numpy(), data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"data": np.zeros((4, 3072), np.float32)}, "must be of unsigned bytes"),
        ({b"data": np.zeros((4, 30), np.uint8)}, "data must be"),
        ({b"labels": [1, 2, 3]}, "4 images and 3 labels|20 images and 19 labels"),
        ({b"labels": [1, 2, 3, 10]}, "a label .* is not one of 10 classes"),
        ({b"labels": None}, "test_batch has no labels"),
    ],
)
def test_damaged_batches(made, tmp_path, change, message):
    folder = tmp_path / "cifar"
    folder.mkdir()
    for file in (made["cifar10"] / "cifar-10-batches-py").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with (folder / "test_batch").open("rb") as file:
        content = {**pickle.load(file, encoding="bytes"), **change}
    content = {key: value for key, value in content.items() if value is not None}
    (folder / "test_batch").write_bytes(pickle.dumps(content, 2))
    with pytest.raises(ValueError, match=message):
        load_images("cifar10", folder)
    (folder / "test_batch").unlink()
    with pytest.raises(ValueError, match="lacks test_batch of cifar-10-batches-py"):
        load_images("cifar10", folder)


def test_several_data_sets_in_one_folder(made, tmp_path):
    for name, inside in (("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")):
        (tmp_path / inside).symlink_to(made[name] / inside)
    with pytest.raises(
        ValueError, match="several data sets: cifar-10-batches-py, cifar-100-python"
    ):
        load_images("cifar10", tmp_path)


def test_both_configurations_of_svhn(tmp_path):
    images = [{"image": Image.new("RGB", (32, 32), (i, 0, 0)), "label": i % 2} for i in range(4)]
    kinds = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["0", "1"])}
    )
    for name in ("cropped_digits", "full_numbers"):
        for split in ("train", "test"):
            (tmp_path / name).mkdir(exist_ok=True)
            table = datasets.Dataset.from_list(images, features=kinds)
            table.to_parquet(tmp_path / name / f"{split}-00000-of-00001.parquet")
    with pytest.raises(ValueError, match=r"several data sets: cropped_digits, full_numbers; give"):
        load_images("svhn", tmp_path)
    splits = load_images("svhn", tmp_path / "cropped_digits")
    assert len(splits.train) == 4


# --- tar files -----------------------------------------------------------------------------------


def test_imagenet_archives(made):
    source = open_source("imagenet", made["imagenet"])
    assert isinstance(source, ImageNetArchives)
    opened = source.open()
    assert opened.classes == ("n01440764", "n01443537")
    assert [e.label for e in opened.splits["train"]] == [0] * 4 + [1] * 4
    assert [e.label for e in opened.splits["test"]] == [0, 1, 1, 0]  # of the kit
    names = [e.name.rpartition(" ")[2] for e in opened.splits["train"].shuffled(0, 0)]
    assert sorted(names) == [f"{c}_{i}.JPEG" for c in opened.classes for i in range(4)]


def test_imagenet_as_the_paper_has_it(made):
    data = ImageData("imagenet", made["imagenet"], batch_size=4, validation=0)
    data.setup()
    batch = next(iter(data.train_dataloader()))
    assert batch.images.shape == (4, 3, 160, 160)
    assert batch.draws is None  # no augmentation
    assert next(iter(data.test_dataloader())).images.shape == (4, 3, 224, 224)


def test_whole_images_or_pieces(tmp_path):
    """Half of each image is red: a whole image keeps that, whatever its shape."""
    for split in ("train", "val"):
        for name in ("a", "b"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            pixels = np.zeros((20, 80, 3), np.uint8)
            pixels[:, :40, 0] = 255
            for i in range(4):
                Image.fromarray(pixels).save(folder / f"{i}.png")
    shares = {}
    for augment in ((), ("resized_crop", "flip")):
        data = ImageData("imagenet", tmp_path, 8, augment=augment, validation=0, image_size=40)
        data.setup()
        red = next(iter(data.train_dataloader())).images[:, 0].float() / 255
        shares[augment] = red.mean((1, 2))
    assert torch.allclose(shares[()], torch.tensor(0.5), atol=0.02)
    assert shares["resized_crop", "flip"].std() > 0.05


def write_shard(path, count, label=lambda i: b"%d" % (i % 3)):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for i in range(count):
            file = io.BytesIO()
            Image.new("RGB", (8, 8), (i, 0, 0)).save(file, "PNG")
            for name, content in ((f"{i:04d}.png", file.getvalue()), (f"{i:04d}.cls", label(i))):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def test_shards(tmp_path):
    write_shard(tmp_path / "mine-train-0000.tar", 5)
    write_shard(tmp_path / "mine-train-0001.tar", 4)
    write_shard(tmp_path / "val" / "0000.tar", 3)
    splits = load_images("mine", tmp_path)
    assert (len(splits.train), len(splits.test)) == (9, 3)
    assert splits.train.labels.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 0]
    assert splits.train.classes == ("0", "1", "2")
    (tmp_path / "classnames.txt").write_text("cat\ndog\nowl\n")
    assert load_images("mine", tmp_path).test.classes == ("cat", "dog", "owl")


def test_damaged_shards(tmp_path):
    write_shard(tmp_path / "train.tar", 3, lambda i: b"cat")
    with pytest.raises(ValueError, match=r"0000\.cls must hold the number of a class"):
        load_images("mine", tmp_path)
    (tmp_path / "train.tar").write_bytes(b"no tar")
    with pytest.raises(ValueError, match=r"train\.tar cannot be read as a tar file"):
        load_images("mine", tmp_path)
