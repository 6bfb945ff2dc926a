from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers.figures import overlaps, texts
from phnn.lab.tasks.report import DataMissingError
from phnn.lab.tasks.sound import SOUND
from phnn.lab.tasks.sound.batches import SoundBatch
from phnn.lab.tasks.sound.report import figures, sections
from phnn.lab.tasks.sound.report.radar import draw_radar, rate
from phnn.lab.tasks.sound.report.rolls import draw_roll
from phnn.lab.tasks.sound.report.sections import split_phases
from phnn.lab.tasks.sound.report.spectrograms import draw_spectrograms

CLASSES = ["dog", "car"]
METADATA = {
    "phase": False, "magnitudes": "linear", "microphones": 1, "channels": 4, "seconds": 0.2,
    "rate": 8000, "order": "paper",
}  # fmt: skip


def result(**values):
    return {f"test_{score.name}": 0.5 for score in SOUND.scores} | values


class Recordings:
    """Three recordings of two frames, one in a batch. The second class always sounds."""

    overlaps = 1
    classes = CLASSES

    def __init__(self):
        self.read = 0

    def metadata(self):
        return METADATA

    def test_dataloader(self):
        for _ in range(3):
            self.read += 1
            labels = torch.tensor([[[0, 1], [0, 1]]])
            yield SoundBatch(torch.ones(1, 4, 8, 16), labels, torch.zeros(4), torch.ones(4))

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch.spectrograms, batch.labels


class FirstClass(nn.Module):
    """Answers that the first class always sounds."""

    def forward(self, inputs):
        return torch.tensor([5.0, -5.0]).expand(len(inputs), 2, 2)


@pytest.fixture
def data():
    return Recordings()


@pytest.fixture
def loader(data):
    return SimpleNamespace(load=lambda run: (FirstClass(), data))


@pytest.fixture
def runs():
    """Two variants with two seeds each; one run has no result, one has no network."""

    def run(variant, seed, found, has_model):
        return SimpleNamespace(
            family="tiny", variant=variant, seed=seed, folder=Path(f"tiny-{variant}-{seed}"),
            name=f"tiny {variant}, seed {seed}", result=found, has_model=has_model,
            is_own=False,
        )  # fmt: skip

    return [
        run("real", 0, result(parameters=100), True),
        run("n=2", 0, result(parameters=50), False),
        run("real", 1, None, False),
        run("n=2", 1, result(parameters=50), True),
    ]


def test_sections(runs, loader, data):
    told = []
    radar, events = sections(runs, loader, told.append)
    assert [radar.key, events.key] == ["radar", "events"]
    assert told == ["testing the networks on some recordings"]
    _, gallery = events.elements
    captions = [image.caption for image in gallery.content]
    assert captions == [
        "tiny: the spectrograms of the first recording of the test split.",
        "tiny real, seed 0: the events of recording 1 of the test split.",
        "tiny real, seed 0: the events of recording 2 of the test split.",
        "tiny n=2, seed 1: the events of recording 1 of the test split.",
        "tiny n=2, seed 1: the events of recording 2 of the test split.",
    ]
    assert data.read == 4  # no more recordings than are shown


def test_figures(runs, loader):
    pictures = {picture.name: picture.figure for picture in figures(runs, loader, print)}
    assert list(pictures)[:2] == ["radar-tiny", "spectrograms-tiny"]
    roll = pictures["events-tiny-real-0-1"].axes[0].images[0].get_array()
    assert roll.tolist() == [[3, 3], [2, 2]]  # false alarms of the first class, the second missed


def test_without_the_recordings_the_radar_is_there(runs):
    def refuse(run):
        raise DataMissingError("gone")

    found = sections(runs, SimpleNamespace(load=refuse), lambda text: None)
    assert next(found).key == "radar"
    with pytest.raises(DataMissingError, match="gone"):
        next(found)


def test_one_variant_has_no_radar(runs, loader):
    assert [section.key for section in sections(runs[:1], loader, print)] == ["events"]
    assert list(sections(runs[2:3], loader, print)) == []


def test_radar_is_larger_where_things_are_better():
    real = [result(parameters=100, train_seconds_per_100=1.0)]
    two = [
        result(test_er=value, parameters=50, train_seconds_per_100=2.0, test_seconds=1.0)
        for value in (0.1, 0.3)
    ]
    axes = rate([real, two], SOUND.scores)
    assert axes["fewness of\nparameters"] == [0.5, 1]
    assert axes["speed of\ntraining"] == [1, 0.5]
    assert axes["1 − ER"] == [0.5, 0.8]  # the mean over the seeds
    assert axes["F-score"] == [0.5, 0.5]
    assert "speed of\ntesting" not in axes  # was measured for one of them alone
    figure = draw_radar({"real": real, "n=2": two, "n=4": []}, SOUND.scores, "title")
    assert "n=4" not in texts(figure)
    assert not overlaps(figure)


@pytest.mark.parametrize("order", ["paper", "authors"])
def test_phases_are_split_off(order):
    channels = torch.arange(8.0).reshape(2, 2, 2)  # microphone, kind, channel
    stored = channels if order == "paper" else channels.transpose(0, 1)
    about = {**METADATA, "phase": True, "order": order, "microphones": 2, "channels": 2}
    magnitudes, phases = split_phases(stored.reshape(8, 1, 1), about)
    assert magnitudes.flatten().tolist() == [0, 1, 4, 5]
    assert phases.flatten().tolist() == [2, 3, 6, 7]


def test_spectrograms():
    magnitudes = torch.ones(4, 8, 10)
    magnitudes[:, :, 5:] = 0  # silence
    phases = magnitudes - 0.5
    figure = draw_spectrograms(magnitudes, list("WXYZ"), phases=phases, seconds=2, hertz=8000)
    first = figure.axes[0].images[0]
    assert first.get_array()[0, 0] == 0
    assert first.get_array()[0, 9] == first.get_clim()[0]
    assert first.get_extent() == [0, 2, 0, 8]
    words = texts(figure)
    assert words.count("W") == 2
    assert "phase (π)" in words
    assert not overlaps(figure)
    with pytest.raises(ValueError, match=r"\(4, 8, 10\) do not match 2 names"):
        draw_spectrograms(magnitudes, list("WX"), seconds=2, hertz=8000)


def test_roll():
    truth = torch.tensor([[1, 0], [1, 0], [0, 0]], dtype=torch.bool)
    found = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
    figure = draw_roll(truth, found, ["dog", "car"], seconds=0.1, title="title")
    assert figure.axes[0].images[0].get_array().tolist() == [[1, 2, 0], [0, 3, 0]]
    assert not overlaps(figure)
    with pytest.raises(ValueError, match="do not match 3 classes"):
        draw_roll(truth, found, ["a", "b", "c"], seconds=0.1, title="title")
