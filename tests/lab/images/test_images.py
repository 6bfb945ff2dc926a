import io
import json

import datasets
import lightning
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from phnn.lab.seeds import derive_seed
from phnn.lab.tasks.images import (
    AUGMENTATIONS,
    Batches,
    CorruptImageError,
    ImageData,
    ImageSet,
    Normalize,
    Plan,
    StreamBatches,
    augment,
    count_draws,
    load_images,
    preprocess,
)
from phnn.lab.tasks.images.batches import DRAW_LIMIT
from phnn.lab.tasks.images.sources import ClassFolders, TableFolder, find_columns, open_source

SIZE = 8


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("PHNN_CACHE", str(folder))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    # datasets 5 waits seconds for its threads at the end of a shuffled stream
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    datasets.disable_progress_bars()
    return folder


def random_images(count, seed=0, size=SIZE):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def numbered(count, classes=5):
    """A set whose image i is filled with the value i."""
    values = torch.arange(count, dtype=torch.uint8)
    images = values[:, None, None, None].expand(count, 3, SIZE, SIZE).contiguous()
    return ImageSet(images, torch.arange(count) % classes, tuple(map(str, range(classes))))


def write_folders(root, splits=("train", "test"), classes=("cat", "dog"), count=6, size=SIZE):
    for split in splits:
        for place, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i, pixels in enumerate(random_images(count, place + len(split), size)):
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


def encode(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return {"bytes": buffer.getvalue(), "path": None}


def write_parquet(root, count=12, splits=("train", "test")):
    root.mkdir(parents=True, exist_ok=True)
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "coarse": datasets.ClassLabel(names=["animal", "thing"]),
            "fine": datasets.ClassLabel(names=["cat", "dog", "car"]),
        }
    )
    for split in splits:
        pixels = random_images(count, len(split))
        columns = {
            "picture": [encode(image) for image in pixels],
            "coarse": [i % 3 // 2 for i in range(count)],
            "fine": [i % 3 for i in range(count)],
        }
        table = datasets.Dataset.from_dict(columns, features=features)
        table.to_parquet(root / f"{split}-00000-of-00001.parquet")
    return root


class TestImageSet:
    def test_refuses_float_images(self):
        with pytest.raises(ValueError, match=r"uint8 of shape .* not torch.float32"):
            ImageSet(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64), ("a",))

    def test_refuses_labels_of_another_length(self):
        images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
        with pytest.raises(ValueError, match=r"shape \(2,\), not torch.int64 of shape \(3,\)"):
            ImageSet(images, torch.zeros(3, dtype=torch.int64), ("a",))

    def test_refuses_labels_without_a_class(self):
        with pytest.raises(ValueError, match=r"0\.\.0 as there are 1 classes; found 0\.\.4"):
            ImageSet(numbered(5).images, torch.arange(5), ("a",))

    @given(st.integers(2, 60), st.floats(0.05, 0.95), st.integers(0, 5))
    def test_split_is_a_partition(self, count, fraction, seed):
        data = numbered(count)
        if not 0 < round(fraction * count) < count:
            with pytest.raises(ValueError, match="leaves one part empty"):
                data.split(fraction, seed)
            return
        rest, part = data.split(fraction, seed)
        values = torch.cat([rest.images, part.images])[:, 0, 0, 0]
        assert values.sort().values.tolist() == list(range(count))
        assert len(part) == round(fraction * count)


