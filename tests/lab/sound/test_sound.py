import csv
import json
import logging
import os

import lightning
import numpy as np
import pytest
import scipy.signal
import soundfile
import torch
from torch import nn

from phnn.lab.tasks.sound import (
    CLASSES,
    BrokenRecordingError,
    Event,
    SoundData,
    datamodule,
    find_frames,
    find_parts,
    make_labels,
    preprocess,
    read_events,
    read_wave,
    spectrogram,
)
from phnn.lab.tasks.sound import cache as sound_cache
from phnn.lab.tasks.sound.cache import Options
from phnn.lab.tasks.sound.features import count_hop, extract, restore_magnitudes
from phnn.lab.tasks.sound.spectrograms import find_phases

RATE = 8000  # hop 100
SECONDS = 1.2
NAMES = ("bell", "bark")


def by_scipy(wave, hop=400, phase=False):
    """The slow twin: channel by channel."""
    results = []
    for channel in wave:
        _, _, transform = scipy.signal.stft(
            channel, window="hamming", nperseg=512, noverlap=512 - hop
        )
        transform = transform[1:, :-1]
        results.append(np.angle(transform) / np.pi if phase else np.abs(transform) / 512)
    return torch.from_numpy(np.stack(results))


def write_recording(folder, name, seed=0, events=(), microphones="AB", **other):
    options = {"seconds": SECONDS, "rate": RATE, "channels": 4, **other}
    for kind in ("data", "labels"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    size = round(options["seconds"] * options["rate"])
    for place, microphone in enumerate(microphones):
        rng = np.random.default_rng([seed, place])
        samples = rng.normal(0, 0.1, (size, options["channels"]))
        soundfile.write(folder / "data" / f"{name}_{microphone}.wav", samples, options["rate"])
    write_labels(folder / "labels" / f"label_{name}.csv", events)


def write_labels(path, events):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["File", "Start", "End", "Class", "X", "Y", "Z"])
        for start, end, label in events:
            writer.writerow(["x.wav", start, end, label, 0, 0, 0])


def write_set(root, train=5, dev=2):
    for part, count in (("train", train), ("dev", dev)):
        for number in range(count):
            write_recording(
                root / f"L3DAS_Task2_{part}",
                f"split0_ov1_{number}",
                seed=100 * len(part) + number,
                events=[(0.1 * number, 0.5 + 0.1 * number, NAMES[number % 2])],
            )
    return root


@pytest.fixture
def root(tmp_path):
    return write_set(tmp_path / "set")


def open_data(root, **options):
    data = SoundData("mine", root, **{"classes": NAMES, "batch_size": 2, **options})
    data.setup()
    return data


def read_part(data, part):
    """All spectrograms and labels of a part, as a network is given them, in their order."""
    loader = data._batches(part, data._eval_plan)
    pairs = [data.on_after_batch_transfer(batch, 0) for batch in loader]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


