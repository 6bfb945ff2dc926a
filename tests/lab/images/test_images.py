import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from helpers.pictures import SIZE, encode, numbered, random_images, write_folders, write_parquet
from phnn.lab.tasks.images import CorruptImageError, ImageSet, load_images
from phnn.lab.tasks.images.folders import ClassFolders
from phnn.lab.tasks.images.sources import open_source
from phnn.lab.tasks.images.tables import find_columns


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
            with pytest.raises(ValueError, match="leaves one split empty"):
                data.split(fraction, seed)
            return
        rest, held = data.split(fraction, seed)
        values = torch.cat([rest.images, held.images])[:, 0, 0, 0]
        assert values.sort().values.tolist() == list(range(count))
        assert len(held) == round(fraction * count)


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

    def test_one_level_of_class_folders_gets_a_test_split(self, tmp_path):
        splits = load_images("mine", write_folders(tmp_path / "data", (".",), count=10))
        assert (len(splits.train), len(splits.test)) == (18, 2)

    def test_a_validation_split_without_a_test_split_is_the_test_split(self, tmp_path):
        splits = load_images("mine", write_folders(tmp_path / "data", ("train", "val")))
        assert splits.validation is None
        assert len(splits.test) == 12

    def test_a_split_without_labels_is_left_out(self, tmp_path):
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

    def test_two_folders_for_one_split(self, tmp_path):
        root = write_folders(tmp_path / "data", ("train", "val", "validation"))
        with pytest.raises(ValueError, match=r"val and .*validation are both the validation split"):
            load_images("mine", root)

    @pytest.mark.parametrize(
        ("name", "splits"), [("mine", ("Train", "TEST")), ("imagenet", ("train", "val"))]
    )
    def test_other_names_of_splits(self, tmp_path, name, splits):
        root = write_folders(tmp_path / "data", splits)
        opened = open_source(name, root).open().splits
        assert {split: len(rows) for split, rows in opened.items()} == {"train": 12, "test": 12}

    def test_unknown_names_of_splits(self, tmp_path, caplog):
        root = write_folders(tmp_path / "data", ("training_set", "test_set"))
        with pytest.raises(ValueError, match=r"test_set, training_set, each with cat, dog"):
            load_images("mine", root)
        (root / "training_set").rename(root / "train")
        load_images("mine", root)
        assert "test_set is not a split of the data" in caplog.text
        assert "has no test split: 10 % of its images are held out" in caplog.text

    def test_a_class_may_have_the_name_of_a_split(self, tmp_path):
        root = write_folders(tmp_path / "data", (".",))
        (root / "cat").rename(root / "Train")
        assert load_images("mine", root).train.classes == ("Train", "dog")
        (root / "dog").rename(root / "Test")  # now they look like splits
        with pytest.raises(ValueError, match="has no class folders"):
            load_images("mine", root)

    def test_classes_may_have_a_folder_inside(self, tmp_path):
        root = write_folders(tmp_path / "data", (".",))
        for name in ("cat", "dog"):
            (root / name).rename(root / "images")
            (root / name).mkdir()
            (root / "images").rename(root / name / "images")
        assert load_images("mine", root).train.classes == ("cat", "dog")

    def test_no_split_of_use(self, tmp_path):
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

    def test_hub_names_and_splits(self, monkeypatch, tmp_path):
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

    @pytest.mark.parametrize("damage", ["truncated", *range(20)])
    def test_damaged_cache_is_made_anew(self, tmp_path, cache, caplog, damage):
        root = write_folders(tmp_path / "data")
        first = load_images("mine", root)
        (file,) = cache.iterdir()
        content = bytearray(file.read_bytes())
        if damage == "truncated":
            del content[100:]
        else:  # one bit, anywhere
            content[(damage * len(content)) // 20] ^= 1 << damage % 8
        file.write_bytes(content)
        again = load_images("mine", root)
        assert torch.equal(again.train.images, first.train.images)
        assert torch.equal(again.train.labels, first.train.labels)
        assert again.train.classes == first.train.classes
        assert "is damaged" in caplog.text
        caplog.clear()
        load_images("mine", root)
        assert not caplog.text

    def test_unwritable_cache_does_not_stop_the_run(self, tmp_path, cache, caplog):
        cache.write_text("a file where the folder should be")
        assert len(load_images("mine", write_folders(tmp_path / "data")).train) == 12
        assert "cannot be cached" in caplog.text