class TestLoadImages:
    def test_unknown_name_offers_the_nearest(self):
        with pytest.raises(ValueError, match="unknown data set 'cifra10'; did you mean cifar10"):
            load_images("cifra10")

    def test_missing_root_offers_the_nearest(self, tmp_path):
        (tmp_path / "flowers").mkdir()
        with pytest.raises(FileNotFoundError, match="not a folder; did you mean flowers"):
            load_images("mine", tmp_path / "flower")

    def test_parquet(self, tmp_path):
        splits = load_images("mine", write_parquet(tmp_path / "data"))
        assert splits.train.classes == ("cat", "dog", "car")
        assert splits.train.labels.tolist() == [0, 1, 2] * 4
        expected = torch.from_numpy(random_images(12, len("train"))).permute(0, 3, 1, 2)
        assert torch.equal(splits.train.images, expected)
        assert len(splits.test) == 12
        assert splits.validation is None

    def test_saved_dataset(self, tmp_path):
        parquet = write_parquet(tmp_path / "data")
        datasets.load_dataset(str(parquet)).save_to_disk(str(tmp_path / "saved"))
        saved = load_images("mine", tmp_path / "saved")
        assert torch.equal(saved.train.images, load_images("mine", parquet).train.images)

    def test_class_folders(self, tmp_path):
        splits = load_images("mine", write_folders(tmp_path / "data", ("train", "val", "test")))
        assert splits.train.classes == ("cat", "dog")
        assert splits.train.labels.tolist() == [0] * 6 + [1] * 6
        assert splits.validation is not None
        expected = torch.from_numpy(random_images(6, len("test"))).permute(0, 3, 1, 2)
        assert torch.equal(splits.test.images[:6], expected)

    def test_one_level_of_class_folders_gets_a_test_part(self, tmp_path):
        splits = load_images("mine", write_folders(tmp_path / "data", (".",), count=10))
        assert (len(splits.train), len(splits.test)) == (18, 2)

    def test_a_validation_part_without_a_test_part_is_the_test_part(self, tmp_path):
        splits = load_images("mine", write_folders(tmp_path / "data", ("train", "val")))
        assert splits.validation is None
        assert len(splits.test) == 12

    def test_a_part_without_labels_is_left_out(self, tmp_path):
        root = write_parquet(tmp_path / "data", splits=("train", "validation"))
        features = datasets.Features(
            {"picture": datasets.Image(), "fine": datasets.ClassLabel(names=["cat", "dog", "car"])}
        )
        columns = {"picture": [encode(p) for p in random_images(4)], "fine": [-1] * 4}
        secret = datasets.Dataset.from_dict(columns, features=features)
        coarse = datasets.ClassLabel(names=["animal", "thing"])
        secret.add_column("coarse", [-1] * 4).cast_column("coarse", coarse).select_columns(
            ["picture", "coarse", "fine"]
        ).to_parquet(root / "test-00000-of-00001.parquet")
        assert len(load_images("mine", root).test) == 12

    def test_grey_and_transparent_images_become_rgb(self, tmp_path):
        root = write_folders(tmp_path / "data")
        Image.new("L", (SIZE, SIZE), 77).save(root / "train/cat/0.png")
        Image.new("RGBA", (SIZE, SIZE), (10, 20, 30, 0)).save(root / "train/cat/1.png")
        deep = np.full((SIZE, SIZE), 200 * 256, np.uint16)
        Image.fromarray(deep).save(root / "train/cat/2.png")
        images = load_images("mine", root).train.images
        assert images[0].unique().tolist() == [77]
        assert images[1].unique().tolist() == [255]
        assert images[2].unique().tolist() == [200]

    def test_wrong_size_is_refused_unless_resizing_is_asked(self, tmp_path):
        root = write_folders(tmp_path / "data")
        Image.new("RGB", (9, 7)).save(root / "train/dog/3.png")
        with pytest.raises(ValueError, match=r"3\.png is 7x9 pixels, .* 8x8; pass image_size="):
            load_images("mine", root)
        assert load_images("mine", root, image_size=4).train.image_size == (4, 4)

    def test_corrupt_image_is_named_or_skipped(self, tmp_path, caplog):
        root = write_folders(tmp_path / "data")
        whole = (root / "train/cat/4.png").read_bytes()
        (root / "train/cat/4.png").write_bytes(whole[: len(whole) // 2])
        (root / "test/dog/0.png").write_text("not an image")
        with pytest.raises(CorruptImageError, match=r"0\.png: .* corrupt='skip'"):
            load_images("mine", root)
        for _ in range(2):  # decoded, then from the cache
            caplog.clear()
            splits = load_images("mine", root, corrupt="skip")
            assert (len(splits.train), len(splits.test)) == (11, 11)
            assert ["0.png" in splits.skipped[0], "4.png" in splits.skipped[1]] == [True, True]
            assert "2 corrupt images left out" in caplog.text

    def test_unknown_treatment_of_corrupt_images(self, tmp_path):
        with pytest.raises(ValueError, match="corrupt='ignore' must be one of raise, skip"):
            load_images("mine", write_folders(tmp_path / "data"), corrupt="ignore")

    def test_missing_class_folder(self, tmp_path):
        root = write_folders(tmp_path / "data")
        (root / "train/fox").mkdir()
        with pytest.raises(ValueError, match=r"test lacks the class folder fox, which .*train has"):
            load_images("mine", root)

    def test_two_folders_for_one_part(self, tmp_path):
        root = write_folders(tmp_path / "data", ("train", "val", "validation"))
        with pytest.raises(ValueError, match=r"val and .*validation are both the validation part"):
            load_images("mine", root)

    @pytest.mark.parametrize(
        ("name", "splits"), [("mine", ("Train", "TEST")), ("imagenet", ("train", "val"))]
    )
    def test_other_names_of_parts(self, tmp_path, name, splits):
        root = write_folders(tmp_path / "data", splits)
        parts = open_source(name, root).open().parts
        assert {part: len(rows) for part, rows in parts.items()} == {"train": 12, "test": 12}

    def test_unknown_names_of_parts(self, tmp_path, caplog):
        root = write_folders(tmp_path / "data", ("training_set", "test_set"))
        with pytest.raises(ValueError, match=r"test_set, training_set, each with cat, dog"):
            load_images("mine", root)
        (root / "training_set").rename(root / "train")
        load_images("mine", root)
        assert "test_set is no part of the data" in caplog.text
        assert "has no test part: 10 % of its images are held out" in caplog.text

    def test_a_class_may_have_the_name_of_a_part(self, tmp_path):
        root = write_folders(tmp_path / "data", (".",))
        (root / "cat").rename(root / "Train")
        assert load_images("mine", root).train.classes == ("Train", "dog")
        (root / "dog").rename(root / "Test")  # now they look like parts
        with pytest.raises(ValueError, match="has no class folders"):
            load_images("mine", root)

    def test_classes_may_have_a_folder_inside(self, tmp_path):
        root = write_folders(tmp_path / "data", (".",))
        for name in ("cat", "dog"):
            (root / name).rename(root / "images")
            (root / name).mkdir()
            (root / "images").rename(root / name / "images")
        assert load_images("mine", root).train.classes == ("cat", "dog")

    def test_no_part_of_use(self, tmp_path):
        root = write_folders(tmp_path / "data", ("test",))
        with pytest.raises(ValueError, match=r"holds test alone; expected train and validation"):
            load_images("imagenet", root)

    def test_no_image_can_be_decoded(self, tmp_path):
        root = write_folders(tmp_path / "data", (".",), count=1)
        for path in root.rglob("*.png"):
            path.write_text("not an image")
        with pytest.raises(ValueError, match="none of the 2 images could be decoded"):
            load_images("mine", root, corrupt="skip")

    def test_empty_class_folder(self, tmp_path):
        root = write_folders(tmp_path / "data", (".",))
        (root / "fox").mkdir()
        with pytest.raises(ValueError, match="fox holds no image files"):
            load_images("mine", root)

    def test_empty_folder(self, tmp_path):
        with pytest.raises(ValueError, match="has no class folders"):
            load_images("mine", tmp_path)

    def test_columns_without_types(self):
        features = datasets.Features({"x": datasets.Image(), "y": datasets.Value("int64")})
        with pytest.raises(ValueError, match="a ClassLabel column; it has x: Image, y: Value"):
            find_columns("mine", features)

    def test_hub_error_says_what_to_do(self, monkeypatch):
        def unreachable(*args, **kwargs):
            raise ConnectionError("no route")

        monkeypatch.setattr(datasets, "load_dataset", unreachable)
        with pytest.raises(ValueError, match=r"'some/set' cannot be loaded: no route\. .*root="):
            load_images("some/set")

    def test_hub_names_and_parts(self, monkeypatch, tmp_path):
        tables = datasets.load_dataset(str(write_parquet(tmp_path / "data")))
        asked = []

        def load_dataset(*args, **kwargs):
            asked.append((args, kwargs))
            return tables

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        assert len(load_images("svhn").train) == 12
        expected = ("ufldl-stanford/svhn", "cropped_digits"), {"streaming": False}
        assert asked == [expected]


class TestCache:
    def test_images_are_decoded_once(self, tmp_path, cache, monkeypatch):
        root = write_folders(tmp_path / "data")
        first = load_images("mine", root)
        monkeypatch.setattr(ClassFolders, "open", lambda self: pytest.fail("decoded again"))
        again = load_images("mine", root)
        assert torch.equal(first.train.images, again.train.images)
        assert again.train.classes == first.train.classes
        assert [path.suffix for path in cache.iterdir()] == [".safetensors"]

    def test_changed_files_and_options_change_the_key(self, tmp_path, cache):
        root = write_folders(tmp_path / "data")
        load_images("mine", root)
        load_images("mine", root, image_size=4)
        Image.new("RGB", (SIZE, SIZE), "red").save(root / "train/cat/0.png")
        assert load_images("mine", root).train.images[0, 0].unique().tolist() == [255]
        assert len(list(cache.iterdir())) == 3

    def test_damaged_cache_is_made_anew(self, tmp_path, cache, caplog):
        root = write_folders(tmp_path / "data")
        first = load_images("mine", root)
        (file,) = cache.iterdir()
        file.write_bytes(file.read_bytes()[:100])
        assert torch.equal(load_images("mine", root).train.images, first.train.images)
        assert "is damaged" in caplog.text

    def test_unwritable_cache_does_not_stop_the_run(self, tmp_path, cache, caplog):
        cache.write_text("a file where the folder should be")
        assert len(load_images("mine", write_folders(tmp_path / "data")).train) == 12
        assert "cannot be cached" in caplog.text


class TestBatches:
    def values(self, batches):
        return [batch.images[:, 0, 0, 0].tolist() for batch in batches]

    def test_order_is_a_function_of_seed_and_epoch(self):
        batches = Batches(numbered(50), Plan(8, seed=1, shuffle=True))
        first = self.values(batches)
        assert first == self.values(batches)
        batches.set_epoch(1)
        assert self.values(batches) != first
        batches.set_epoch(0)
        assert self.values(batches) == first
        assert sorted(value for batch in first for value in batch) == list(range(50))

    def test_draws_are_a_function_of_seed_epoch_and_batch(self):
        def draws(seed, epoch):
            batches = Batches(numbered(20), Plan(8, seed=seed, shuffle=True, draws=3))
            batches.set_epoch(epoch)
            return [batch.draws for batch in batches]

        assert all(map(torch.equal, draws(0, 1), draws(0, 1)))
        assert not torch.equal(draws(0, 1)[0], draws(0, 1)[1])
        assert not torch.equal(draws(0, 1)[0], draws(1, 0)[0])
        assert [len(part) for part in draws(0, 0)] == [8, 8, 4]

    @settings(max_examples=50)
    @given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 4), st.booleans())
    def test_processes_share_the_global_batches(self, count, batch_size, world, shuffle):
        data = numbered(count)
        one = Batches(data, Plan(batch_size * world, shuffle=shuffle, draws=2))
        plans = [
            Plan(batch_size, shuffle=shuffle, draws=2, rank=rank, world_size=world)
            for rank in range(world)
        ]
        if any(plan.count_batches(count) == 0 for plan in plans):
            return
        parts = [list(Batches(data, plan)) for plan in plans]
        for place, whole in enumerate(one):
            shards = [part[place] for part in parts if place < len(part)]
            if not shards:  # fewer images than processes, at the end of an epoch of training
                assert shuffle
                assert len(whole.images) < world
                continue
            together = torch.cat([shard.images for shard in shards])
            kept = len(together)
            assert torch.equal(together, whole.images[:kept])
            assert torch.equal(torch.cat([shard.draws for shard in shards]), whole.draws[:kept])
            # training gives each process the same number, evaluation loses none
            assert kept == (len(whole.images) // world * world if shuffle else len(whole.images))

    @given(st.integers(1, 40), st.integers(1, 9), st.booleans())
    def test_length(self, count, batch_size, drop_last):
        plan = Plan(batch_size, drop_last=drop_last)
        if drop_last and count < batch_size:
            with pytest.raises(ValueError, match="do not fill one batch"):
                Batches(numbered(count), plan)
            return
        batches = Batches(numbered(count), plan)
        assert len(list(batches)) == len(batches)

    @given(st.integers(0, 6), st.integers(0, 3))
    def test_resumes_where_the_state_was_taken(self, given_batches, epoch):
        plan = Plan(8, shuffle=True, draws=1)
        original = Batches(numbered(50), plan)
        original.set_epoch(epoch)
        iterator = iter(original)
        for _ in range(given_batches):
            next(iterator)
        resumed = Batches(numbered(50), plan)
        resumed.load_state_dict(json.loads(json.dumps(original.state_dict())))
        resumed.set_epoch(epoch)
        assert self.values(resumed) == self.values(iterator)
        resumed.set_epoch(epoch + 1)
        assert len(self.values(resumed)) == len(resumed)

    def test_state_of_other_data_is_refused(self):
        state = Batches(numbered(50), Plan(8)).state_dict()
        with pytest.raises(ValueError, match="made with global_batch=8, now it is 4"):
            Batches(numbered(50), Plan(4)).load_state_dict(state)

    @pytest.mark.parametrize(
        ("plan", "message"),
        [
            ({"batch_size": 0}, "batch_size=0 must be at least 1"),
            ({"batch_size": 1, "seed": -1}, "seed=-1 must not be negative"),
            ({"batch_size": 1, "rank": 2, "world_size": 2}, r"rank=2 must lie in 0\.\.1"),
        ],
    )
    def test_bad_plans(self, plan, message):
        with pytest.raises(ValueError, match=message):
            Plan(**plan)

    def test_seeds_of_neighbours_are_unrelated(self):
        seeds = {derive_seed(seed, epoch) for seed in range(30) for epoch in range(30)}
        assert len(seeds) == 900


class TestAugment:
    def test_crop_is_a_shift(self):
        images = torch.randint(1, 256, (81, 3, 6, 7), dtype=torch.uint8)
        draws = torch.cartesian_prod(torch.arange(9), torch.arange(9))
        cropped = augment(images, draws, ["crop"])
        for image, (top, left), result in zip(images, draws.tolist(), cropped, strict=True):
            padded = nn.functional.pad(image, [4] * 4)
            assert torch.equal(result, padded[:, top : top + 6, left : left + 7])

    def test_flip_mirrors_the_even_draws(self):
        images = torch.randint(0, 256, (4, 3, 5, 6), dtype=torch.uint8)
        flipped = augment(images, torch.tensor([[0], [1], [2], [3]]), ["flip"])
        assert torch.equal(flipped[1::2], images[1::2])
        assert torch.equal(flipped[::2], images[::2].flip(3))

    def test_resized_crop_of_the_whole_changes_nothing(self):
        images = torch.randint(0, 256, (2, 3, 16, 16)).float()
        draws = torch.tensor([[DRAW_LIMIT - 1, DRAW_LIMIT // 2, 0, 0]] * 2)
        torch.testing.assert_close(
            augment(images, draws, ["resized_crop"]), images, atol=1e-2, rtol=0
        )

    def test_resized_crop_stays_inside_the_image(self):
        images = torch.full((64, 3, 16, 16), 7, dtype=torch.uint8)
        draws = torch.randint(DRAW_LIMIT, (64, 4), generator=torch.Generator().manual_seed(0))
        cropped = augment(images, draws, ["resized_crop"])
        torch.testing.assert_close(cropped, torch.full_like(cropped, 7.0))

    def test_each_takes_its_own_draws(self):
        names = list(AUGMENTATIONS)
        draws = torch.randint(DRAW_LIMIT, (4, count_draws(names)))
        assert augment(numbered(4).images, draws, names).shape == (4, 3, SIZE, SIZE)

    def test_unknown_name_offers_the_nearest(self):
        with pytest.raises(ValueError, match="unknown augmentation 'flop'; did you mean flip"):
            count_draws(["crop", "flop"])

    def test_normalize(self):
        normalized = Normalize([0.5] * 3, [0.25] * 3)(numbered(256).images)
        torch.testing.assert_close(normalized[:, 0, 0, 0], (torch.arange(256) / 255 - 0.5) / 0.25)


class TestImageData:
    def test_digits(self):
        data = ImageData(batch_size=500, eval_batch_size=1000, augment=("crop", "flip"))
        with pytest.raises(RuntimeError, match="call setup"):
            _ = data.classes
        data.setup()
        assert (data.num_classes, data.in_channels, data.image_size) == (10, 3, (32, 32))
        pixels = torch.cat([data.on_after_batch_transfer(b, 0)[0] for b in data.val_dataloader()])
        assert pixels.dtype == torch.float32
        torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.zeros(3), atol=0.05, rtol=0)
        torch.testing.assert_close(pixels.std((0, 2, 3)), torch.ones(3), atol=0.05, rtol=0)
        train = sum(len(batch.labels) for batch in data.train_dataloader())
        assert train + len(pixels) == 8000
        assert sum(len(batch.labels) for batch in data.test_dataloader()) == 2000
        augmented, labels = data.on_after_batch_transfer(next(iter(data.train_dataloader())), 0)
        assert augmented.shape == (500, 3, 32, 32)
        assert labels.dtype == torch.int64

    def test_without_validation_all_training_data_are_used(self, tmp_path):
        data = ImageData("mine", write_folders(tmp_path / "data"), validation=0)
        data.setup()
        assert data.val_dataloader() == []
        assert len(next(iter(data.train_dataloader())).labels) == 12

    def test_own_validation_part_is_used(self, tmp_path):
        root = write_folders(tmp_path / "data", ("train", "validation", "test"))
        data = ImageData("mine", root)
        data.setup()
        assert len(next(iter(data.train_dataloader())).labels) == 12
        assert len(next(iter(data.val_dataloader())).labels) == 12

    def test_limit(self, tmp_path):
        root = write_folders(tmp_path / "data")
        few = ImageData("mine", root, limit=5)
        few.setup()
        assert len(next(iter(few.train_dataloader())).labels) == 5

    def test_published_constants(self, tmp_path):
        data = ImageData("cifar10", write_parquet(tmp_path / "data"))
        data.setup()
        assert data.mean == (0.4914, 0.4822, 0.4465)
        assert data.std == (0.2023, 0.1994, 0.2010)

    def test_svhn_is_only_scaled(self, tmp_path):
        data = ImageData("svhn", write_parquet(tmp_path / "data"))
        data.setup()
        images, _ = data.on_after_batch_transfer(next(iter(data.test_dataloader())), 0)
        assert (images.min(), images.max()) == (0, 1)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"name": "svnh"}, "did you mean svhn"),
            ({"validation": 1.0}, "validation=1.0 must be a fraction"),
            ({"batch_size": 0}, "batch_size=0"),
            ({"eval_batch_size": 0}, "batch_size=0"),
            ({"limit": 0}, "limit=0 must be at least 1"),
            ({"image_size": 0}, "image_size=0 must be at least 1"),
            ({"seed": -1}, "seed=-1"),
            ({"augment": ("rotate",)}, "unknown augmentation 'rotate'; known are crop"),
            ({"corrupt": "ignore"}, "corrupt='ignore'"),
        ],
    )
    def test_bad_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            ImageData(**arguments)

    def test_metadata_travel_as_json_and_serve_prediction(self, tmp_path):
        root = write_folders(tmp_path / "data")
        data = ImageData("mine", root)
        data.setup()
        metadata = json.loads(json.dumps(data.metadata()))
        assert metadata["classes"] == ["cat", "dog"]
        expected, _ = data.on_after_batch_transfer(next(iter(data.test_dataloader())), 0)
        with Image.open(root / "test/cat/0.png") as image:
            assert torch.equal(preprocess(image, metadata), expected[:1])
        assert torch.equal(preprocess(load_images("mine", root).test.images, metadata), expected)

    def test_prediction_fits_images_of_other_sizes_and_modes(self):
        known = {"classes": [], "image_size": [SIZE, SIZE]}
        metadata = {**known, "crop": 1.0, "mean": [0.0] * 3, "std": [1.0] * 3}
        images = [Image.new("L", (31, 17), 255), Image.new("RGBA", (9, 9), (0, 0, 0, 0))]
        assert torch.equal(preprocess(images, metadata), torch.ones(2, 3, SIZE, SIZE))
        with pytest.raises(ValueError, match=r"shape \(N, 3, 8, 8\), not torch.uint8"):
            preprocess(torch.zeros(1, 3, 5, 5, dtype=torch.uint8), metadata)
        with pytest.raises(ValueError, match="metadata lack crop, mean, std"):
            preprocess(images, known)


