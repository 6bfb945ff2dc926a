import csv
import json
import shlex
import sys

import numpy as np
import pytest
import soundfile

from helpers.processes import list_children, start, wait_for, wait_until_gone
from phnn import cli
from phnn.cli.lab import parse
from phnn.cli.training import train
from phnn.lab.tasks.sound import simulate as simulation_module
from phnn.lab.tasks.sound.classes import CLASSES
from phnn.lab.tasks.sound.clips import open_clips, read_clip
from phnn.lab.tasks.sound.rooms import (
    GRID,
    MICROPHONES,
    NEAREST,
    ROOM,
    draw_position,
    impulse_response,
)
from phnn.lab.tasks.sound.simulate import Simulation, make_scene, name_scene, simulate
from phnn.lab.tasks.sound.synthesis import SyntheticClips, synthesize

RATE = 32000
POSITIONS = [(1.0, 0.5, 0.3), (-2.0, 1.5, 0.0), (0.0, -1.5, 1.0), (-0.5, -0.25, -0.6)]


def angle_to(position, heard):
    """Degrees from a position to the direction of the intensity at one microphone."""
    w, y, z, x = heard
    intensity = np.array([np.sum(w * x), np.sum(w * y), np.sum(w * z)])
    cosine = intensity @ position / np.linalg.norm(intensity) / np.linalg.norm(position)
    return np.degrees(np.arccos(min(1, cosine)))


@pytest.mark.parametrize("position", POSITIONS)
def test_intensity_points_to_the_source(position):
    heard = impulse_response(position, rt60=0)
    assert angle_to(position, heard[:4]) < 0.5
    assert angle_to(np.subtract(position, MICROPHONES[1]), heard[4:]) < 0.5


@pytest.mark.parametrize("position", POSITIONS)
def test_direct_sound_points_to_the_source_between_walls(position):
    heard = impulse_response(position)[:4]
    arrival = round(np.linalg.norm(position) / 343 * RATE)
    assert (
        angle_to(position, heard[:, : arrival + 16]) < 3
    )  # half a millisecond: no wall is so near


def test_level_falls_with_distance():
    energies = [
        np.sum(impulse_response((x, 0.0, 0.0), rt60=0)[0] ** 2, dtype=float)
        for x in (0.5, 1.0, 2.0)
    ]
    np.testing.assert_allclose(np.sqrt(energies) * [0.5, 1, 2], 1, rtol=0.03)


@pytest.mark.parametrize("position", POSITIONS)
def test_microphone_b_hears_it_later_or_earlier(position):
    a, b = impulse_response(position, rt60=0)[[0, 4]]
    distances = [np.linalg.norm(np.subtract(position, spot)) for spot in MICROPHONES]
    delay = np.argmax(np.correlate(b, a, "full")) - (len(a) - 1)
    assert delay == pytest.approx((distances[1] - distances[0]) / 343 * RATE, abs=1)


def test_w_is_an_omnidirectional_microphone():
    import pyroomacoustics

    absorption, _ = pyroomacoustics.inverse_sabine(0.3, ROOM)
    room = pyroomacoustics.ShoeBox(
        ROOM, fs=RATE, materials=pyroomacoustics.Material(absorption), max_order=8
    )
    room.add_source([4, 3, 1.8])
    room.add_microphone([3, 2.7, 1.5])
    room.compute_rir()
    expected = room.rir[0][0][40:]
    heard = impulse_response((1.0, 0.5, 0.3), reflections=8)[4]
    np.testing.assert_allclose(heard[: len(expected)], expected, atol=1e-5)
    assert not heard[len(expected) :].any()


def test_figures_of_eight_have_the_gains_of_sn3d():
    w, y, z, x = impulse_response((0.0, 2.0, 0.0), rt60=0)[:4]
    np.testing.assert_allclose(y, w, atol=1e-6)
    np.testing.assert_allclose([z, x], 0, atol=1e-6)
    w, y, z, x = impulse_response((1.5, 0.0, -1.5), rt60=0)[:4]
    np.testing.assert_allclose([x, -z], np.stack([w, w]) / np.sqrt(2), atol=1e-6)


def test_positions_are_on_the_grid_and_not_in_a_microphone():
    rng = np.random.default_rng(0)
    positions = [draw_position(rng) for _ in range(2000)]
    for axis, steps in enumerate(GRID):
        assert {position[axis] for position in positions} == set(steps)
    for spot in MICROPHONES:
        assert np.linalg.norm(np.subtract(positions, spot), axis=1).min() >= NEAREST


def write_clip(path, seconds=0.4, rate=8000, channels=1, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).normal(0, 0.1, (round(seconds * rate), channels))
    soundfile.write(path, noise, rate)


