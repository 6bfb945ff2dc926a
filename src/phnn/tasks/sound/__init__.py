"""Sound event detection: data, features, metrics."""

from phnn.tasks.sound.batches import SoundBatch, SoundBatches
from phnn.tasks.sound.classes import CLASSES
from phnn.tasks.sound.datamodule import SoundData
from phnn.tasks.sound.features import preprocess
from phnn.tasks.sound.labels import Event, find_frames, make_labels, read_events
from phnn.tasks.sound.metrics import SoundEventScores
from phnn.tasks.sound.recordings import BrokenRecordingError, find_parts, read_wave
from phnn.tasks.sound.spectrograms import spectrogram

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