class TestStream:
    @pytest.mark.parametrize("write", [write_folders, write_parquet])
    def test_training_and_test(self, tmp_path, write):
        root = write(tmp_path / "data")
        data = ImageData("imagenet", root, batch_size=5, validation=0, image_size=6)
        # ImageNet's test part is the source's validation part
        (root / "test").rename(root / "validation") if write is write_folders else (
            root / "test-00000-of-00001.parquet"
        ).rename(root / "validation-00000-of-00001.parquet")
        data.setup()
        train = data.train_dataloader()
        assert [tuple(batch.images.shape) for batch in train] == [(5, 3, 6, 6)] * 2 + [(2, 3, 6, 6)]
        assert len(train) == 3
        test = torch.cat([batch.labels for batch in data.test_dataloader()])
        assert test.tolist() == [
            e.label for e in open_source("imagenet", root).open().parts["test"]
        ]
        assert data.metadata()["crop"] == 224 / 256

    def test_default_sizes(self, tmp_path):
        root = write_folders(tmp_path / "data", ("train", "val", "test"), count=1)
        data = ImageData("svhn", root, streaming=True)
        data.setup()
        assert next(iter(data.train_dataloader())).images.shape == (2, 3, 160, 160)
        assert next(iter(data.val_dataloader())).images.shape == (2, 3, 224, 224)

    def test_a_data_set_of_save_to_disk(self, tmp_path):
        write_parquet(tmp_path / "data")
        saved = datasets.load_dataset(str(tmp_path / "data"))
        saved.save_to_disk(tmp_path / "saved")
        parts = TableFolder(tmp_path / "saved", {}).open(streaming=True).parts
        plain = [row.content for row in parts["train"]]
        first, again, second = (
            [row.content for row in parts["train"].shuffled(0, epoch)] for epoch in (0, 0, 1)
        )
        assert first == again
        assert sorted(first) == sorted(second) == sorted(plain)
        assert first != second
        assert first != plain

    def test_resumes_in_the_middle_of_an_epoch(self, tmp_path):
        rows = open_source("mine", write_folders(tmp_path / "data")).open().parts["train"]
        plan = Plan(4, seed=2, shuffle=True, draws=1)

        def stream():
            return StreamBatches(rows, plan, image_size=6, random_crop=True)

        original = stream()
        original.set_epoch(3)
        batches = iter(original)
        next(batches)
        state = original.state_dict()
        resumed = stream()
        resumed.load_state_dict(state)
        resumed.set_epoch(3)
        for one, other in zip(list(batches), list(resumed), strict=True):
            assert all(map(torch.equal, one, other))

    def test_corrupt_images(self, tmp_path):
        root = write_folders(tmp_path / "data")
        (root / "train/cat/0.png").write_text("not an image")
        rows = open_source("mine", root).open().parts["train"]
        with pytest.raises(CorruptImageError, match=r"0\.png"):
            list(StreamBatches(rows, Plan(4), image_size=6))
        stream = StreamBatches(rows, Plan(4, draws=2), image_size=6, corrupt="skip")
        assert [len(batch.images) for batch in stream] == [3, 4, 4]
        assert len(stream.skipped) == 1

    def test_what_a_stream_cannot_do(self, tmp_path):
        root = write_folders(tmp_path / "data", ("train", "validation"))
        with pytest.raises(ValueError, match=r"a stream cannot be split.*validation=0"):
            ImageData("imagenet", root).setup()
        with pytest.raises(ValueError, match="streamed with limit=5"):
            ImageData("imagenet", root, validation=0, limit=5).setup()
        with pytest.raises(ValueError, match="whose mean and std are known"):
            ImageData("mine", root, validation=0, streaming=True).setup()


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
        self.seen = []

    def training_step(self, batch, batch_idx):
        images, labels = batch
        self.seen.append(images.double().sum().item())
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def fit(root, folder, ckpt_path=None, **arguments):
    lightning.seed_everything(0, verbose=False)
    data = ImageData("mine", root, batch_size=2, augment=("crop", "flip"), validation=0.25)
    keep = lightning.pytorch.callbacks.ModelCheckpoint(
        folder, "{step}", every_n_train_steps=1, save_top_k=-1
    )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, callbacks=[keep],
        enable_progress_bar=False, enable_model_summary=False, deterministic=True,
        num_sanity_val_steps=0, **arguments,
    )  # fmt: skip
    model = Classifier()
    trainer.fit(model, data, ckpt_path=ckpt_path, weights_only=True if ckpt_path else None)
    return model


# Lightning 2.6 with torch 2.13
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty:UserWarning")
@pytest.mark.parametrize(
    "length",
    [
        {"max_epochs": 3},
        {"max_epochs": -1, "max_steps": 15},
        {"max_epochs": 3, "val_check_interval": 2},
    ],
)
def test_resume_is_bit_equal_at_every_step(tmp_path, length):
    root = write_folders(tmp_path / "data")  # 9 training images: 5 steps an epoch
    whole = fit(root, tmp_path, **length)
    assert len(whole.seen) == 15
    assert len(set(whole.seen)) == 15
    for step in (1, 4, 5, 6, 14):
        resumed = fit(root, tmp_path, tmp_path / f"step={step}.ckpt", **length)
        assert resumed.seen == whole.seen[step:], step
        for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
            assert torch.equal(one, other), step
