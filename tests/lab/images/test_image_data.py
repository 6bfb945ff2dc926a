import json

import datasets
import lightning
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from helpers.pictures import SIZE, numbered, write_folders, write_parquet
from phnn.lab.seeds import derive_seed
from phnn.lab.tasks.images import (
    AUGMENTATIONS,
    Batches,
    CorruptImageError,
    ImageData,
    Normalize,
    Plan,
    StreamBatches,
    augment,
    count_draws,
    find_alternating,
    load_images,
    preprocess,
)
from phnn.lab.tasks.images.batches import DRAW_LIMIT
from phnn.lab.tasks.images.sources import open_source
from phnn.lab.tasks.images.tables import TableFolder
from phnn.lab.training.trainer import to_lightning


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
        assert [len(split) for split in draws(0, 0)] == [8, 8, 4]

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
        splits = [list(Batches(data, plan)) for plan in plans]
        for number, whole in enumerate(one):
            shards = [split[number] for split in splits if number < len(split)]
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

    def test_shift_mirrors_what_it_uncovers(self):
        images = torch.randint(1, 256, (25, 3, 6, 7), dtype=torch.uint8)
        draws = torch.cartesian_prod(torch.arange(5), torch.arange(5))
        shifted = augment(images, draws, ["shift"])
        for image, (top, left), result in zip(images, draws.tolist(), shifted, strict=True):
            rows = [abs(r) if r < 6 else 10 - r for r in range(top - 2, top + 4)]
            columns = [abs(c) if c < 7 else 12 - c for c in range(left - 2, left + 5)]
            assert torch.equal(result, image[:, rows][:, :, columns])

    def test_alternating_flips_show_both_sides_in_two_epochs(self):
        names = ("shift", "alternating_flip")
        plan = Plan(8, shuffle=True, draws=3, alternating=find_alternating(names))
        batches = Batches(numbered(50), plan)
        flips = []
        for epoch in (0, 1, 2):
            batches.set_epoch(epoch)
            parts = [(batch.images[:, 0, 0, 0], batch.draws[:, 2] % 2) for batch in batches]
            order, odd = (torch.cat(part) for part in zip(*parts, strict=True))
            flips.append(odd[order.long().argsort()])
        assert 10 < flips[0].sum() < 40
        assert torch.equal(flips[1], 1 - flips[0])
        assert torch.equal(flips[2], flips[0])

    def test_alternating_flips_need_images_with_numbers(self):
        with pytest.raises(ValueError, match="alternating_flip needs images in memory"):
            ImageData("imagenet", validation=0, augment=("alternating_flip",))

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

    def test_rotations_are_classes(self):
        plain, turned = (ImageData(batch_size=500, rotations=each) for each in (False, True))
        for data in (plain, turned):
            data.setup()
        assert turned.num_classes == 40
        assert turned.classes[:5] == ("0 0°", "0 90°", "0 180°", "0 270°", "1 0°")
        for before, after in zip(plain.test_dataloader(), turned.test_dataloader(), strict=True):
            angles = after.labels % 4
            assert torch.equal(after.labels // 4, before.labels)
            assert set(angles.tolist()) == {0, 1, 2, 3}
            for image, result, angle in zip(before.images, after.images, angles, strict=True):
                assert torch.equal(result, image.rot90(int(angle), (1, 2)))

    @pytest.mark.parametrize("augment", ["flip", "alternating_flip"])
    def test_rotations_and_flips_contradict_each_other(self, augment):
        with pytest.raises(ValueError, match="mirrors images, which exchanges the classes"):
            ImageData(rotations=True, augment=("shift", augment))

    def test_a_sample_is_not_augmented(self):
        data = ImageData(batch_size=100, augment=("crop",))
        data.setup()
        sample = data.sample(250)
        assert sample.shape == (250, 3, 32, 32)
        batch = next(iter(data.train_dataloader()))
        assert torch.equal(
            sample[:100], data.on_after_batch_transfer(batch._replace(draws=None), 0)[0]
        )

    def test_without_validation_all_training_data_are_used(self, tmp_path):
        data = ImageData("mine", write_folders(tmp_path / "data"), validation=0)
        data.setup()
        assert data.val_dataloader() == []
        assert len(next(iter(data.train_dataloader())).labels) == 12

    def test_own_validation_split_is_used(self, tmp_path):
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
        # ImageNet's test split is the source's validation split
        (root / "test").rename(root / "validation") if write is write_folders else (
            root / "test-00000-of-00001.parquet"
        ).rename(root / "validation-00000-of-00001.parquet")
        data.setup()
        train = data.train_dataloader()
        assert [tuple(batch.images.shape) for batch in train] == [(5, 3, 6, 6)] * 2 + [(2, 3, 6, 6)]
        assert len(train) == 3
        test = torch.cat([batch.labels for batch in data.test_dataloader()])
        assert test.tolist() == [
            e.label for e in open_source("imagenet", root).open().splits["test"]
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
        splits = TableFolder(tmp_path / "saved", {}).open(streaming=True).splits
        plain = [row.content for row in splits["train"]]
        first, again, second = (
            [row.content for row in splits["train"].shuffled(0, epoch)] for epoch in (0, 0, 1)
        )
        assert first == again
        assert sorted(first) == sorted(second) == sorted(plain)
        assert first != second
        assert first != plain

    def test_resumes_in_the_middle_of_an_epoch(self, tmp_path):
        rows = open_source("mine", write_folders(tmp_path / "data")).open().splits["train"]
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
        rows = open_source("mine", root).open().splits["train"]
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
    trainer.fit(
        model, to_lightning(data), ckpt_path=ckpt_path, weights_only=True if ckpt_path else None
    )
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
