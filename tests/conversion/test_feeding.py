"""Batch norms of models that torch.fx cannot trace, found by a run."""

import copy

import pytest
import torch
from torch import nn

from phnn.conversion import convert, to_dense
from phnn.testing import assert_close

X = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))


class Untraceable(nn.Module):
    """A layer, what follows it, and a decision that depends on values."""

    def __init__(self, after=None):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, bias=False)
        self.after = nn.BatchNorm2d(8) if after is None else after
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        x = self.use(self.conv(x))
        if x.sum() > 1e9:
            x = x + 1
        return self.head(x.mean((2, 3)))

    def use(self, y):
        return self.after(y)


class Adds(Untraceable):
    def use(self, y):
        return self.after(y) + y


class Keeps(Untraceable):
    def use(self, y):
        self.seen = y
        return self.after(y)


class Twice(Untraceable):
    def use(self, y):
        return self.after(y) + self.after(y.relu())


class Reads(Untraceable):
    def use(self, y):
        return self.after(y) * self.after.weight.mean()


class Shapes(Untraceable):
    def use(self, y):
        return self.after(y).view(y.shape[0], y.size(1), *y.shape[2:])


def make(kind, **options):
    model = kind(**options).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight)
    return convert(model, n=2)


def fused(model):
    return [entry.name for entry in model.phnn_report.entries if entry.after == "Identity"]


def test_without_batch_norms_there_is_nothing_to_know():
    model = make(Untraceable, after=nn.GroupNorm(2, 8))
    folded = to_dense(model, fuse=True)
    assert not fused(folded)
    assert_close(folded(X), model(X))


def test_norms_need_an_example():
    with pytest.raises(ValueError, match=r"cannot trace.* 1 batch norms.*give example_input="):
        to_dense(make(Untraceable), fuse=True)


@pytest.mark.parametrize("example", [X, (X,), {"x": X}])
@pytest.mark.parametrize("kind", [Untraceable, Shapes])
def test_a_run_shows_what_feeds_a_norm(kind, example):
    model = make(kind)
    folded = to_dense(model, fuse=True, example_input=example)
    assert fused(folded) == ["after"]
    assert isinstance(folded.after, nn.Identity)
    assert_close(folded(X), model(X))


@pytest.mark.parametrize("kind", [Adds, Keeps, Twice, Reads])
def test_what_somebody_else_reads_is_not_fused(kind):
    model = make(kind)
    folded = to_dense(model, fuse=True, example_input=X)
    assert not fused(folded)
    assert_close(folded(X), model(X))


class Returns(Untraceable):
    def forward(self, x):
        y = self.conv(x)
        return (self.after(y) if y.sum() < 1e9 else y), {"features": [y]}


def test_what_is_returned_is_not_fused():
    model = make(Returns)
    folded = to_dense(model, fuse=True, example_input=X)
    assert not fused(folded)
    assert_close(folded(X)[1]["features"][0], model(X)[1]["features"][0])


def test_the_run_leaves_no_trace():
    model = make(Keeps)
    before = copy.deepcopy(model.state_dict())
    to_dense(model, fuse=True, example_input=X)
    assert not hasattr(model, "seen")
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
