"""A training process of its own, to be killed or doubled; run by test_training.py.

Usage: train_worker.py RECIPE_AS_JSON OUT [plain] [once], where plain leaves batch norm out, and
once ends the run after an epoch.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

from phnn.lab.recipe import build_recipe
from phnn.lab.tasks import networks
from phnn.lab.training import build, fitting, train
from phnn.models import create_model


def without_batch_norm(*args, **kwargs):
    model = create_model(*args, **kwargs)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())
    return model


def leave_batch_norm_out(replace):
    """Make training build networks without it, and save them in spite of their config."""

    def save(model, path, metadata):
        torch.save(model.state_dict(), path)
        return path

    replace(networks, "create_model", without_batch_norm)
    replace(fitting, "save", save)


def main():
    learners = []

    def remember(*args):
        learners.append(build.build_learner(*args))
        return learners[-1]

    recipe, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    if "plain" in sys.argv[3:]:
        leave_batch_norm_out(setattr)
    fitting.build_learner = remember
    judge = (lambda row: True) if "once" in sys.argv[3:] else None
    train(build_recipe(recipe), out, progress=False, judge=judge)
    rank = os.environ.get("LOCAL_RANK", 0)
    for learner in learners:  # none when the run had ended before
        torch.save(learner.model.state_dict(), out / f"rank{rank}.pt")


if __name__ == "__main__":
    main()
