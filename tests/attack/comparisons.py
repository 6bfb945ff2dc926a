"""Comparisons with names that collide, and results of other recipes in their folders."""

import hashlib
import json
import math
import random
import shutil
import statistics
from dataclasses import replace
from functools import cache

import yaml

from phnn.lab import comparison, reports
from phnn.lab.recipe import build_recipe
from phnn.lab.runs import Run, check_folder, public, write_json
from phnn.lab.training import processes

WORDS = [
    "wide 2", "wide-2", "wide_2", "Wide 2", "wide  2", "wide/2", "é", "e\u0301", "ﬁ", "fi",
    "a" * 200, "a" * 199 + "b", "n=2", "real", "..", ".", "CON", "nul", "-", "--out", " ", "$x$",
    "\x1b[2J", "x\ny", "seed0", "wide 2-seed0", "1", "0x1", "null", "~", "%s", "日本",
    "{}", "\u202etxt",
]  # fmt: skip


def warm_up(folder):
    """Import what all cases need, before any is forked."""
    loaded = comparison.load_comparison("digits")
    runs = comparison.plan(loaded, folder, {})
    reports.summarize(loaded, [replace(run, result=make_result(run.recipe)) for run in runs])


def make_case(number, seed, ground, folder):
    """Return the case of a number."""
    draw = random.Random(f"{seed} comparisons {number}")

    def run():
        folder.mkdir(parents=True)
        return compare(draw, folder)

    return "comparisons", run


def draw_comparison(draw, folder):
    """Write a comparison of networks that differ, under names that hardly do."""
    families = {}
    recipes = ["digits", *(f"{sub}/mine.yaml" for sub in draw.sample("abc", draw.randint(0, 2)))]
    for place, name in enumerate(recipes):
        if "/" in name:
            path = folder / name
            path.parent.mkdir()
            tree = {"task": "images", "model": {"name": "vgg11"}, "data": {"name": "digits"}}
            path.write_text(yaml.safe_dump({**tree, "trainer": {"max_epochs": 1 + place}}))
        names = draw.sample(WORDS, draw.randint(1, 4))
        sizes = draw.sample(range(1, 60), len(names))
        families[name] = {
            word: {"n": 2, "width_multiplier": size / 16}
            for word, size in zip(names, sizes, strict=True)
        }
    seeds = draw.sample(range(5), draw.randint(1, 2))
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"seeds": seeds, "families": families}))
    return path


def score(tree):
    """Return a number that only this recipe gives."""
    text = read_public(json.dumps(tree, sort_keys=True))
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


@cache  # to build a recipe takes longer than all else here
def read_public(text):
    return json.dumps(public(build_recipe(json.loads(text))), sort_keys=True)


def make_result(tree):
    return {
        "recipe": json.loads(read_public(json.dumps(tree, sort_keys=True))),
        "model": dict(tree["model"]),
        "task": tree["task"],
        "data": {"name": tree["data"]["name"]},
        "seed": tree["seed"],
        "parameters": int(score(tree) * 10**6),
        "test_accuracy": score(tree),
        "val_accuracy": score(tree),
        "storage_bytes": 1,
        "train_seconds": 1.0,
        "train_seconds_per_100": 1.0,
        "test_seconds": 1.0,
    }


def compare(draw, folder):
    path, out = draw_comparison(draw, folder), folder / "out"
    try:
        loaded = comparison.load_comparison(path)
    except ValueError as error:
        from attack.sandbox import RefusedError

        raise RefusedError(str(error)) from None
    runs = comparison.plan(loaded, out, {})
    alike = {str(run.folder).casefold() for run in runs}
    assert len(alike) == len(runs), "two runs share a folder"
    assert all(run.folder.resolve().parent == (out / "runs").resolve() for run in runs)
    # somebody's results are there already: of another run of this comparison
    for run in draw.sample(runs, draw.randint(0, len(runs) // 2)):
        other = draw.choice(runs)
        Run.make(run.folder, build_recipe(other.recipe)).write()
        write_json(run.folder / "result.json", make_result(other.recipe))
    if draw.random() < 0.5:  # otherwise what is there is left to run_all
        try:
            comparison.check_folders(runs)
        except ValueError:
            shutil.rmtree(out)  # what the message asks for
    processes.subprocess = FakeProcesses(draw)
    ended = processes.run_all(runs, draw.choice([1, 2, 5]), lambda runs: None)
    rows = 0
    for run in ended:
        if run.result is None:
            assert run.error, f"{run.name} has neither a result nor an error"
            continue
        rows += 1
        assert run.result["test_accuracy"] == score(run.recipe), f"{run.name} has another's result"
    table = reports.summarize(loaded, ended)
    for summary in table:
        own = [r for r in ended if (r.family, r.variant) == (summary.family, summary.variant)]
        scores = [score(run.recipe) for run in own if run.result is not None]
        assert len(summary.seeds) == len(scores), summary.variant
        if scores:
            expected = 100 * statistics.mean(scores)
            assert math.isclose(summary.score.mean, expected), f"{summary.variant}: another score"
            assert summary.parameters == int(score(own_first(own)) * 10**6), summary.variant
    rows_written = json.loads(write(loaded, ended, out).read_text())["table"]
    assert [row["accuracy"] for row in rows_written] == [
        None if each.score is None else each.score.mean for each in table
    ]
    return f"{rows} rows of {len(runs)} runs"


def own_first(runs):
    return next(run.recipe for run in runs if run.result is not None)


def write(loaded, ended, out):
    out.mkdir(exist_ok=True)
    reports.write_tables(loaded, ended, out)
    return out / "results.json"


class FakeProcesses:
    """Stands for `subprocess`: runs that end at once, some of them without a result."""

    def __init__(self, draw):
        import subprocess

        self.draw = draw
        self.TimeoutExpired = subprocess.TimeoutExpired

    def Popen(self, argv, **options):
        return FakeProcess(self.draw, argv)


class FakeProcess:
    def __init__(self, draw, argv):
        from pathlib import Path

        *_, folder, what = argv
        given, folder = json.loads(what), Path(folder)
        fate = draw.random()
        self.returncode = 0 if fate < 0.8 else 1
        try:  # as training does before anything else
            check_folder(folder, build_recipe(given["recipe"]))
        except ValueError:
            self.returncode = 1
            return
        Run.make(folder, build_recipe(given["recipe"]), **given["names"]).write()
        if fate < 0.9:
            write_json(folder / "result.json", make_result(given["recipe"]))

    def poll(self):
        return self.returncode
