import logging

import numpy as np
import pytest
import scipy.signal
import soundfile
import torch

from helpers.recordings import NAMES, RATE, open_data, read_split, write_labels, write_recording
from phnn.lab.tasks.sound import (
    BrokenRecordingError,
    Event,
    find_frames,
    find_splits,
    make_labels,
    preprocess,
    read_events,
    read_wave,
    spectrogram,
)
from phnn.lab.tasks.sound.features import count_hop


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
            (torch.zeros(3, 800), {}, "3 channels do not divide into microphones=None"),
            (
                torch.zeros(4, 800),
                {"microphones": 3},
                "4 channels do not divide into microphones=3",
            ),
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

    def test_tracks_by_a_loop(self):
        """The track of an event is the number of those of its class that are in the frame."""
        rng = np.random.default_rng(0)
        starts = rng.uniform(0, 5, 12)
        events = [Event(s, s + rng.uniform(0, 1), NAMES[i % 2]) for i, s in enumerate(starts)]
        for rule in ("reference", "plain"):
            expected = np.zeros((60, 2, 6))
            for event in events:
                where = NAMES.index(event.label)
                for frame in find_frames(event.start, event.end, 6, rule):
                    expected[frame, where, int(expected[frame, where].sum())] = 1
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
        splits = find_splits(root, 2)
        assert [len(split) for split in splits.values()] == [5, 2]
        first = splits["train"][0]
        assert [wave.name for wave in first.waves] == ["split0_ov1_0_A.wav", "split0_ov1_0_B.wav"]
        assert first.labels.name == "label_split0_ov1_0.csv"
        assert read_wave(first.waves).shape == (8, 9600)

    def test_plain_names(self, tmp_path):
        for split in ("train", "test"):
            write_recording(tmp_path / split, "scene", microphones="A")
            (tmp_path / split / "data" / "scene_A.wav").rename(
                tmp_path / split / "data" / "scene.wav"
            )
            labels = tmp_path / split / "labels"
            (labels / "label_scene.csv").rename(labels / "scene.csv")
        splits = find_splits(tmp_path, 1)
        assert splits["test"][0].waves == (tmp_path / "test/data/scene.wav",)
        assert splits["test"][0].labels == tmp_path / "test/labels/scene.csv"

    def test_no_folder(self, root):
        with pytest.raises(FileNotFoundError, match=r"is not a folder; did you mean set\?"):
            find_splits(root.with_name("sett"), 1)
        with pytest.raises(FileNotFoundError, match="whose name is train, or ends in _train"):
            find_splits(root / "L3DAS_Task2_train", 1)

    def test_two_train_splits(self, root):
        write_recording(root / "L3DAS_Task1_train", "x")
        with pytest.raises(ValueError, match="are both the train split; keep one"):
            find_splits(root, 1)


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
        assert data._sets.splits["train"].labels.shape[0] == 4
        assert data._sets.splits["train"].labels.any((1, 2)).all()
        waves = find_splits(root, 2)["train"]
        inputs, _ = read_split(data, "train")
        metadata = data.metadata()
        for row, where in enumerate(good):  # features and labels still belong together
            expected = preprocess(read_wave(waves[where].waves), metadata)
            torch.testing.assert_close(inputs[row : row + 1], expected)
        with pytest.raises(BrokenRecordingError, match=message):  # also from the cache
            open_data(root, microphones=2)

    def test_all_broken(self, root):
        for path in (root / "L3DAS_Task2_dev" / "data").iterdir():
            path.write_bytes(b"")
        with pytest.raises(BrokenRecordingError, match="none of 2 recordings can be read"):
            open_data(root, broken="skip")

    def test_splits_differ(self, root):
        for number in range(2):
            write_recording(root / "L3DAS_Task2_dev", f"split0_ov1_{number}", seconds=2)
        with pytest.raises(ValueError, match=r"the train split has 1.2 s .* the test split 2 s"):
            open_data(root)

    def test_rate(self, tmp_path):
        for split in ("train", "dev"):
            write_recording(tmp_path / split, "x", rate=44_100)
        with pytest.raises(ValueError, match="44100 Hz must be a multiple of 80 up to 40960"):
            open_data(tmp_path)
        assert count_hop(32_000) == 400
