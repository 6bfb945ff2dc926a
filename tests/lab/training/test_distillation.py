"""Fine-tuning by distillation: the function for any model, and `--distill` of a recipe."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import phnn
from helpers.training import assert_same_run, rows, run
from phnn.lab import distill, distillation
from phnn.lab.recipe import OptimizerOptions, build_recipe, merge
from phnn.lab.tasks.imitation import relative_error
from phnn.lab.tasks.learner import Learner
from phnn.lab.tasks.optimization import NonFiniteLossError, make_optimizer
from phnn.lab.training.build import build_data, build_learner, check_recipe


@pytest.fixture
def teacher():
    torch.manual_seed(0)
    layers = [nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 4)]
    model = nn.Sequential(*layers)
    for _ in range(50):  # the statistics of a trained network
        model(torch.randn(64, 8))
    return model


@pytest.fixture
def student(teacher):
    return phnn.convert(teacher, budget=0.6).eval()


@pytest.fixture
def batches():
    torch.manual_seed(1)
    return list(torch.randn(128, 8).split(16))


# --- the loss ------------------------------------------------------------------------------------


def test_the_loss_is_relative_to_the_variation():
    targets = torch.randn(64, 5) * 7 + 30
    assert relative_error(targets, targets) == 0
    mean = targets.mean(0).expand(64, 5)
    assert relative_error(mean, targets).item() == pytest.approx(1, rel=1e-5)
    assert relative_error(100 * mean, 100 * targets).item() == pytest.approx(1, rel=1e-5)
    assert relative_error(torch.zeros(1, 3), torch.ones(1, 3)).item() == 1  # nothing varies


def test_the_loss_takes_outputs_at_any_depth():
    outputs = {"a": torch.zeros(4, 2), "b": (torch.ones(4, 2), torch.arange(4))}
    targets = {"a": torch.eye(4)[:, :2], "b": (torch.ones(4, 2), torch.arange(4))}
    expected = relative_error(outputs["a"], targets["a"]) / 2
    assert torch.equal(relative_error(outputs, targets), expected)
    with pytest.raises(ValueError, match=r"student returns \(4, 2\), the teacher \(4, 3\); dist"):
        relative_error(torch.zeros(4, 2), torch.zeros(4, 3))
    with pytest.raises(ValueError, match="student returns nothing to compare, the teacher nothing"):
        relative_error(torch.arange(3), torch.arange(3))


def test_rates_are_shares_of_the_sizes():
    layer = phnn.PHLinear(8, 8, n=2)
    options = OptimizerOptions("adamw", lr=0.1, algebra_lr=0.2, relative=True, weight_decay=0)
    with torch.no_grad():
        layer.bias.zero_()
        layer.A.fill_(3.0)
        layer.F.fill_(-0.5)
    groups = make_optimizer(layer, options).param_groups
    rates = {group["name"]: group["lr"] for group in groups}
    assert rates == pytest.approx({"algebra": 0.6, "weight": 0.05, "vector": 0.001})


def test_rates_are_relative_or_balanced():
    with pytest.raises(ValueError, match=r"adam and adamw .*; leave it out, or take adamw"):
        OptimizerOptions("sgd", relative=True)
    with pytest.raises(ValueError, match=r"leave optimizer\.balanced out"):
        OptimizerOptions("adamw", relative=True, balanced=True)


# --- the function --------------------------------------------------------------------------------


def test_the_student_comes_closer(teacher, student, batches):
    seen = []
    before = copy.deepcopy(student)
    scores = iter([0.5, 0.75])
    epochs = distill(
        student,
        teacher,
        batches,
        epochs=2,
        lr=0.03,
        evaluate=lambda model: next(scores),
        progress=lambda *what: seen.append(what),
    )
    assert [(epoch.number, epoch.score) for epoch in epochs] == [(1, 0.5), (2, 0.75)]
    assert seen == [("distilling", done, 16) for done in range(1, 17)]
    x = torch.cat(batches)
    teacher.eval()
    assert relative_error(student(x), teacher(x)) < 0.9 * relative_error(before(x), teacher(x))


def test_modes_and_frozen_parameters_stay(teacher, student, batches):
    original = copy.deepcopy(teacher.train().state_dict())
    student[4].requires_grad_(False)
    kept, changed = copy.deepcopy(student[4].state_dict()), copy.deepcopy(student[0].F)
    distill(student, teacher, batches, epochs=1)
    assert not student.training
    assert teacher.training
    assert all(torch.equal(value, original[name]) for name, value in teacher.state_dict().items())
    assert all(torch.equal(value, kept[name]) for name, value in student[4].state_dict().items())
    assert not torch.equal(student[0].F, changed)
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.parametrize("stop", [3, 8, 13])
def test_a_stopped_run_goes_on(teacher, student, batches, tmp_path, monkeypatch, stop):
    """To the same network: the steps that were done are not repeated."""
    monkeypatch.setattr(distillation, "SECONDS", 0.0)
    teacher[3] = student[3] = nn.Identity()  # the numbers of dropout would differ
    whole, halted, later = (copy.deepcopy(student) for _ in range(3))
    distill(whole, teacher, batches, epochs=2)

    def halt(what, done, total):
        if done == stop:
            raise KeyboardInterrupt

    file = tmp_path / "new" / "state.ckpt"
    with pytest.raises(KeyboardInterrupt):
        distill(halted, teacher, batches, epochs=2, checkpoint=file, progress=halt)
    seen = []
    epochs = distill(
        later, teacher, batches, epochs=2, checkpoint=file, progress=lambda *w: seen.append(w[1])
    )
    assert seen == list(range(stop + 1, 17))
    assert len(epochs) == 2
    state = whole.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in later.state_dict().items())
    again = copy.deepcopy(student)
    assert distill(again, teacher, batches, epochs=2, checkpoint=file) == epochs
    assert torch.equal(again[0].F, later[0].F)


def test_another_run_is_not_continued(teacher, student, batches, tmp_path):
    file = tmp_path / "state.ckpt"
    distill(student, teacher, batches, epochs=1, checkpoint=file)
    with pytest.raises(ValueError, match=r"another run \(epochs: 1 → 2, lr: 0.01 → 0.1\); give"):
        distill(student, teacher, batches, epochs=2, lr=0.1, checkpoint=file)
    with pytest.raises(ValueError, match="another student"):
        distill(copy.deepcopy(teacher), teacher, batches, epochs=1, checkpoint=file)
    torch.save({"plan": {"epochs": 1}, "student": 3}, file)
    with pytest.raises(ValueError, match="no checkpoint of distill"):
        distill(student, teacher, batches, epochs=1, checkpoint=file)


def test_a_damaged_checkpoint_falls_back(teacher, student, batches, tmp_path, caplog):
    file, before = tmp_path / "state.ckpt", tmp_path / "state.ckpt.previous"
    distill(student, teacher, batches, epochs=2, checkpoint=file)
    flipped = bytearray(file.read_bytes())
    flipped[len(flipped) // 2] ^= 4
    file.write_bytes(flipped)
    again = copy.deepcopy(student)
    distill(again, teacher, batches, epochs=2, checkpoint=file)
    assert "the run continues from the checkpoint before it" in caplog.text
    file.write_bytes(flipped)
    before.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"state\.ckpt is damaged.*give another checkpoint="):
        distill(student, teacher, batches, epochs=2, checkpoint=file)


class Named(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, values):
        return {"logits": self.inner(values)}


def test_batches_of_other_kinds(teacher, student, batches):
    labelled = [(x, torch.zeros(len(x))) for x in batches]
    with pytest.raises(TypeError, match=r"2 parts .*forward=lambda model, batch: model\(batch\[0"):
        distill(student, teacher, labelled, epochs=1)
    distill(student, teacher, labelled, epochs=1, forward=lambda model, batch: model(batch[0]))
    named = [{"values": x} for x in batches]
    distill(Named(student), Named(teacher), named, epochs=1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"student": None}, ValueError, "the student is the teacher"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1, got epochs=0"),
        ({"lr": 0.0}, ValueError, r"lr must be a positive share .* got lr=0\.0"),
        ({"loader": []}, ValueError, "the loader has no batches"),
        ({"loader": (x for x in ())}, TypeError, "a generator does not know; give a DataLoader"),
        ({"teacher": nn.Linear(8, 4, device="meta")}, ValueError, "are on cpu and meta; move one"),
        ({"teacher": nn.Linear(8, 3)}, ValueError, r"student returns \(16, 4\), the teacher"),
        ({"loss": lambda y, t: y.sum() * float("nan")}, NonFiniteLossError, "became nan in epoch"),
    ],
)
def test_mistakes(teacher, student, batches, change, error, message):
    options = {"student": student, "teacher": teacher, "loader": batches, "epochs": 1, **change}
    models = options.pop("student") or teacher, options.pop("teacher"), options.pop("loader")
    with pytest.raises(error, match=message):
        distill(*models, **options)


def test_students_that_cannot_learn(teacher, student, batches):
    with pytest.raises(ValueError, match="share parameters; distill a copy"):
        distill(nn.Sequential(*teacher), teacher, batches)
    with pytest.raises(ValueError, match="no parameters that require a gradient"):
        distill(student.requires_grad_(False), teacher, batches)


# --- the recipe ----------------------------------------------------------------------------------


@pytest.fixture
def small(reference, tmp_path):
    """The network of the reference run, damaged by a conversion."""
    trained = phnn.load(reference / "model.safetensors")
    with torch.no_grad():
        trained.get_parameter(first_filters(trained)).mul_(0.5)
    return phnn.save(trained, tmp_path / "small.safetensors", metadata=trained.phnn_metadata)


def first_filters(model):
    return next(name for name, _ in model.named_parameters() if name.endswith("F"))


def test_a_recipe_learns_from_a_network(reference, tiny, small, tmp_path, monkeypatch):
    tree = merge(
        tiny, {"start": str(small), "distill": str(reference), "trainer": {"max_epochs": 2}}
    )
    tree["optimizer"] = {"name": "adamw", "lr": 0.01, "relative": True, "weight_decay": 0.0}
    monkeypatch.setattr(Learner, "loss", None)
    calls = []
    original = Learner._imitate
    monkeypatch.setattr(Learner, "_imitate", lambda self, *a: calls.append(a) or original(self, *a))
    result = run(tree, tmp_path / "whole")
    assert len(calls) == 8
    assert result["recipe"]["distill"] == reference.name
    assert result["parameters"] == sum(
        tensor.numel()
        for name, tensor in load_file(small).items()
        if "running" not in name and "num_" not in name
    )
    assert "val_accuracy" in rows(tmp_path / "whole")[0]
    checkpoint = torch.load(tmp_path / "whole/checkpoints/last.ckpt", weights_only=True)
    assert not any("teacher" in name for name in checkpoint["state_dict"])


def test_a_distillation_resumes_to_the_same_bits(reference, tiny, small, tmp_path, monkeypatch):
    tree = merge(
        tiny, {"start": str(small), "distill": str(reference), "trainer": {"max_epochs": 2}}
    )
    tree["optimizer"] = {"name": "adamw", "lr": 0.01, "relative": True, "weight_decay": 0.0}
    run(tree, tmp_path / "whole")
    original = Learner.training_step

    def halt(self, batch, batch_idx):
        if self.global_step == 6:
            raise KeyError
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "training_step", halt)
        with pytest.raises(KeyError):
            run(tree, tmp_path / "parts")
    run(tree, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_teachers(reference, tiny, tmp_path, monkeypatch):
    (tmp_path / "teachers.py").write_text(
        f"import phnn\n\ndef original():\n    return phnn.load({str(reference)!r})\n"
    )
    monkeypatch.chdir(tmp_path)
    data = build_data(build_recipe(tiny))
    for text in (str(reference), str(reference / "model.safetensors"), "teachers:original"):
        recipe = build_recipe(merge(tiny, {"distill": text}))
        check_recipe(recipe)
        (teacher,) = build_learner(recipe, data)._teachers
        assert not teacher.training
        assert torch.equal(
            teacher.state_dict()[first_filters(teacher)],
            load_file(reference / "model.safetensors")[first_filters(teacher)],
        )
    with pytest.raises(FileNotFoundError, match="no file or folder nowhere to distill from"):
        check_recipe(build_recipe(merge(tiny, {"distill": "nowhere"})))
    other = phnn.save(
        phnn.load(reference), tmp_path / "other.safetensors", metadata={"classes": ["a", "b", "c"]}
    )
    with pytest.raises(ValueError, match="trained on 3 classes, which differ from the 2"):
        build_learner(build_recipe(merge(tiny, {"distill": str(other)})), data)


def test_the_command_fine_tunes_shortly(tiny, reference, tmp_path, monkeypatch, capsys):
    import yaml

    from phnn import cli

    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    monkeypatch.chdir(tmp_path)
    argv = ["train", "tiny.yaml", "--start", str(reference / "model.safetensors")]
    argv += ["--distill", str(reference), "--trainer.max_epochs", "1"]
    assert cli.main(argv) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == f"tiny-n=2-from-{reference.name}-distilled-seed0"
    recipe = yaml.safe_load((folder / "config.yaml").read_text())
    assert recipe["optimizer"]["relative"]
    assert recipe["optimizer"]["name"] == "adamw"
    assert recipe["trainer"]["max_epochs"] == 1
