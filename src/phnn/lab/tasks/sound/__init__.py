"""Sound event detection: data, features, metrics."""

from phnn.lab.tasks.sound.batches import SoundBatch, SoundBatches
from phnn.lab.tasks.sound.classes import CLASSES
from phnn.lab.tasks.sound.datamodule import SoundData
from phnn.lab.tasks.sound.features import preprocess
from phnn.lab.tasks.sound.labels import Event, find_frames, make_labels, read_events
from phnn.lab.tasks.sound.metrics import SoundEventScores
from phnn.lab.tasks.sound.recordings import BrokenRecordingError, find_parts, read_wave
from phnn.lab.tasks.sound.spectrograms import spectrogram

__all__ = [
    "CLASSES",
    "BrokenRecordingError",
    "Event",
    "SoundBatch",
    "SoundBatches",
    "SoundData",
    "SoundEventScores",
    "find_frames",
    "find_parts",
    "make_labels",
    "preprocess",
    "read_events",
    "read_wave",
    "spectrogram",
]