@pytest.fixture
def folder(tmp_path):
    for label in ("hum", "tap"):
        for number in range(10):
            write_clip(
                tmp_path / "clips" / label / f"{number}.wav", 0.2 + 0.02 * number, seed=number
            )
    return tmp_path / "clips"


@pytest.fixture
def small(folder):
    """A simulation that takes little time: few samples, and no walls."""
    return Simulation(open_clips(folder), seconds=6, rate=8000, rt60=0)


def write_metadata(folder, **columns):
    names = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.wav"))
    with (folder / "metadata.csv").open("w", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(["file", *columns])
        writer.writerows([name, *(of(name) for of in columns.values())] for name in names)


def fold_of(name):
    return int(name[-5]) % 5 + 1


def test_the_last_fold_is_that_with_the_largest_number(folder):
    write_metadata(folder, fold=lambda name: 10 if name[-5] == "0" else 1 + int(name[-5]) % 9)
    held = [name for names in open_clips(folder).files["dev"].values() for name in names]
    assert {name[-5] for name in held} == {"0"}
    write_metadata(folder, fold=lambda name: "" if name[-5] == "0" else 1)
    with pytest.raises(ValueError, match="has rows without a fold"):
        open_clips(folder)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_scene_has_no_more_sounds_at_once_than_its_name_says(small, number):
    scene = make_scene(small, "train", number)
    assert scene.audio.shape == (8, 48000)
    assert len(scene.events) > number
    assert f"_ov{number + 1}_" in name_scene("train", number)
    starts = np.array([event.start for event in scene.events])
    ends = np.array([event.end for event in scene.events])
    assert starts.min() >= 0
    assert ends.max() <= 6
    assert (starts < ends).all()
    assert (np.diff(starts) >= 0).all()
    for time in np.arange(0, 6, 0.01):  # with the frames that a reader may round an event into
        assert np.sum((starts - 0.15 < time) & (time < ends + 0.15)) <= number + 1


def test_a_scene_is_a_function_of_seed_split_and_number(small, folder):
    first = make_scene(small, "train", 1)
    again = make_scene(small, "train", 1)
    assert (first.audio == again.audio).all()
    assert first.events == again.events
    other_seed = Simulation(small.clips, 1, 6, 8000, 0)
    for other in (
        make_scene(small, "train", 4),
        make_scene(small, "dev", 1),
        make_scene(other_seed, "train", 1),
    ):
        assert other.events != first.events


def test_splits_share_no_clip(small):
    used = {
        split: {event.file for k in range(2, 24, 3) for event in make_scene(small, split, k).events}
        for split in ("train", "dev")
    }
    assert len(used["train"]) > 10
    assert len(used["dev"]) > 2
    assert not used["train"] & used["dev"]


def test_levels_differ_by_up_to_20_db(small, monkeypatch):
    monkeypatch.setattr(simulation_module, "draw_position", lambda rng: (1.0, 0.0, 0.0))
    quiet = Simulation(small.clips, 0, 6, 8000, 0, 0, np.inf)
    levels = []
    for number in range(0, 60, 3):
        scene = make_scene(quiet, "train", number)
        for event in scene.events:
            first, last = round(event.start * 8000), round(event.end * 8000)
            levels.append(20 * np.log10(scene.audio[0, first:last].std() / 0.05))
    assert len(levels) > 40
    assert -21.5 < min(levels) < -17
    assert -3 < max(levels) < 0.5


def test_a_loud_scene_is_scaled_and_not_clipped(small, monkeypatch):
    soft = make_scene(small, "train", 2).audio
    monkeypatch.setattr(simulation_module, "LOUDNESS", 50.0)
    loud = make_scene(small, "train", 2).audio
    assert np.abs(loud).max() == pytest.approx(0.99, abs=1e-4)
    np.testing.assert_allclose(loud / 0.99, soft / np.abs(soft).max(), atol=1e-4)


def test_noise_has_the_power_that_snr_says(small):
    clean = make_scene(Simulation(small.clips, 0, 6, 8000, 0, 0, np.inf), "train", 0).audio
    noisy = make_scene(Simulation(small.clips, 0, 6, 8000, 0, 0, 10), "train", 0).audio
    noise = noisy - clean
    assert 20 * np.log10(clean[0].std() / noise[0].std()) == pytest.approx(10, abs=0.1)
    np.testing.assert_allclose(noise.std(axis=1) / noise[0].std(), [1, *[3**-0.5] * 3] * 2, 1e-3)


def read_labels(path):
    with path.open(newline="") as text:
        return list(csv.DictReader(text))


def read_tree(out):
    return {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_files_have_the_format_of_l3das21(small, tmp_path):
    out = tmp_path / "out"
    assert simulate(small, out, train=3, dev=1) == (4, 0, 4 * 8 * 2 * 48000)
    assert sorted(str(path) for path in read_tree(out)) == sorted(
        ["simulation.json"]
        + [
            f"L3DAS_Task2_{split}/{file}"
            for split, name in [
                ("train", "split0_ov1_1"),
                ("train", "split0_ov2_1"),
                ("train", "split0_ov3_1"),
                ("dev", "split4_ov1_1"),
            ]
            for file in (f"data/{name}_A.wav", f"data/{name}_B.wav", f"labels/label_{name}.csv")
        ]
    )
    for recording in out.rglob("*.wav"):
        info = soundfile.info(recording)
        assert (info.channels, info.samplerate, info.frames) == (4, 8000, 48000)
        assert info.subtype == "PCM_16"
    for label in out.rglob("*.csv"):
        assert label.read_text().splitlines()[0] == "File,Start,End,Class,X,Y,Z"
        for row in read_labels(label):
            assert row["Class"] in ("hum", "tap")
            assert row["File"].startswith(row["Class"])


@pytest.mark.parametrize(("rt60", "most"), [(0, 2), (0.2, 25)])
def test_recordings_and_labels_tell_the_same_direction(folder, tmp_path, rt60, most):
    quiet = Simulation(open_clips(folder), 0, 6, 16000, rt60, 6, np.inf)
    simulate(quiet, tmp_path / "out", train=1, dev=0)
    split = tmp_path / "out" / "L3DAS_Task2_train"
    audio, rate = soundfile.read(split / "data" / "split0_ov1_1_A.wav")
    errors = []
    for row in read_labels(split / "labels" / "label_split0_ov1_1.csv"):
        first, last = (round(float(row[name]) * rate) for name in ("Start", "End"))
        position = [float(row[axis]) for axis in "XYZ"]
        errors.append(angle_to(position, audio[first:last].T))
    assert np.median(errors) < most


def test_a_stopped_run_goes_on(small, tmp_path):
    out = tmp_path / "out"
    simulate(small, out, train=2, dev=1)
    complete = read_tree(out)
    labels = out / "L3DAS_Task2_train" / "labels"
    (labels / "label_split0_ov2_1.csv").unlink()
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*ov1*")}
    assert simulate(small, out, train=2, dev=1)[:2] == (1, 2)
    assert read_tree(out) == complete
    assert times == {path: path.stat().st_mtime_ns for path in out.rglob("*ov1*")}
    assert simulate(small, out, train=3, dev=1)[:2] == (1, 3)  # more scenes leave the first alone
    assert complete.items() <= read_tree(out).items()


def test_other_settings_do_not_mix(small, tmp_path):
    simulate(small, tmp_path / "out", train=1, dev=0)
    with pytest.raises(ValueError, match="made with seed 0, not 1; use the same settings"):
        simulate(Simulation(small.clips, 1, 6, 8000, 0), tmp_path / "out", train=1, dev=0)


@pytest.mark.slow
def test_processes_make_the_same_scenes(small, tmp_path):
    simulate(small, tmp_path / "one", train=4, dev=2, jobs=1)
    simulate(small, tmp_path / "two", train=4, dev=2, jobs=2)
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "two")


def test_a_failed_scene_leaves_no_files(small, folder, tmp_path):
    for clip in folder.glob("*/*.wav"):
        soundfile.write(clip, np.zeros(1600), 8000)
    with pytest.raises(ValueError, match=r"\.wav is silent"):
        simulate(small, tmp_path / "out", train=1, dev=0)
    assert [path.name for path in read_tree(tmp_path / "out")] == ["simulation.json"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rt60": 0.05}, "rt60=0.05 must be 0, for no reverberation, or above 0.12 s"),
        ({"rt60": -1}, "rt60=-1 must be 0"),
        ({"rt60": float("nan")}, "rt60=nan must be 0"),
        ({"rt60": float("inf")}, "rt60=inf must be 0"),
        ({"reflections": -1}, "reflections=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"rate": 100}, "rate=100"),
        ({"rate": 48000}, "48000 Hz must be a multiple of 80 up to 40960"),
        ({"snr": float("nan")}, "snr=nan"),
        ({"seconds": 0.3}, "lasts 0.38 s, longer than a scene of 0.3 s"),
        ({"seconds": float("nan")}, "longer than a scene of nan s"),
    ],
)
def test_bad_simulations(folder, options, message):
    with pytest.raises(ValueError, match=message):
        Simulation(open_clips(folder), **{"seconds": 6, **options})


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"train": 0, "dev": 0}, "not both 0"),
        ({"train": -1, "dev": 2}, "train=-1"),
        ({"train": 1, "dev": 0, "jobs": 0}, "jobs=0"),
    ],
)
def test_bad_counts(small, tmp_path, counts, message):
    with pytest.raises(ValueError, match=message):
        simulate(small, tmp_path / "out", **counts)


