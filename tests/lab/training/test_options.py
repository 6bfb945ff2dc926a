"""Options of the trainer that build Lightning's own loggers and callbacks."""

import importlib.util

import pytest
import torch
from safetensors.torch import load_file

import phnn
from helpers.training import assert_same_run, rows, run
from phnn.lab.recipe import OptimizerOptions, build_recipe, merge
from phnn.lab.tasks.images.classifier import Classifier
from phnn.lab.tasks.learner import Learner
from phnn.lab.tasks.optimization import make_optimizer
from phnn.lab.trained import load_trained
from phnn.lab.training import RunFolderError, fitting
from phnn.lab.training.build import build_data
from phnn.models import create_model


class CrashError(Exception):
    pass


def crash_at(monkeypatch, step):
    """Let training fail at a step."""
    original = Learner.training_step

    def fail(self, batch, batch_idx):
        if self.global_step == step:
            raise CrashError
        return original(self, batch, batch_idx)

    monkeypatch.setattr(Learner, "training_step", fail)


def run_with_a_crash(monkeypatch, tree, out, step):
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        with pytest.raises(CrashError):
            run(tree, out)
    return run(tree, out)


# --- loggers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("logger", "files"), [("csv", ["csv/metrics.csv"]), ("none", [])])
def test_loggers(tiny, tmp_path, logger, files):
    run(tiny, tmp_path, trainer={"logger": logger, "max_epochs": 1})
    assert not (tmp_path / "tensorboard").exists()
    assert all("val_loss" in (tmp_path / file).read_text() for file in files)
    assert len(rows(tmp_path)) == 1  # our own log is there always


@pytest.mark.parametrize("logger", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed(tiny, tmp_path, monkeypatch, logger):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *p: None if n == logger else find(n))
    with pytest.raises(ValueError, match=f"logger={logger} needs a package: pip install {logger}"):
        run(tiny, tmp_path, trainer={"logger": logger})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logger": "tensorbord"}, "logger.*tensorbord"),
        ({"averaging": "mean"}, "averaging.*mean"),
        ({"averaging_decay": 1.0}, r"averaging_decay=1\.0 must be at least 0 and below 1"),
        ({"early_stopping": 0}, r"trainer\.early_stopping=0 must be at least 1"),
        ({"threads": 0}, r"trainer\.threads=0 must be at least 1"),
    ],
)
def test_mistakes_are_named(tiny, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run(tiny, tmp_path, trainer=options)


# --- early stopping ------------------------------------------------------------------------------


def patient(tiny, **options):
    """A recipe that does not learn, so that no epoch is better than the first."""
    trainer = {"max_epochs": 9, "early_stopping": 2, **options}
    return merge(tiny, {"optimizer": {"lr": 0.0}, "trainer": trainer})


def test_early_stopping(tiny, tmp_path):
    # running means of batch norm change, the accuracy does not
    result = run(patient(tiny), tmp_path)
    assert result["epochs"] == len(rows(tmp_path)) < 9
    best = int(result["selected"].removeprefix("best, epoch "))
    assert result["epochs"] == best + 3


def test_early_stopping_needs_validation(tiny, tmp_path):
    with pytest.raises(ValueError, match=r"early_stopping=2 needs a validation split"):
        run(patient(tiny), tmp_path, data={"validation": 0})


def test_early_stopping_resumes(tiny, tmp_path, monkeypatch):
    whole, broken, untested = (tmp_path / name for name in ("whole", "broken", "untested"))
    run(patient(tiny), whole)
    run_with_a_crash(monkeypatch, patient(tiny), broken, step=6)
    assert_same_run(whole, broken)

    def fail(*_):
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "test", fail)  # after the last epoch, before the result
        with pytest.raises(CrashError):
            run(patient(tiny), untested)
    run(patient(tiny), untested)
    assert_same_run(whole, untested)


