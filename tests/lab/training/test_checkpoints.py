"""Checkpoints: two of them, checksummed, and how often they are written."""

import random
import shutil

import pytest
import torch

from helpers.training import assert_same_run, run
from phnn.lab import sealing
from phnn.lab.recipe import TrainerOptions
from phnn.lab.runs import BEST, LAST, PREVIOUS
from phnn.lab.sealing import DamagedCheckpointError
from phnn.lab.tasks.learner import Learner
from phnn.lab.trained import load_trained
from phnn.lab.training import checkpoints


class CrashError(Exception):
    pass


@pytest.fixture
def stopped(tiny, tmp_path, tmp_path_factory, cache_of_references, monkeypatch):
    """A run that crashed after eight of twelve steps; each step has a checkpoint."""
    if "stopped" not in cache_of_references:
        out = tmp_path_factory.mktemp("stopped")
        crash_after_eight(tiny, out, monkeypatch)
        cache_of_references["stopped"] = out
    return shutil.copytree(cache_of_references["stopped"], tmp_path / "out")


def crash_after_eight(tiny, out, monkeypatch):
    original = Learner.training_step

    def crash(self, batch, batch_idx):
        if self.global_step == 8:
            raise CrashError
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "training_step", crash)
        with pytest.raises(CrashError):
            run(tiny, out)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << random.Random(position).randrange(8)
    path.write_bytes(content)


def step_of(path):
    return torch.load(path, weights_only=True)["global_step"]


def test_every_flipped_bit_is_found(stopped):
    path = stopped / LAST
    content = path.read_bytes()
    sealing.check(path)
    draw = random.Random(0)
    positions = [draw.randrange(len(content)) for _ in range(40)]
    for position in [*positions, 0, len(content) - 1, len(content) - 70, len(content) - 77]:
        flip(path, position)
        with pytest.raises(DamagedCheckpointError, match="damaged"):
            sealing.check(path)
        path.write_bytes(content)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_damaged_one_falls_back_to_the_one_before(stopped, tiny, reference, caplog, damage):
    last = stopped / LAST
    assert (step_of(last), step_of(stopped / PREVIOUS)) == (8, 7)
    run_on = {
        "flipped": lambda: flip(last, last.stat().st_size // 2),
        "truncated": lambda: last.write_bytes(last.read_bytes()[:-1]),
        "missing": last.unlink,
    }
    run_on[damage]()
    assert run(tiny, stopped)["resumed"]
    assert "the run continues from the checkpoint before it" in caplog.text
    assert_same_run(reference, stopped)


def test_two_damaged_ones_are_named(stopped, tiny):
    for name in (LAST, PREVIOUS):
        flip(stopped / name, 1000)
    with pytest.raises(DamagedCheckpointError, match=r"last.*previous.*delete .*checkpoints"):
        run(tiny, stopped)


def test_a_damaged_best_one_is_named(stopped, tiny):
    flip(stopped / BEST, 1000)
    with pytest.raises(DamagedCheckpointError, match=r"best\.ckpt is damaged.*delete"):
        run(tiny, stopped)
    with pytest.raises(DamagedCheckpointError, match=r"best\.ckpt is damaged"):
        load_trained(stopped / BEST)


def test_one_without_our_checksum_is_checked_by_its_archive(stopped):
    path = stopped / LAST
    torch.save(torch.load(path, weights_only=True), path)  # as older versions wrote it
    sealing.check(path)
    with path.open("rb") as file:
        position = file.read().index(b"global_step")
    flip(path, position)
    with pytest.raises(DamagedCheckpointError, match="does not match"):
        sealing.check(path)


@pytest.mark.parametrize("content", [{"state_dict": {}}, torch.zeros(2)])
def test_a_checkpoint_of_somebody_else(stopped, tiny, content):
    torch.save(content, stopped / LAST)
    with pytest.raises(ValueError, match=r"last\.ckpt is damaged, or not a checkpoint of phnn"):
        run(tiny, stopped)
    with pytest.raises(ValueError, match=r"last\.ckpt is damaged, or not a checkpoint of phnn"):
        load_trained(stopped / LAST)


@pytest.mark.parametrize("ours", [[1], "x", None, {}, {"config": []}, {"config": {"name": 3}}])
@pytest.mark.parametrize("state", [{}, [], None])
def test_a_checkpoint_of_wrong_types(tmp_path, ours, state):
    torch.save({"phnn": ours, "state_dict": state}, tmp_path / "c.ckpt")
    with pytest.raises(ValueError, match=r"c\.ckpt"):
        load_trained(tmp_path / "c.ckpt")


@pytest.mark.parametrize("key", checkpoints.WANTED)
def test_a_run_refuses_a_checkpoint_of_wrong_types(tmp_path, key):
    content = {name: kind() for name, kind in checkpoints.WANTED.items()}
    torch.save(content, tmp_path / "c.ckpt")
    checkpoints.AtomicCheckpointIO().load_checkpoint(tmp_path / "c.ckpt")
    torch.save({**content, key: "x"}, tmp_path / "c.ckpt")
    with pytest.raises(ValueError, match=rf"c\.ckpt is damaged.*it lacks {key}"):
        checkpoints.AtomicCheckpointIO().load_checkpoint(tmp_path / "c.ckpt")


@pytest.mark.parametrize("key", ["recipe", "layers", "config", "metadata"])
def test_a_checkpoint_with_a_wrong_description(stopped, key):
    content = torch.load(stopped / LAST, weights_only=True)
    content["phnn"][key] = 3
    torch.save(content, stopped / LAST)
    with pytest.raises(ValueError, match=r"last\.ckpt"):
        load_trained(stopped / LAST)


def test_every_five_minutes_by_default(tiny, tmp_path, reference, monkeypatch):
    assert TrainerOptions().checkpoint_minutes == 5
    now, saved = [0.0], []
    original = checkpoints.Keeper._save

    def note(self, trainer, path):
        saved.append(trainer.global_step)
        original(self, trainer, path)

    def tick(self, trainer, *args):
        now[0] += 160  # a step and its share of a clock
        return batch_end(self, trainer, *args)

    batch_end = checkpoints.Keeper.on_train_batch_end
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoints.Keeper, "on_train_batch_end", tick)
    monkeypatch.setattr(checkpoints.Keeper, "_save", note)
    run(tiny, tmp_path, trainer={"checkpoint_steps": None})
    assert [step for step in saved if step % 4] == [2, 6, 10]  # after 320 seconds of each epoch
    assert_same_run(reference, tmp_path)


@pytest.mark.parametrize("minutes", [-1, float("inf"), float("nan")])
def test_times_that_are_none(minutes):
    with pytest.raises(ValueError, match="checkpoint_minutes"):
        TrainerOptions(checkpoint_minutes=minutes)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("width_multiplier", 1e4, r"describes [\d,]+ numbers, and holds"),
        ("in_channels", 2 * 10**9, r"describes [\d,]+ numbers, and holds"),
        ("algebra", "cyclic(99)", "structure constants"),
    ],
)
def test_a_network_beyond_its_checkpoint_is_not_built(stopped, option, value, message):
    checkpoint = torch.load(stopped / LAST, weights_only=True)
    checkpoint["phnn"]["config"][option] = value
    torch.save(checkpoint, stopped / LAST)
    with pytest.raises(ValueError, match=message):
        load_trained(stopped / LAST)
