"""Small sets of recordings for tests."""

import csv

import numpy as np
import soundfile
import torch

from phnn.lab.tasks.sound import SoundData

RATE = 8000  # hop 100
SECONDS = 1.2
NAMES = ("bell", "bark")


def write_recording(folder, name, seed=0, events=(), microphones="AB", **other):
    options = {"seconds": SECONDS, "rate": RATE, "channels": 4, **other}
    for kind in ("data", "labels"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    size = round(options["seconds"] * options["rate"])
    for number, microphone in enumerate(microphones):
        rng = np.random.default_rng([seed, number])
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
    for split, count in (("train", train), ("dev", dev)):
        for number in range(count):
            write_recording(
                root / f"L3DAS_Task2_{split}",
                f"split0_ov1_{number}",
                seed=100 * len(split) + number,
                events=[(0.1 * number, 0.5 + 0.1 * number, NAMES[number % 2])],
            )
    return root


def open_data(root, **options):
    data = SoundData("mine", root, **{"classes": NAMES, "batch_size": 2, **options})
    data.setup()
    return data


def read_split(data, split):
    """All spectrograms and labels of a split, as a network is given them, in their order."""
    loader = data._batches(split, data._eval_plan)
    pairs = [data.on_after_batch_transfer(batch, 0) for batch in loader]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