def test_a_full_disk_is_told_before_the_work(small, tmp_path, monkeypatch):
    monkeypatch.setattr(simulation_module.shutil, "disk_usage", lambda path: _Usage())
    with pytest.raises(OSError, match=r"need 7\.7 GB, and .* has 1\.0 GB left"):
        simulate(small, tmp_path / "out", train=10000, dev=0)
    assert not list((tmp_path / "out").iterdir())  # so other settings may come


class _Usage:
    free = 10**9


def test_clips_without_folds_are_divided_by_class(folder):
    clips = open_clips(folder)
    assert clips.classes == ("hum", "tap")
    for label in clips.classes:
        train, dev = clips.files["train"][label], clips.files["dev"][label]
        assert (len(train), len(dev)) == (8, 2)
        assert not set(train) & set(dev)
    assert open_clips(folder).files == clips.files


def test_folds_stay_together(folder):
    write_metadata(folder, fold=fold_of)
    for folds, held in ((None, {5}), ("2, 3", {2, 3})):
        files = open_clips(folder, folds=folds).files
        for label in ("hum", "tap"):
            assert {fold_of(name) for name in files["dev"][label]} == held
            assert {fold_of(name) for name in files["train"][label]} == {1, 2, 3, 4, 5} - held


def test_classes_from_a_column(folder):
    write_metadata(folder, kind=lambda name: name[:3].upper())
    assert open_clips(folder, labels="kind").classes == ("HUM", "TAP")
    assert open_clips(folder).classes == ("hum", "tap")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (None, {"folds": "1"}, "needs a column fold"),
        (None, {"labels": "kind"}, "is a column of .*metadata.csv, which is missing"),
        ({"fold": fold_of}, {"folds": "6"}, "must be some of 1,2,3,4,5, but not all"),
        ({"fold": fold_of}, {"folds": "1,2,3,4,5"}, "but not all"),
        ({"fold": fold_of}, {"labels": "kind"}, "no column kind; it has file, fold"),
        ({"fold": lambda name: name[:3]}, {}, "no clip of the class tap is left for train"),
    ],
)
def test_bad_metadata(folder, columns, options, message):
    if columns:
        write_metadata(folder, **columns)
    with pytest.raises(ValueError, match=message):
        open_clips(folder, **options)