def test_early_stopping_is_not_changed_on_the_way(tiny, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        crash_at(patch, step=2)
        with pytest.raises(CrashError):
            run(patient(tiny), tmp_path)
    with pytest.raises(RunFolderError, match=r"trainer\.early_stopping: 2 → 5"):
        run(patient(tiny, early_stopping=5), tmp_path)


# --- weight averaging ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"averaging": "ema", "averaging_decay": 0.9}, {"averaging": "swa"}]
)
def test_averaging_resumes(tiny, tmp_path, monkeypatch, options):
    tree = merge(tiny, {"trainer": options})
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(tree, whole)
    run_with_a_crash(monkeypatch, tree, broken, step=10)
    assert_same_run(whole, broken)


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_averages(tiny, tmp_path, monkeypatch, kind):
    """Compare with the average written out; that of swa begins in the middle."""
    after = []  # each step
    original = Learner.on_train_batch_end

    def note(self, *args):
        after.append({name: p.detach().double() for name, p in self.model.named_parameters()})
        return original(self, *args)

    monkeypatch.setattr(Learner, "on_train_batch_end", note)
    options = {"averaging": kind, "averaging_decay": 0.8, "averaging_start": 0.5}
    run(tiny, tmp_path, data={"validation": 0}, trainer=options)
    saved = load_file(tmp_path / "model.safetensors")
    for name in after[0]:
        weights = [step[name] for step in after]
        if kind == "ema":
            expected = weights[0]
            for weight in weights[1:]:
                expected = 0.8 * expected + 0.2 * weight
        else:
            expected = torch.stack(weights[round(0.5 * len(weights)) :]).mean(0)
        torch.testing.assert_close(saved[name].double(), expected, rtol=1e-4, atol=1e-6)


# --- options of the learner ----------------------------------------------------------------------


def test_flips_in_tests_average_an_image_and_its_mirror_image(tiny, tmp_path):
    run(merge(tiny, {"learner": {"test_flips": True}}), tmp_path)
    trained = load_trained(tmp_path)
    learner = Classifier(trained.model, trained.recipe, trained.metadata).eval()
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        wanted = (trained.model(images) + trained.model(images.flip(3))) / 2
        torch.testing.assert_close(learner.infer(images), wanted)
        torch.testing.assert_close(learner(images), trained.model(images))


def test_labels_are_smoothed_in_training_alone(tiny):
    recipe = build_recipe(merge(tiny, {"learner": {"label_smoothing": 0.2}}))
    learner = Classifier(create_model(**recipe.model), recipe, {"classes": ["dark", "light"]})
    outputs, targets = torch.tensor([[3.0, 1.0]]), torch.tensor([0])
    plain, wrong = (torch.tensor(value).exp().log1p() for value in (-2.0, 2.0))
    torch.testing.assert_close(learner.train().loss(outputs, targets), 0.9 * plain + 0.1 * wrong)
    torch.testing.assert_close(learner.eval().loss(outputs, targets), plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.5}, r"learner\.label_smoothing=1\.5 must be at least 0 and below 1"),
        (
            {"label_smothing": 0.1},
            "unknown learner option 'label_smothing'; did you mean label_smo",
        ),
    ],
)
def test_mistakes_in_learner_options_are_named(tiny, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run(merge(tiny, {"learner": options}), tmp_path)


def test_a_network_that_whitens_takes_its_filters_from_the_training_images(tiny, tmp_path):
    network = {"model": {"name": "cifarnet", "widths": [4, 4, 4], "n": 2}}
    tree = {**merge(tiny, {"trainer": {"max_epochs": 1}}), **network}
    run(tree, tmp_path)
    data = build_data(build_recipe(tree))
    trained = load_trained(tmp_path).model
    expected = create_model("cifarnet", widths=[4, 4, 4], n=2)
    expected.whiten(data.sample(5000))
    assert torch.equal(trained.whitening.weight, expected.whitening.weight)


@pytest.mark.parametrize("keep", [True, False])
def test_pruned_weights_stay_zero_if_they_shall(tiny, tmp_path, keep):
    run(tiny, tmp_path / "first")
    model = load_trained(tmp_path / "first").model
    pruned = model.features[1].F
    with torch.no_grad():
        pruned[::2] = 0
    phnn.save(model, tmp_path / "pruned.safetensors", metadata=model.phnn_metadata)
    optimizer = {"keep_zeros": keep}
    run(tiny, tmp_path / "again", start=str(tmp_path / "pruned.safetensors"), optimizer=optimizer)
    trained = load_trained(tmp_path / "again").model.features[1].F
    assert trained[1::2].all()
    assert not torch.equal(trained[1::2], pruned[1::2])
    assert bool(trained[::2].any()) is not keep
    # written in the middle of an epoch: a resumed run notes the zeros that it finds there
    between = torch.load(tmp_path / "again/checkpoints/previous.ckpt", weights_only=True)
    assert bool(between["state_dict"]["model.features.1.F"][::2].any()) is not keep


def test_a_rate_of_zero_with_decoupled_decay(tiny):
    options = OptimizerOptions(lr=0.1, algebra_lr=0.0, weight_decay=1e-3, decoupled=True)
    groups = make_optimizer(create_model("resnet20", n=2), options).param_groups
    assert {group["weight_decay"] for group in groups if group["lr"]} == {1e-2}
