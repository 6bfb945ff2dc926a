import json
import os

import lightning
import numpy as np
import pytest
import soundfile
import torch
from torch import nn

from helpers.recordings import (
    NAMES,
    RATE,
    SECONDS,
    open_data,
    read_split,
    write_recording,
    write_set,
)
from phnn.lab.tasks.sound import CLASSES, SoundData, find_splits, preprocess, read_wave
from phnn.lab.tasks.sound import cache as sound_cache
from phnn.lab.tasks.sound import data as sound_data
from phnn.lab.tasks.sound.cache import Options
from phnn.lab.tasks.sound.clips import _measure
from phnn.lab.tasks.sound.features import (
    DETECTION_KEYS,
    check_metadata,
    extract,
    restore_magnitudes,
)
from phnn.lab.tasks.sound.labels import read_events
from phnn.lab.tasks.sound.spectrograms import find_phases
from phnn.lab.training.trainer import to_lightning


class TestCache:
    def count_work(self, monkeypatch):
        calls = []
        original = sound_cache.extract
        monkeypatch.setattr(
            sound_cache, "extract", lambda *a, **k: (calls.append(1), original(*a, **k))[1]
        )
        return calls

    def test_used_again(self, root, monkeypatch):
        calls = self.count_work(monkeypatch)
        first = read_split(open_data(root), "test")
        assert len(calls) == 7
        second = read_split(open_data(root, rule="plain", seed=3, standardize=None), "test")
        assert len(calls) == 7  # labels, split and statistics are none of its business
        assert first[0].shape == second[0].shape
        assert (root / ".phnn-cache").is_dir()

    def test_key(self, root, tmp_path, monkeypatch):
        calls = self.count_work(monkeypatch)
        open_data(root)
        for options in ({"phase": True}, {"microphones": 2}, {"dtype": "float16"}):
            before = len(calls)
            open_data(root, **options)
            assert len(calls) == before + 7
        write_recording(root / "L3DAS_Task2_dev", "split0_ov1_0", seed=9)
        before = len(calls)
        open_data(root)
        assert len(calls) == before + 2  # the dev split alone
        open_data(root, cache=tmp_path / "elsewhere")
        assert len(calls) == before + 9

    def test_key_of_files_that_look_alike(self, tmp_path, monkeypatch):
        calls = self.count_work(monkeypatch)
        root = write_set(tmp_path / "set", train=2, dev=2)
        for path in root.rglob("*.wav"):  # as an archive may have it
            os.utime(path, (0, 0))
        data = open_data(root, validation=0)
        assert len(calls) == 4
        train, test = (read_split(data, split)[0] for split in ("train", "test"))
        assert not torch.equal(train, test)

    def test_resumes(self, root, monkeypatch):
        expected = read_split(open_data(root, cache=root / "other"), "train")
        calls = self.count_work(monkeypatch)
        original = sound_cache.read_wave

        def stop(waves, *arguments):
            if "ov1_3" in waves[0].name:
                raise KeyboardInterrupt
            return original(waves, *arguments)

        monkeypatch.setattr(sound_cache, "read_wave", stop)
        with pytest.raises(KeyboardInterrupt):
            open_data(root)
        assert len(calls) == 3
        monkeypatch.setattr(sound_cache, "read_wave", original)
        data = open_data(root)
        assert len(calls) == 7  # none was done twice
        for found, wanted in zip(read_split(data, "train"), expected, strict=True):
            assert torch.equal(found, wanted)

    @pytest.mark.parametrize("file", ["features.npy", "sums.npy", "done.npy"])
    def test_damaged_remains(self, root, file):
        expected = read_split(open_data(root, cache=root / "other"), "test")
        open_data(root)
        for folder in (root / ".phnn-cache").iterdir():
            (folder / "index.json").unlink()
            (folder / file).write_bytes(b"\x93NUMPY")
        found = read_split(open_data(root), "test")
        assert torch.equal(found[0], expected[0])

    @pytest.mark.parametrize("file", ["features.npy", "sums.npy", "digests.npy", "index.json"])
    def test_a_flipped_bit(self, root, file, monkeypatch, caplog):
        expected = read_split(open_data(root), "test")
        calls = self.count_work(monkeypatch)
        for folder in (root / ".phnn-cache").iterdir():
            content = bytearray((folder / file).read_bytes())
            content[-9] ^= 4
            (folder / file).write_bytes(content)
        found = read_split(open_data(root), "test")
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert "are damaged" in caplog.text
        # one recording of each split, or all when it is not known which
        assert len(calls) == (2 if file in ("features.npy", "sums.npy") else 7)
        open_data(root)
        assert len(calls) <= 7  # nothing is made a third time

    def test_nowhere_to_write(self, root, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match="give another folder with cache="):
            open_data(root, cache=tmp_path / "file")

    def test_full_disk(self, root, monkeypatch):
        usage = type("Usage", (), {"free": 1000})
        monkeypatch.setattr(sound_cache.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(OSError, match="GB left; give another folder"):
            open_data(root)

    def test_half_precision(self, root):
        whole, half = (
            read_split(open_data(root, dtype=dtype, phase=True), "test")[0]
            for dtype in ("float32", "float16")
        )
        assert half.dtype == torch.float32
        torch.testing.assert_close(half, whole, rtol=2e-3, atol=2e-3)

    def test_too_loud_for_half_precision(self, root):
        path = root / "L3DAS_Task2_dev/data/split0_ov1_0_A.wav"
        tone = 100 * np.sin(np.arange(9600) / 3)
        soundfile.write(path, np.stack([tone] * 4, 1), RATE, "FLOAT")
        with pytest.raises(ValueError, match="louder than dtype='float16' can hold"):
            open_data(root, dtype="float16")


class TestStandardization:
    def raw(self, root, data, split, **options):
        return read_split(open_data(root, standardize=None, **options), split)[0]

    def test_from_the_training_split(self, root):
        options = {"phase": True, "microphones": 2}
        data = open_data(root, **options)
        train, test = read_split(data, "train")[0], read_split(data, "test")[0]
        phases = torch.tensor(Options(2, True, "paper").phases(4))
        for kind in (phases, ~phases):
            assert train[:, kind].mean().abs() < 1e-4
            assert train[:, kind].std(correction=0) == pytest.approx(1, abs=1e-4)
            raw_train = self.raw(root, data, "train", **options)[:, kind].double()
            raw_test = self.raw(root, data, "test", **options)[:, kind].double()
            expected = (raw_test - raw_train.mean()) / raw_train.std(correction=0)
            torch.testing.assert_close(test[:, kind].double(), expected, rtol=1e-4, atol=1e-4)

    def test_authors(self, root):
        data = open_data(root, standardize="authors", microphones=2, phase=True, order="authors")
        for split in ("train", "validation", "test"):
            inputs = read_split(data, split)[0]
            for half in (inputs[:, :8], inputs[:, 8:]):
                assert half.mean().abs() < 1e-4
                assert half.std(correction=0) == pytest.approx(1, abs=1e-4)

    @pytest.mark.parametrize("standardize", ["authors", None])
    def test_of_other_data_where_none_are_of_training(self, root, standardize):
        data = open_data(root, standardize=standardize)
        before = read_split(data, "test")[0]
        data.standardize_as({"mean": [7.0] * 4, "std": [2.0] * 4})
        assert torch.equal(read_split(data, "test")[0], before)

    @pytest.mark.parametrize("kind", [{"rate": 16000}, {"magnitudes": "log"}])
    def test_of_another_kind(self, root, kind):
        data = open_data(root)
        with pytest.raises(ValueError, match=r"was trained on recordings with \w+=(16000|log)"):
            data.standardize_as({**data.metadata(), **kind})

    def test_authors_with_one_microphone(self, root):
        data = open_data(root, standardize="authors", phase=True)
        inputs = read_split(data, "test")[0]
        assert inputs.mean().abs() < 1e-4  # magnitudes and phases together,
        assert inputs[:, :4].std() < 0.1  # so the magnitudes hardly vary

    def test_silence(self, tmp_path):
        for split in ("train", "dev"):
            for name in "ab":
                write_recording(tmp_path / split, name)
                soundfile.write(tmp_path / split / f"data/{name}_A.wav", np.zeros((9600, 4)), RATE)
        with pytest.raises(ValueError, match="they are silent"):
            open_data(tmp_path, validation=0)


class TestData:
    def test_batches(self, root):
        data = open_data(root, microphones=2, phase=True)
        assert (data.in_channels, data.num_classes, data.classes) == (16, 2, NAMES)
        for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
            for batch in loader:
                inputs, labels = data.on_after_batch_transfer(batch, 0)
                assert inputs.shape[1:] == (16, 256, 96)
                assert labels.shape[1:] == (12, 6)
                assert inputs.dtype == labels.dtype == torch.float32
        assert len(data.train_dataloader()) == 2

    def test_labels_belong_to_the_sound(self, root):
        """Every recording is given with its own labels, whatever the order and the segment."""
        whole = open_data(root, validation=0)
        inputs, labels = read_split(whole, "train")
        data = open_data(root, validation=0, segment=0.4)
        seen = 0
        for batch in data.train_dataloader():
            for x, y in zip(*data.on_after_batch_transfer(batch, 0), strict=True):
                cuts = [
                    (row, cut)
                    for row in range(5)
                    for cut in range(3)
                    if torch.equal(inputs[row, :, :, 32 * cut : 32 * (cut + 1)], x)
                ]
                [(row, cut)] = cuts
                assert torch.equal(labels[row, 4 * cut : 4 * (cut + 1)], y)
                seen += 1
        assert seen == 15

    def test_order(self, root):
        def order(seed, epoch):
            loader = open_data(root, seed=seed, segment=0.1).train_dataloader()
            loader.set_epoch(epoch)
            return [batch.spectrograms.sum().item() for batch in loader]

        assert order(0, 0) == order(0, 0)
        assert order(0, 0) != order(0, 1)
        assert order(0, 0) != order(1, 0)

    def test_resumes(self, root):
        loader = open_data(root, segment=0.3).train_dataloader()
        loader.set_epoch(4)
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
        rest = [batch.spectrograms for batch in batches]
        assert rest
        again = open_data(root, segment=0.3).train_dataloader()
        again.load_state_dict(json.loads(json.dumps(state)))
        again.set_epoch(4)
        for one, other in zip(rest, again, strict=True):
            assert torch.equal(one, other.spectrograms)
        with pytest.raises(ValueError, match="made with segments=16, now it is 48"):
            open_data(root, segment=0.1).train_dataloader().load_state_dict(state)

    def test_validation_split(self, root):
        one = open_data(root)
        rows = [set(one._sets.splits[split].rows.tolist()) for split in ("train", "validation")]
        assert rows[0] | rows[1] == set(range(5))
        assert not rows[0] & rows[1]
        assert len(rows[1]) == 1
        assert any(
            open_data(root, seed=seed)._sets.splits["validation"].rows.tolist() != [*rows[1]]
            for seed in range(1, 6)
        )
        assert open_data(root, validation=0).val_dataloader() == []
        with pytest.raises(
            ValueError, match=r"validation=0.01 of 5 recordings leaves one split empty"
        ):
            open_data(root, validation=0.01)

    @pytest.mark.parametrize("magnitudes", ["linear", "log"])
    def test_metadata(self, root, magnitudes):
        data = open_data(root, phase=True, magnitudes=magnitudes)
        metadata = json.loads(json.dumps(data.metadata()))
        assert metadata["classes"] == list(NAMES)
        expected = {
            "rate": RATE, "seconds": SECONDS, "bins": 256, "overlaps": 3, "channels": 4,
            "microphones": 1, "phase": True, "order": "paper", "rule": "reference",
            "magnitudes": magnitudes,
        }  # fmt: skip
        assert {key: metadata[key] for key in expected} == expected
        assert len(metadata["mean"]) == len(metadata["std"]) == 8
        inputs, _ = read_split(data, "test")
        recording = find_splits(root, 1)["test"][1]
        again = preprocess(read_wave(recording.waves), metadata)
        torch.testing.assert_close(again, inputs[1:2])

    @pytest.mark.parametrize("order", ["paper", "authors"])
    def test_logarithms(self, order):
        wave = 0.1 * torch.randn(8, 1600)
        options = {"phase": True, "order": order, "microphones": 2}
        plain = extract(wave, 32_000, magnitudes="linear", **options)
        log = extract(wave, 32_000, magnitudes="log", **options)
        phases = torch.tensor(find_phases(4, 2, True, order))
        assert torch.equal(log[phases], plain[phases])
        torch.testing.assert_close(log[~phases], (plain[~phases] + 1e-7).log())
        restored = restore_magnitudes(log[~phases], "log")
        torch.testing.assert_close(restored, plain[~phases], atol=1e-9, rtol=1e-5)

    def test_preprocess(self, root):
        metadata = open_data(root).metadata()
        assert preprocess(torch.randn(4, 1000), metadata).shape == (1, 4, 256, 16)
        assert preprocess(torch.randn(3, 4, 800), metadata).shape == (3, 4, 256, 8)
        with pytest.raises(ValueError, match=r"wave must be \(4, samples\).* it is \(2, 100\)"):
            preprocess(torch.randn(2, 100), metadata)
        with pytest.raises(ValueError, match="the metadata lack rate"):
            preprocess(torch.randn(4, 100), {k: v for k, v in metadata.items() if k != "rate"})
        check_metadata(metadata, DETECTION_KEYS)
        wrong = {
            "rate": ["x", 0, 8001, True, None],
            "microphones": [0, 3, "2"],
            "channels": [0, 10**9, 1.5],
            "phase": [1, "x"],
            "order": [3],
            "magnitudes": ["cubic", None],
            "mean": [3, ["x"] * 4, [float("nan")] * 4, [1e300] * 4],
            "std": [[0.0] * 4, [-1.0] * 4, [1.0], [float("inf")] * 4],
            "seconds": [0, -1, float("inf"), float("nan"), "x"],
            "classes": ["ab", [3], None],
        }
        for key, values in wrong.items():
            for value in values:
                with pytest.raises(ValueError, match=r"metadata|a rate of|magnitudes="):
                    check_metadata({**metadata, key: value}, DETECTION_KEYS)

    def test_length_that_needs_filling(self, tmp_path):
        for split in ("train", "dev"):
            for name in "ab":
                write_recording(tmp_path / split, name, seconds=1.234, events=[(1.0, 1.3, "bell")])
        inputs, labels = read_split(open_data(tmp_path, validation=0), "test")
        assert inputs.shape[-1] == 8 * labels.shape[1] == 104

    def test_processes_share_the_batches(self, root):
        def rows(rank, world_size, split):
            data = open_data(root, validation=0, batch_size=2 // world_size)
            data.rank, data.world_size = rank, world_size
            loader = {"train": data.train_dataloader, "test": data.test_dataloader}[split]()
            return [batch.spectrograms for batch in loader]

        for split in ("train", "test"):
            alone = rows(0, 1, split)
            together = list(zip(rows(0, 2, split), rows(1, 2, split), strict=True))
            assert together
            for one, pair in zip(alone, together, strict=False):
                assert torch.equal(one, torch.cat(pair))

    def test_before_setup(self, root):
        with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
            SoundData("mine", root).train_dataloader()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"name": "l3das"}, "unknown data set 'l3das'; did you mean l3das21"),
            ({"name": "l3das21"}, "give root=, the folder"),
            ({"microphones": 3}, "microphones=3 must be 1 or 2"),
            ({"order": "x"}, "order='x' must be one of"),
            ({"magnitudes": "x"}, "magnitudes='x' must be one of linear, log"),
            ({"rule": "x"}, "rule='x' must be one of"),
            ({"broken": "x"}, "broken='x' must be one of"),
            ({"standardize": "x"}, "standardize='x' must be None or one of train, authors"),
            ({"dtype": "int8"}, "dtype='int8' must be one of"),
            ({"validation": 1.0}, "validation=1.0 must be a fraction"),
            ({"batch_size": 0}, "batch_size=0 must be at least 1"),
            ({"overlaps": 0}, "overlaps=0 must be at least 1"),
            ({"classes": ("a", "a")}, "must be different names"),
        ],
    )
    def test_bad_options(self, options, message):
        with pytest.raises(ValueError, match=message):
            SoundData(**options)

    @pytest.mark.parametrize("segment", [0.5, 0.25, 0, 2.4])
    def test_bad_segments(self, root, segment):
        with pytest.raises(ValueError, match=f"segment={segment} s must be tenths of a second"):
            open_data(root, segment=segment)

    @pytest.mark.slow
    def test_made_on_the_spot(self, tmp_path, monkeypatch):
        pytest.importorskip("phnn.lab.tasks.sound.simulate")
        monkeypatch.setenv("PHNN_CACHE", str(tmp_path))
        monkeypatch.setattr(sound_data, "SIMULATED", {"train": 3, "dev": 1})
        monkeypatch.setattr(sound_data, "SIMULATED_SECONDS", 8.0)
        for _ in range(2):
            data = SoundData(batch_size=1, validation=0.34)
            data.setup()
        inputs, labels = read_split(data, "test")
        assert inputs.shape == (1, 4, 256, 640)
        assert labels.shape == (1, 80, 42)
        assert labels.any()

    def test_classes_of_a_simulation(self, root):
        (root / "simulation.json").write_text(json.dumps({"classes": ["b", "a"], "seed": 0}))
        assert SoundData("mine", root).classes == ("b", "a")
        assert SoundData("mine", root, classes=["c"]).classes == ("c",)

    def test_classes_of_the_challenge(self):
        assert len(CLASSES) == 14
        assert list(CLASSES) == sorted(CLASSES)
        assert SoundData("l3das21", "somewhere").classes == CLASSES


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning 2.6 with torch 2.13
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty:UserWarning")
class TestLightning:
    class Model(lightning.LightningModule):
        """Notes what it is given."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(256, 6)
            self.seen = {"training": [], "testing": []}

        def training_step(self, batch, index):
            inputs, labels = batch
            self.seen["training"].append(inputs.sum().item())
            outputs = self.layer(inputs.mean(1).unflatten(2, (-1, 8)).mean(3).transpose(1, 2))
            return nn.functional.binary_cross_entropy_with_logits(outputs, labels)

        def validation_step(self, batch, index):
            pass

        def test_step(self, batch, index):
            inputs, _ = batch
            assert len(inputs) == 1  # a whole recording
            self.seen["testing"].append(inputs.sum().item())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(self, root, folder, resume=None):
        model = self.Model()
        keep = lightning.pytorch.callbacks.ModelCheckpoint(
            folder, "{step}", every_n_train_steps=1, save_top_k=-1
        )
        trainer = lightning.Trainer(
            accelerator="cpu", logger=False, callbacks=[keep], enable_progress_bar=False,
            enable_model_summary=False, use_distributed_sampler=False, max_epochs=2,
        )  # fmt: skip
        data = SoundData("mine", root, classes=NAMES, batch_size=2, segment=0.3)
        trainer.fit(model, to_lightning(data), ckpt_path=resume, weights_only=False)
        return model, trainer, data

    def test_resumed_run_sees_the_same(self, root, tmp_path):
        whole, trainer, data = self.fit(root, tmp_path)
        seen = whole.seen["training"]
        assert len(seen) == 16  # two epochs of 16 segments
        assert seen[:8] != seen[8:]
        for step in (1, 7, 8, 13):
            resumed, _, _ = self.fit(root, tmp_path, tmp_path / f"step={step}.ckpt")
            assert resumed.seen["training"] == seen[step:]
        trainer.test(whole, to_lightning(data), verbose=False)
        assert len(whole.seen["testing"]) == 2


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes with names")
def test_a_pipe_is_no_recording(tmp_path):
    os.mkfifo(tmp_path / "scene_A.wav")
    with pytest.raises(ValueError, match=r"scene_A\.wav: not a regular file"):
        read_wave([tmp_path / "scene_A.wav"])
    with pytest.raises(ValueError, match=r"scene_A\.wav: not a regular file"):
        read_events(tmp_path / "scene_A.wav")
    with pytest.raises(ValueError, match=r"scene_A\.wav is not a regular file"):
        _measure(tmp_path / "scene_A.wav", "raise")
