"""The help of the lab's commands, and errors in the words of the command line."""

import inspect
import re
import subprocess
import sys

import pytest

from phnn import cli
from phnn.cli import help as helping
from phnn.cli.recipe_options import SINGLE, find_recipe, list_groups
from phnn.lab.recipe import SECTIONS
from phnn.lab.tasks import find_task
from phnn.lab.tasks.task import resolve
from phnn.models.registry import MODELS


@pytest.fixture
def show(capsys):
    """Returns the help of a command."""

    def run(*argv):
        assert cli.main([*argv, "--help"]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("recipe", ["digits", "cifar10-fast", "sednet-short", "vgg16-cifar10"])
def test_all_options_of_the_network_and_the_data_are_listed(show, recipe):
    text = show("train", recipe)
    _, built = find_recipe([recipe], {})
    options = {
        f"--model.{name}" for name in inspect.signature(MODELS[built.model["name"]]).parameters
    }
    data = resolve(find_task(built.task).data)
    options |= {f"--data.{name}" for name in inspect.signature(data).parameters}
    options |= {f"--{s}.{f}" for s, kind in SECTIONS.items() for f in kind.__dataclass_fields__}
    options |= {f"--{name}" for name in SINGLE}
    listed = set(re.findall(r"^  (--[\w.]+) \S", text, re.MULTILINE))  # each with a value
    assert options <= listed
    for option in options:
        about = re.search(rf"^  {re.escape(option)} \S+\s+(\S.*)", text, re.MULTILINE)
        assert about is not None, option  # and with a description


@pytest.mark.parametrize("command", list(cli.LAB))
def test_help_is_for_people(show, command):
    text = show(command)
    assert text.startswith(f"usage: phnn {command} ")
    assert not re.search(r"<class|default: null|type:|dict\[|Optional|Literal", text)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert not re.search(r"\bVALUE\b", text)


def test_values_are_those_of_the_recipe(show):
    assert "--optimizer.lr 0.05 " in show("train", "digits")
    assert "--optimizer.lr 0.75 " in show("train", "cifar10-fast")
    assert "--model.name vgg11" in show("train", "digits", "--model.name", "vgg11")
    assert "--model.classifier ph" in show("train", "digits", "--model.name", "vgg11")
    assert "--model.hidden 64" in show("compare", "sednet-short")


def test_a_recipe_of_ones_own(show, tmp_path):
    (tmp_path / "mine.yaml").write_text("base: digits\noptimizer: {lr: 0.02}\n")
    (tmp_path / "both.yaml").write_text("families: {mine.yaml: {real: }}\n")
    assert "--optimizer.lr 0.02 " in show("train", str(tmp_path / "mine.yaml"))
    assert "--optimizer.lr 0.02 " in show("compare", str(tmp_path / "both.yaml"))


@pytest.mark.parametrize("command", ["report", "figures"])
def test_a_report_has_options_of_the_data_alone(show, command):
    sections = {option.partition(".")[0] for option in re.findall(r"--(\w+\.\w+)", show(command))}
    assert sections == {"data"}


def test_groups_know_what_a_command_takes():
    _, recipe = find_recipe([], {})
    names = [option.name for _, options in list_groups(recipe, "test") for option in options]
    assert "--data.root" in names
    assert "--trainer.accelerator" in names
    assert "--data.augment" not in names
    assert "--optimizer.lr" not in names


def test_usage_names_what_is_needed():
    from phnn.cli import sound, training

    assert helping.show_usage(sound.simulate) == "phnn simulate -o OUT [options]"
    assert helping.show_usage(training.predict) == "phnn predict CHECKPOINT INPUTS... [options]"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("report {tmp} --optimizer.lr 3", "--optimizer.lr is for training, and changes nothing"),
        ("figures {tmp} --seed 3", "--seed is for training"),
        ("test {tmp} --data.augment [crop]", "--data.augment is for training"),
        ("test {tmp} --trainer.max_epochs 3", "which takes --data.* and --learner.*"),
        ("train", "RECIPE is missing; phnn train RECIPE [options]"),
        ("simulate", "out is missing"),
        ("train digits --optimizer.lr fast", "--optimizer.lr takes a number, not fast"),
        ("train digits --trainer.max_epochs x", "--trainer.max_epochs takes a whole number"),
        ("train digits --trainer.averaging x", "--trainer.averaging takes ema or swa or null"),
        ("train digits --data.batch_size x", "--data.batch_size x must be a whole number"),
        ("train digits --data.augment 3", "--data.augment 3 must be a list"),
        ("train digits --schedule.name slow", "--schedule.name slow must be one of cosine, step"),
        ("train digits --data.nam x", "no option --data.nam; did you mean --data.name"),
        ("train digits --model.withs 4", "no option --model.withs; did you mean --model.widths"),
        ("train digits --learner.smooth 4", "there is no option --learner.smooth"),
        ("train digits --model.n 5", "--model.n 5 must divide the width 12"),
        ("train digits --data.validation 2", "--data.validation 2 must be a fraction"),
        ("train digits --data.root nowhere", "there is no folder nowhere"),
        ("train digits --trainer.max_epochs 0", "--trainer.max_epochs 0 must be at least 1"),
        ("train digits --task sound --data.name simulated", "--task sound takes sednet"),
        ("compare digits --jobs 0", "--jobs 0 must be at least 1"),
        ("compare digits --model.n 4", "--model.n 4 cannot be given"),
    ],
)
def test_errors_in_the_words_of_the_command_line(argv, message, here, refuse):
    assert message in refuse(*argv.format(tmp=here).split())
    assert [path.name for path in here.iterdir()] == ["mynetworks.py"]  # no folder was made


def measure(code, folder):
    """Return the processor seconds of a program."""
    timed = f"{code}; import sys, time; print(time.process_time(), file=sys.stderr)"
    argv = [sys.executable, "-c", timed]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, check=True)
    return float(done.stderr.split()[-1])


@pytest.mark.slow  # it wants a quiet machine
def test_help_takes_a_second_more_than_torch(tmp_path):
    torch = measure("import torch", tmp_path)
    shown = "from phnn import cli; cli.main(['train', 'digits', '--help'])"
    assert measure(shown, tmp_path) < torch + 1