def test_bad_folders(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder of clips"):
        open_clips(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no clips: it must have a folder for each class"):
        open_clips(folder / "hum")
    write_clip(folder / "rare" / "only.wav")
    with pytest.raises(ValueError, match="no clip of the class rare is left for train"):
        open_clips(folder)


def test_a_listed_clip_must_be_there(folder):
    write_metadata(folder, fold=fold_of)
    (folder / "tap" / "3.wav").unlink()
    with pytest.raises(ValueError, match=r"3\.wav cannot be read"):
        open_clips(folder)


def test_bad_clips(folder):
    bad = folder / "hum" / "bad.wav"
    bad.write_bytes(b"no audio")
    with pytest.raises(ValueError, match=r"bad\.wav cannot be read: .*[Ff]ormat"):
        open_clips(folder)
    with pytest.raises(ValueError, match=r"bad\.wav cannot be read"):
        read_clip(bad, 8000)
    soundfile.write(bad, np.full(800, np.nan), 8000, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"bad\.wav has samples that are not numbers"):
        read_clip(bad, 8000)


def test_stereo_is_an_error_or_mixed(folder):
    stereo = folder / "hum" / "stereo.wav"
    write_clip(stereo, channels=2)
    with pytest.raises(ValueError, match=r"stereo\.wav has 2 channels; stereo=mix averages them"):
        open_clips(folder)
    assert open_clips(folder, stereo="mix").stereo == "mix"
    channels, _ = soundfile.read(stereo)
    np.testing.assert_allclose(read_clip(stereo, 8000, "mix"), channels.mean(1), atol=1e-6)


@pytest.mark.parametrize("own", [44100, 16000])
def test_other_rates_are_converted(tmp_path, own):
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(own) / own)
    soundfile.write(tmp_path / "tone.wav", tone, own)
    samples = read_clip(tmp_path / "tone.wav", RATE)
    assert len(samples) == RATE
    assert np.abs(np.fft.rfft(samples)).argmax() == 440
    assert samples.std() == pytest.approx(0.5 / np.sqrt(2), rel=0.01)


def spectrum_of(label, seed):
    samples = synthesize(label, np.random.default_rng(seed), 16000)
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() == pytest.approx(1)
    assert len(samples) <= SyntheticClips().longest[1] * 16000
    power = np.abs(np.fft.rfft(samples, 2**17)) ** 2
    bands = np.add.reduceat(power, np.unique(np.geomspace(500, 60000, 24).astype(int)))
    return np.log(bands / bands.sum())


def test_synthetic_classes_differ():
    known = np.array([[spectrum_of(label, seed) for seed in range(4)] for label in CLASSES])
    new = np.array([[spectrum_of(label, seed) for seed in (4, 5)] for label in CLASSES])
    distances = ((new[:, :, None] - known.mean(1)) ** 2).sum(-1)
    accuracy = np.mean(distances.argmin(-1) == np.arange(len(CLASSES))[:, None])
    assert accuracy > 0.5  # the spectrum alone; chance is 0.07


@pytest.mark.parametrize("label", CLASSES)
def test_synthetic_clips_at_a_low_rate(label):
    for seed in range(3):
        low, high = (synthesize(label, np.random.default_rng(seed), rate) for rate in (8000, 32000))
        assert np.isfinite(low).all()
        assert len(low) == pytest.approx(len(high) / 4, abs=1)


def test_synthetic_splits_differ():
    clips = SyntheticClips()
    train, dev = (clips.draw(np.random.default_rng(0), split, 8000) for split in ("train", "dev"))
    assert train.label == dev.label
    assert train.name != dev.name
    assert len(train.samples) != len(dev.samples) or (train.samples != dev.samples).any()


def call(capsys, *argv):
    code = cli.main([str(argument) for argument in argv])
    out, err = capsys.readouterr()
    return code, out, err


QUICK = ("--seconds", 9, "--rate", 8000, "--rt60", 0, "--jobs", 1)


def test_the_command_needs_no_clips(tmp_path, capsys):
    out = tmp_path / "scenes"
    code, said, _ = call(capsys, "simulate", "--train", 2, "--dev", 1, *QUICK, "-o", out)
    assert code == 0
    assert f"made 3 scenes of 9 s in {out}, 0 were there" in said
    assert f"next: phnn train sednet-short --data.root {out}" in said
    labels = {row["Class"] for path in out.rglob("*.csv") for row in read_labels(path)}
    assert labels <= set(CLASSES)
    assert json.loads((out / "simulation.json").read_text())["rate"] == 8000


def test_the_command_takes_clips(folder, tmp_path, capsys):
    argv = ("simulate", "--clips", folder, "--train", 1, "--dev", 1, *QUICK, "-o", tmp_path / "out")
    code, said, _ = call(capsys, *argv)
    assert code == 0
    said = said.splitlines()[-1]
    assert said.endswith("--data.classes '[hum,tap]'")
    arguments = parse(train, ["digits", *shlex.split(said)[4:]])
    assert arguments["overrides"]["data"]["classes"] == ["hum", "tap"]
    code, said, _ = call(capsys, *argv)
    assert "made 0 scenes of 9 s" in said


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--folds", "1"], "give --clips"),
        (["--clips", "nowhere"], "nowhere is not a folder of clips"),
        (["--second", "5"], "there is no option --second; did you mean --seconds"),
        (["--stereo", "left"], "stereo"),
        (["--seconds", "5"], "a synthetic clip lasts 8.00 s, longer than a scene of 5 s"),
    ],
)
def test_the_command_explains_mistakes(tmp_path, capsys, argv, message):
    code, _, err = call(capsys, "simulate", *argv, "-o", tmp_path / "out")
    assert code == cli.USER_ERROR
    assert message in err


@pytest.mark.parametrize("module", ["pyroomacoustics", "soundfile"])
def test_the_command_names_its_extra(tmp_path, capsys, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    impulse_response.cache_clear()
    code, _, err = call(capsys, "simulate", "--train", 1, *QUICK, "-o", tmp_path / "out")
    assert code == cli.USER_ERROR
    assert f'this command needs {module}; pip install "phnn[sound]"' in err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_simulation_leaves_no_process_behind(tmp_path):
    out = tmp_path / "out"
    process = start("simulate", "--out", out, "--train", 500, "--seconds", 8, "--jobs", 2)
    wait_for(lambda: list(out.rglob("label_*.csv")), process)
    children = list_children(process)
    assert len(children) >= 2
    process.kill()
    wait_until_gone(children, 20)
    process.communicate()
