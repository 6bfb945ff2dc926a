"""A task whose data follow the rules of an algebra of dimension 4, which a search has to find."""

import torch
from torch import nn
from torchmetrics import MeanSquaredError

import phnn
from phnn.lab.tasks import Data, Score, Task
from phnn.lab.tasks.batches import EpochBatches, Plan
from phnn.lab.tasks.learner import Learner

WIDTH = 32
SIZES = {"train": 24, "validation": 64, "test": 64}  # 24 · 32 numbers, fewer than a real layer has
REPEATS = 10  # of the training samples in an epoch


class Pairs(EpochBatches):
    things = "samples"

    def __init__(self, inputs, outputs, plan):
        self.inputs, self.outputs = inputs, outputs
        super().__init__(len(inputs), plan)

    def read(self, start):
        for index in self.positions(start):
            yield self.inputs[index], self.outputs[index]


class RuleData(Data):
    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.splits: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def setup(self):
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(self.seed)
            rule = phnn.PHLinear(WIDTH, WIDTH, n=4, bias=False)
            for split, count in SIZES.items():
                inputs = torch.randn(count, WIDTH)
                self.splits[split] = inputs, rule(inputs)

    def metadata(self):
        return {}

    def train_dataloader(self):
        inputs, outputs = (each.repeat(REPEATS, 1) for each in self.splits["train"])
        return Pairs(inputs, outputs, self.share(Plan(SIZES["train"])))

    def val_dataloader(self):
        return Pairs(*self.splits["validation"], self.share(Plan(SIZES["validation"])))

    def test_dataloader(self):
        return Pairs(*self.splits["test"], self.share(Plan(SIZES["test"])))


class Regressor(Learner):
    def __init__(self, model, recipe, metadata):
        super().__init__(model, recipe, metadata, {"error": MeanSquaredError()})

    def loss(self, outputs, targets):
        return nn.functional.mse_loss(outputs, targets)


def make_layer(n):
    return phnn.PHLinear(WIDTH, WIDTH, n=n, bias=False)


TASK = Task(
    "rules",
    scores=(Score("error", "mean squared error", higher=False),),
    data=RuleData,
    learner="helpers.rules:Regressor",
    network_options=lambda data: {},
)
RECIPE = {
    "task": "rules",
    "model": {"name": "helpers.rules:make_layer"},
    "optimizer": {"name": "adam", "lr": 0.1, "weight_decay": 0.0},
    "schedule": {"name": "onecycle"},
    "trainer": {
        "max_epochs": 10, "threads": 1, "energy": False, "accelerator": "cpu", "logger": "none",
    },
}  # fmt: skip
