"""Runs of tiny recipes for tests."""

import csv

import torch
from safetensors.torch import load_file

from phnn.lab.recipe import build_recipe, merge
from phnn.lab.runs import LAST
from phnn.lab.training import train


def run(tree, out, **overrides):
    return train(build_recipe(merge(tree, overrides)), out, progress=False)


def rows(out):
    """The log without its times, which no two runs share."""
    with (out / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def assert_same_run(one, other):
    first, second = (load_file(out / "model.safetensors") for out in (one, other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    last = [torch.load(out / LAST, weights_only=True)["state_dict"] for out in (one, other)]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])
    assert rows(one) == rows(other)
