"""Streams of several files: each process reads its own, and continues in the middle."""

import io
import json
import tarfile

import datasets
import pytest
import torch

from helpers.pictures import encode, random_images
from phnn.lab.tasks.batches import Plan
from phnn.lab.tasks.images import ImageData
from phnn.lab.tasks.images.sources import open_source
from phnn.lab.tasks.images.stream import StreamBatches

COUNT, FILES = 5, 4


def write_parquet_files(root, files=FILES):
    """Write shards of 5, 6, 7 … images, whose labels say which image it is."""
    root.mkdir(parents=True)
    total = sum(COUNT + file for file in range(files))
    names = [str(number) for number in range(total)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    )
    first = 0
    for file in range(files):
        count = COUNT + file
        content = {
            "image": [encode(image) for image in random_images(count, file)],
            "label": list(range(first, first + count)),
        }
        first += count
        for split in ("train", "validation"):
            table = datasets.Dataset.from_dict(content, features=features)
            table.to_parquet(root / f"{split}-{file:05}-of-{files:05}.parquet")
    return root


def write_archives(root, files=2):
    """Write webdataset archives of 6 samples each, of three classes."""
    for split in ("train", "validation"):
        (root / split).mkdir(parents=True)
        for file in range(files):
            with tarfile.open(root / split / f"{file:04}.tar", "w") as archive:
                for number, image in enumerate(random_images(6, file)):
                    content = {"png": encode(image)["bytes"], "cls": str(number % 3).encode()}
                    for suffix, data in content.items():
                        member = tarfile.TarInfo(f"{file}{number:03}.{suffix}")
                        member.size = len(data)
                        archive.addfile(member, io.BytesIO(data))
    return root


def open_streams(root, split, world, **options):
    rows = open_source("imagenet", root).open(streaming=True).splits[split]
    return [
        StreamBatches(rows, Plan(3, rank=rank, world_size=world, **options), image_size=6)
        for rank in range(world)
    ]


def labels_of(stream):
    return [label for batch in stream for label in batch.labels.tolist()]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return write_parquet_files(tmp_path / "data")


def test_evaluation_sees_every_image_once(root):
    first, second = map(labels_of, open_streams(root, "test", 2))
    assert sorted(first + second) == list(range(26))
    assert first == [*range(5), *range(11, 18)]  # the first and the third file


def test_training_takes_as_many_steps_in_all_processes(root):
    streams = open_streams(root, "train", 2, shuffle=True, draws=2)
    assert [len(stream) for stream in streams] == [4, 4]  # 12 images here, 14 there
    batches = [list(stream) for stream in streams]
    seen = [{label for batch in share for label in batch.labels.tolist()} for share in batches]
    assert not seen[0] & seen[1]
    assert sum(map(len, seen)) == 24
    assert not torch.equal(batches[0][0].draws, batches[1][0].draws)
    for stream in streams:
        stream.set_epoch(1)
    assert [labels_of(stream) for stream in streams] != [
        [label for batch in share for label in batch.labels.tolist()] for share in batches
    ]


def test_each_process_continues_in_the_middle_of_an_epoch(root):
    whole = [list(s) for s in open_streams(root, "train", 2, shuffle=True, draws=1)]
    stopped = open_streams(root, "train", 2, shuffle=True, draws=1)
    iterator = iter(stopped[0])
    next(iterator), next(iterator)
    state = json.loads(json.dumps(stopped[0].state_dict()))  # that of the first process, for all
    for stream, expected in zip(
        open_streams(root, "train", 2, shuffle=True, draws=1), whole, strict=True
    ):
        stream.load_state_dict(state)
        rest = list(stream)
        assert len(rest) == 2
        for batch, same in zip(rest, expected[2:], strict=True):
            assert torch.equal(batch.images, same.images)
            assert torch.equal(batch.labels, same.labels)
            assert torch.equal(batch.draws, same.draws)
    alone = StreamBatches(
        open_source("imagenet", root).open(streaming=True).splits["train"],
        Plan(6, shuffle=True, draws=1), image_size=6,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"made with readers=2, now it is 1"):
        alone.load_state_dict(state)


def test_fewer_files_than_processes_are_read_by_all(tmp_path):
    root = write_parquet_files(tmp_path / "data", files=1)
    streams = open_streams(root, "test", 2)
    assert sorted(labels_of(streams[0]) + labels_of(streams[1])) == list(range(5))
    assert streams[0].state_dict()["readers"] == 1


def test_webdataset_archives(tmp_path):
    root = write_archives(tmp_path / "data")
    data = ImageData("imagenet", root, batch_size=4, validation=0, image_size=6)
    data.setup()
    assert data.classes == ("0", "1", "2")
    assert len(data.train_dataloader()) == 3
    assert labels_of(data.test_dataloader()) == [0, 1, 2] * 4
    data.rank, data.world_size = 1, 2
    assert labels_of(data.test_dataloader()) == [0, 1, 2] * 2


def test_archives_that_are_none(tmp_path):
    root = write_archives(tmp_path / "data")
    path = root / "train" / "0001.tar"
    path.write_bytes(b"not a tar file" * 100)
    with pytest.raises(ValueError, match=r"0001\.tar"):
        ImageData("imagenet", root, validation=0).setup()