class TestSpectrogram:
    @pytest.mark.parametrize(
        ("samples", "hop"), [(32_000, 400), (12_345, 400), (8_000, 100), (513, 3)]
    )
    def test_against_scipy(self, samples, hop):
        wave = torch.randn(4, samples)
        result = spectrogram(wave, True, hop=hop)
        magnitudes = by_scipy(wave, hop)
        assert result.dtype == torch.float32
        assert result.shape == (8, 256, -(-samples // hop))
        torch.testing.assert_close(result[:4], magnitudes, rtol=1e-4, atol=1e-6 * magnitudes.max())
        turn = (result[4:] - by_scipy(wave, hop, phase=True) + 1) % 2 - 1  # -1 and 1 are one phase
        assert (turn.abs() * magnitudes).max() < 1e-6 * magnitudes.max()

    def test_double_precision(self):
        wave = torch.randn(4, 4000, dtype=torch.float64)
        torch.testing.assert_close(spectrogram(wave), by_scipy(wave), rtol=1e-9, atol=1e-15)

    def test_sine(self):
        wave = torch.sin(2 * torch.pi * 1000 * torch.arange(32_000) / 32_000).expand(4, -1)
        result = spectrogram(wave)
        assert result[:, :, 10:70].mean((0, 2)).argmax() == 15
        torch.testing.assert_close(
            result[:, 15, 10:70], torch.full((4, 60), 0.5 / 512), rtol=1e-4, atol=0
        )

    def test_a_minute(self):
        assert spectrogram(torch.zeros(1, 1_920_000), microphones=1).shape == (1, 256, 4800)

    def test_silence(self):
        assert not spectrogram(torch.zeros(4, 4000), True).any()

    def test_batch(self):
        waves = torch.randn(2, 8, 3200)
        result = spectrogram(waves, True)
        assert result.shape == (2, 16, 256, 8)
        for wave, one in zip(waves, result, strict=True):
            assert torch.equal(spectrogram(wave, True), one)

    def test_orders(self):
        wave = torch.randn(8, 3200)
        magnitudes = spectrogram(wave)
        paper, authors = spectrogram(wave, True), spectrogram(wave, True, order="authors")
        assert torch.equal(authors[:8], magnitudes)
        phases = authors[8:]
        expected = torch.cat([magnitudes[:4], phases[:4], magnitudes[4:], phases[4:]])
        assert torch.equal(paper, expected)

    @pytest.mark.parametrize(
        ("wave", "options", "message"),
        [
            (torch.zeros(8), {}, "wave must be floating point of shape"),
            (torch.zeros(4, 8, dtype=torch.int16), {}, "not torch.int16"),
            (torch.zeros(4, 0), {}, "wave have samples; it has 0"),
            (torch.zeros(4, 800), {"hop": 513}, "hop=513 must lie in 1..512"),
            (torch.zeros(4, 800), {"order": "mine"}, "order='mine' must be one of paper, authors"),
            (torch.zeros(3, 800), {}, "3 channels are not those of microphones=None"),
            (torch.zeros(4, 800), {"microphones": 3}, "4 channels are not those of microphones=3"),
        ],
    )
    def test_bad_input(self, wave, options, message):
        with pytest.raises(ValueError, match=message):
            spectrogram(wave, **options)


class TestLabels:
    @pytest.mark.parametrize(
        ("start", "end", "reference", "plain"),
        [
            (0, 1, range(10), range(10)),
            (1, 2, range(9, 20), range(10, 20)),
            (10, 10.5, range(99, 105), range(100, 105)),
            (59, 60, range(589, 600), range(590, 600)),
            (29.95, 30.05, range(299, 300), range(300, 301)),
            (59.98, 60, range(599, 600), range(599, 600)),
            (59, 61, range(589, 600), range(590, 600)),
        ],
    )
    def test_frames(self, start, end, reference, plain):
        assert find_frames(start, end, 60, "reference") == reference
        assert find_frames(start, end, 60, "plain") == plain

    def test_against_the_challenge_s_words(self):
        for tenths in range(601):
            t = tenths / 10
            expected = int(np.interp(t, [0, 60], [0, 599]))
            assert find_frames(t, t, 60, "reference") == range(expected, expected + 1)

    def test_columns(self):
        labels = make_labels([Event(1, 2, "Drawer_open_or_close")])
        assert labels.shape == (600, 42)
        frames, columns = labels.nonzero()
        assert set(columns) == {3 * 3}
        assert list(frames) == list(range(9, 20))

    def test_slots_by_a_loop(self):
        """The slot of an event is the number of those of its class that are in the frame."""
        rng = np.random.default_rng(0)
        starts = rng.uniform(0, 5, 12)
        events = [Event(s, s + rng.uniform(0, 1), NAMES[i % 2]) for i, s in enumerate(starts)]
        for rule in ("reference", "plain"):
            expected = np.zeros((60, 2, 6))
            for event in events:
                place = NAMES.index(event.label)
                for frame in find_frames(event.start, event.end, 6, rule):
                    expected[frame, place, int(expected[frame, place].sum())] = 1
            found = make_labels(events, 6, classes=NAMES, overlaps=6, rule=rule)
            assert np.array_equal(found, expected.reshape(60, -1))

    @pytest.mark.parametrize(
        ("events", "message"),
        [
            ([Event(0, 1, "bel")], "unknown class 'bel'; did you mean bell"),
            ([Event(0, 1, "bell")] * 4, "4 events of bell at once, in the frame at 0.0 s"),
            ([Event(7, 8, "bell")], "bell starts at 7 s, the recording ends at 6 s"),
        ],
    )
    def test_unusable(self, events, message):
        with pytest.raises(BrokenRecordingError, match=message):
            make_labels(events, 6, classes=NAMES)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("Start,End\n0,1\n", "lacks the column Class"),
            ("", "lacks the column Start, End, Class"),
            ("Start,End,Class\n0,one,bell\n", "line 2: Start='0' and End='one' must be seconds"),
            (
                "Start,End,Class\n0,1,bell\n2,1,bell\n",
                "line 3: an event cannot last from 2.0 to 1.0",
            ),
            ("Start,End,Class\nnan,1,bell\n", "cannot last from nan"),
            ("Start,End,Class\n0\n", "Start='0' and End='' must be seconds"),
        ],
    )
    def test_bad_files(self, tmp_path, text, message):
        (tmp_path / "a.csv").write_text(text)
        with pytest.raises(BrokenRecordingError, match=message):
            read_events(tmp_path / "a.csv")

    def test_columns_in_any_order(self, tmp_path):
        (tmp_path / "a.csv").write_text("\ufeffClass, End,Start\nbell, 2.5,1\n", encoding="utf-8")
        assert read_events(tmp_path / "a.csv") == [Event(1, 2.5, "bell")]

    def test_not_text(self, tmp_path):
        (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00Start")
        with pytest.raises(BrokenRecordingError, match="not a text file"):
            read_events(tmp_path / "a.csv")


class TestRecordings:
    def test_layout(self, root):
        parts = find_parts(root, 2)
        assert [len(part) for part in parts.values()] == [5, 2]
        first = parts["train"][0]
        assert [wave.name for wave in first.waves] == ["split0_ov1_0_A.wav", "split0_ov1_0_B.wav"]
        assert first.labels.name == "label_split0_ov1_0.csv"
        assert read_wave(first.waves).shape == (8, 9600)

    def test_plain_names(self, tmp_path):
        for part in ("train", "test"):
            write_recording(tmp_path / part, "scene", microphones="A")
            (tmp_path / part / "data" / "scene_A.wav").rename(
                tmp_path / part / "data" / "scene.wav"
            )
            labels = tmp_path / part / "labels"
            (labels / "label_scene.csv").rename(labels / "scene.csv")
        parts = find_parts(tmp_path, 1)
        assert parts["test"][0].waves == (tmp_path / "test/data/scene.wav",)
        assert parts["test"][0].labels == tmp_path / "test/labels/scene.csv"

    def test_no_folder(self, root):
        with pytest.raises(FileNotFoundError, match=r"is not a folder; did you mean set\?"):
            find_parts(root.with_name("sett"), 1)
        with pytest.raises(FileNotFoundError, match="whose name is train, or ends in _train"):
            find_parts(root / "L3DAS_Task2_train", 1)

    def test_two_train_parts(self, root):
        write_recording(root / "L3DAS_Task1_train", "x")
        with pytest.raises(ValueError, match="are both the train part; keep one"):
            find_parts(root, 1)


class TestBroken:
    """Each defect raises an error that says how to go on, or is counted."""

    def damage(self, root, kind):
        data, labels = (root / "L3DAS_Task2_train" / name for name in ("data", "labels"))
        name = "split0_ov1_1"
        wave, label = data / f"{name}_A.wav", labels / f"label_{name}.csv"
        if kind == "no sound":
            wave.write_bytes(b"RIFF")
        elif kind == "short":
            write_recording(data.parent, name, seconds=1.1)
        elif kind == "rate":
            write_recording(data.parent, name, rate=16_000)
        elif kind == "cut":
            wave.write_bytes(wave.read_bytes()[:5000])
        elif kind == "not finite":
            samples = np.full((9600, 4), np.nan, np.float32)
            soundfile.write(wave, samples, RATE, "FLOAT")
        elif kind == "no second microphone":
            (data / f"{name}_B.wav").unlink()
        elif kind == "no labels":
            label.unlink()
        elif kind == "class":
            write_labels(label, [(0, 1, "bleat")])
        elif kind == "overlaps":
            write_labels(label, [(0, 1, "bell")] * 4)

    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            ("no sound", "split0_ov1_1_A.wav: "),
            ("short", "has 1.1 s at 8000 Hz in 4 channels, other recordings 1.2 s at 8000 Hz"),
            ("rate", "has 1.2 s at 16000 Hz"),
            ("cut", "split0_ov1_1_A.wav"),
            ("not finite", "samples that are not finite"),
            ("no second microphone", "split0_ov1_1_B.wav: there is no such file"),
            ("no labels", "there is no label file .*label_split0_ov1_1.csv"),
            ("class", "label_split0_ov1_1.csv: unknown class 'bleat'"),
            ("overlaps", "4 events of bell at once"),
        ],
    )
    def test_defects(self, root, kind, message, caplog):
        self.damage(root, kind)
        with pytest.raises(BrokenRecordingError, match=message) as error:
            open_data(root, microphones=2)
        assert "broken='skip' leaves such recordings out" in str(error.value)
        with caplog.at_level(logging.WARNING):
            data = open_data(root, microphones=2, broken="skip", validation=0)
        assert len(data.skipped) == 1
        assert "1 broken recordings left out" in caplog.text
        good = [0, 2, 3, 4]
        assert data._sets.parts["train"].labels.shape[0] == 4
        assert data._sets.parts["train"].labels.any((1, 2)).all()
        waves = find_parts(root, 2)["train"]
        inputs, _ = read_part(data, "train")
        metadata = data.metadata()
        for row, place in enumerate(good):  # features and labels still belong together
            expected = preprocess(read_wave(waves[place].waves), metadata)
            torch.testing.assert_close(inputs[row : row + 1], expected)
        with pytest.raises(BrokenRecordingError, match=message):  # also from the cache
            open_data(root, microphones=2)

    def test_all_broken(self, root):
        for path in (root / "L3DAS_Task2_dev" / "data").iterdir():
            path.write_bytes(b"")
        with pytest.raises(BrokenRecordingError, match="none of 2 recordings can be read"):
            open_data(root, broken="skip")

    def test_parts_differ(self, root):
        for number in range(2):
            write_recording(root / "L3DAS_Task2_dev", f"split0_ov1_{number}", seconds=2)
        with pytest.raises(ValueError, match=r"the train part has 1.2 s .* the test part 2 s"):
            open_data(root)

    def test_rate(self, tmp_path):
        for part in ("train", "dev"):
            write_recording(tmp_path / part, "x", rate=44_100)
        with pytest.raises(ValueError, match="44100 Hz must be a multiple of 80 up to 40960"):
            open_data(tmp_path)
        assert count_hop(32_000) == 400


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
        first = read_part(open_data(root), "test")
        assert len(calls) == 7
        second = read_part(open_data(root, rule="plain", seed=3, standardize=None), "test")
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
        assert len(calls) == before + 2  # the dev part alone
        open_data(root, cache=tmp_path / "elsewhere")
        assert len(calls) == before + 9

    def test_key_of_files_that_look_alike(self, tmp_path, monkeypatch):
        calls = self.count_work(monkeypatch)
        root = write_set(tmp_path / "set", train=2, dev=2)
        for path in root.rglob("*.wav"):  # as an archive may have it
            os.utime(path, (0, 0))
        data = open_data(root, validation=0)
        assert len(calls) == 4
        train, test = (read_part(data, part)[0] for part in ("train", "test"))
        assert not torch.equal(train, test)

    def test_resumes(self, root, monkeypatch):
        expected = read_part(open_data(root, cache=root / "other"), "train")
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
        for found, wanted in zip(read_part(data, "train"), expected, strict=True):
            assert torch.equal(found, wanted)

    @pytest.mark.parametrize("file", ["features.npy", "sums.npy", "done.npy"])
    def test_damaged_remains(self, root, file):
        expected = read_part(open_data(root, cache=root / "other"), "test")
        open_data(root)
        for folder in (root / ".phnn-cache").iterdir():
            (folder / "index.json").unlink()
            (folder / file).write_bytes(b"\x93NUMPY")
        found = read_part(open_data(root), "test")
        assert torch.equal(found[0], expected[0])

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
            read_part(open_data(root, dtype=dtype, phase=True), "test")[0]
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
    def raw(self, root, data, part, **options):
        return read_part(open_data(root, standardize=None, **options), part)[0]

    def test_from_the_training_part(self, root):
        options = {"phase": True, "microphones": 2}
        data = open_data(root, **options)
        train, test = read_part(data, "train")[0], read_part(data, "test")[0]
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
        for part in ("train", "validation", "test"):
            inputs = read_part(data, part)[0]
            for half in (inputs[:, :8], inputs[:, 8:]):
                assert half.mean().abs() < 1e-4
                assert half.std(correction=0) == pytest.approx(1, abs=1e-4)

    @pytest.mark.parametrize("standardize", ["authors", None])
    def test_of_other_data_where_none_are_of_training(self, root, standardize):
        data = open_data(root, standardize=standardize)
        before = read_part(data, "test")[0]
        data.standardize_as({"mean": [7.0] * 4, "std": [2.0] * 4})
        assert torch.equal(read_part(data, "test")[0], before)

    @pytest.mark.parametrize("kind", [{"rate": 16000}, {"magnitudes": "log"}])
    def test_of_another_kind(self, root, kind):
        data = open_data(root)
        with pytest.raises(ValueError, match=r"was trained on recordings with \w+=(16000|log)"):
            data.standardize_as({**data.metadata(), **kind})

    def test_authors_with_one_microphone(self, root):
        data = open_data(root, standardize="authors", phase=True)
        inputs = read_part(data, "test")[0]
        assert inputs.mean().abs() < 1e-4  # magnitudes and phases together,
        assert inputs[:, :4].std() < 0.1  # so the magnitudes hardly vary

    def test_silence(self, tmp_path):
        for part in ("train", "dev"):
            for name in "ab":
                write_recording(tmp_path / part, name)
                soundfile.write(tmp_path / part / f"data/{name}_A.wav", np.zeros((9600, 4)), RATE)
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
        inputs, labels = read_part(whole, "train")
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
        rows = [set(one._sets.parts[part].rows.tolist()) for part in ("train", "validation")]
        assert rows[0] | rows[1] == set(range(5))
        assert not rows[0] & rows[1]
        assert len(rows[1]) == 1
        assert any(
            open_data(root, seed=seed)._sets.parts["validation"].rows.tolist() != [*rows[1]]
            for seed in range(1, 6)
        )
        assert open_data(root, validation=0).val_dataloader() == []
        with pytest.raises(
            ValueError, match=r"validation=0.01 of 5 recordings leaves one part empty"
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
        inputs, _ = read_part(data, "test")
        recording = find_parts(root, 1)["test"][1]
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

    def test_length_that_needs_filling(self, tmp_path):
        for part in ("train", "dev"):
            for name in "ab":
                write_recording(tmp_path / part, name, seconds=1.234, events=[(1.0, 1.3, "bell")])
        inputs, labels = read_part(open_data(tmp_path, validation=0), "test")
        assert inputs.shape[-1] == 8 * labels.shape[1] == 104

    def test_processes_share_the_batches(self, root):
        def rows(rank, world_size, part):
            data = open_data(root, validation=0, batch_size=2 // world_size)
            data.trainer = type("T", (), {"global_rank": rank, "world_size": world_size})()
            loader = {"train": data.train_dataloader, "test": data.test_dataloader}[part]()
            return [batch.spectrograms for batch in loader]

        for part in ("train", "test"):
            alone = rows(0, 1, part)
            together = list(zip(rows(0, 2, part), rows(1, 2, part), strict=True))
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
        monkeypatch.setattr(datamodule, "SIMULATED", {"train": 3, "dev": 1})
        monkeypatch.setattr(datamodule, "SIMULATED_SECONDS", 8.0)
        for _ in range(2):
            data = SoundData(batch_size=1, validation=0.34)
            data.setup()
        inputs, labels = read_part(data, "test")
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
        trainer.fit(model, data, ckpt_path=resume, weights_only=False)
        return model, trainer, data

    def test_resumed_run_sees_the_same(self, root, tmp_path):
        whole, trainer, data = self.fit(root, tmp_path)
        seen = whole.seen["training"]
        assert len(seen) == 16  # two epochs of 16 segments
        assert seen[:8] != seen[8:]
        for step in (1, 7, 8, 13):
            resumed, _, _ = self.fit(root, tmp_path, tmp_path / f"step={step}.ckpt")
            assert resumed.seen["training"] == seen[step:]
        trainer.test(whole, data, verbose=False)
        assert len(whole.seen["testing"]) == 2
