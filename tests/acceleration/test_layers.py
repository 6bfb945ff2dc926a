"""Layers that can only be folded, and those without a CP decomposition."""

import pytest
import torch
from torch import nn

import phnn
from helpers.accelerating import X, close, entry_of, network
from phnn import PHConv1d, PHConv2d, PHConvTranspose1d, PHLinear
from phnn.acceleration import candidates
from phnn.algebra import complex as complex_numbers
from phnn.decompose import Declined


class Subclass(PHLinear):
    pass


class Doubled(PHLinear):
    def forward(self, input):
        return 2 * super().forward(input)


@torch.no_grad()
def test_a_layer_with_a_forward_of_its_own_is_left_alone():
    model = nn.Sequential(PHLinear(8, 8, n=2), Doubled(8, 8, n=2)).eval()
    x = torch.randn(3, 8)
    fast = phnn.accelerate(model, x, rounds=1)
    assert close(fast(x), model(x))
    assert isinstance(fast[1], Doubled)
    assert "1 is left alone: Doubled has a forward of its own" in str(fast.phnn_report)
    with pytest.raises(ValueError, match=r"no PH layers to accelerate.*1 is left alone: Doubled"):
        phnn.accelerate(model[1:].eval(), x)


class Reads(nn.Module):
    """Layers whose attributes the model reads, as some of Hugging Face's do."""

    def __init__(self):
        super().__init__()
        self.first, self.second = PHLinear(8, 8, n=2), PHLinear(8, 8, n=2)

    def forward(self, x):
        return self.second(self.first(x).to(self.second.weight.dtype))


@torch.no_grad()
def test_a_layer_that_the_model_reads_is_folded():
    model, x = Reads().eval(), torch.randn(3, 8)
    fast = phnn.accelerate(model, x, rounds=1)
    first, second = fast.phnn_report.entries
    assert "reads" not in first.note
    assert second.note == "the model reads its weight"
    assert isinstance(fast.second, nn.Linear)
    assert close(fast(x), model(x))


class Unbatched(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHConv1d(8, 8, 3, n=2)

    def forward(self, x):
        return self.layer(x[0])


class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHConvTranspose1d(8, 8, 2, stride=2, n=2)

    def forward(self, x):
        return self.layer(x, output_size=[11])


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(x.bfloat16()).float()


class ChannelsAtTheEnd(nn.Module):
    """A linear layer on an input whose strides look like those of an image with channels last."""

    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, algebra=complex_numbers)

    def forward(self, x):
        return self.layer(x.to(memory_format=torch.channels_last))


@torch.no_grad()
def test_a_linear_layer_has_no_format():
    model, x = ChannelsAtTheEnd().eval(), torch.randn(2, 3, 4, 8)
    fast = phnn.accelerate(model, x, rounds=1)
    assert not fast.phnn_report.entries[0].form.channels_last
    assert close(phnn.accelerate(model, x, plan={"layer": entry_of("cp_rows")})(x), model(x))


class Zero(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = PHLinear(8, 8, n=2)
        nn.init.zeros_(self.layer.A)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    ("model", "x", "reason"),
    [
        (nn.Sequential(PHLinear(8, 8, n=1)), torch.randn(2, 8), "n=1"),
        (nn.Sequential(Subclass(8, 8, n=2)), torch.randn(2, 8), "Subclass is a subclass"),
        (Unbatched(), torch.randn(1, 8, 5), r"has no batch"),
        (Sized(), torch.randn(1, 8, 5), "called with more than its input"),
        (Zero(), torch.randn(2, 8), "its algebra is zero"),
        (Autocast(), torch.randn(2, 8), "its input is torch.bfloat16, its weight torch.float32"),
        (nn.Sequential(PHLinear(8, 8, n=2, terms=4)), torch.randn(2, 8), "no fewer than n² = 4"),
        (
            nn.TransformerEncoderLayer(8, 2, 8, batch_first=True),
            torch.randn(2, 3, 8),
            "read by torch's attention",
        ),
    ],
    ids=["n=1", "subclass", "unbatched", "output_size", "zero", "autocast", "rank", "attention"],
)
@torch.no_grad()
def test_folded_with_the_reason(model, x, reason):
    if isinstance(model, nn.TransformerEncoderLayer):
        model = phnn.convert(model, n=2)
    model.eval()
    fast = phnn.accelerate(model, x, rounds=1)
    entry = fast.phnn_report.entries[0]
    assert entry.form.rank is None
    assert entry.is_folded or "no fewer" in reason
    assert reason in entry.note
    assert torch.allclose(fast(x), model(x), atol=1e-6)
    assert reason in str(fast.phnn_report)


def test_algebras_that_are_declined_have_no_products(monkeypatch):
    def decline(algebras, rank, seconds):
        return [Declined(f"too large for {seconds} s") for _ in algebras]

    monkeypatch.setattr(candidates, "bilinear_many", decline)
    fast = phnn.accelerate(network(), X, rounds=1, seconds=2.5)
    assert {entry.note for entry in fast.phnn_report.entries} == {"too large for 2.5 s"}
    assert all(entry.form.rank is None for entry in fast.phnn_report.entries)


def test_a_rank_for_all():
    fast = phnn.accelerate(network(), X, rank=3, rounds=1)
    ranks = {entry.form.rank for entry in fast.phnn_report.entries}
    assert ranks <= {None, 3}
    fast = phnn.accelerate(network(), X, rank=1, rounds=1)
    assert all(entry.form.rank is None and entry.note for entry in fast.phnn_report.entries)


@pytest.mark.parametrize("terms", [3, 2])
@torch.no_grad()
def test_factors_that_a_layer_has_are_taken(monkeypatch, terms):
    model = nn.Sequential(PHConv2d(8, 8, 3, n=2, terms=terms, rank=3)).eval()
    monkeypatch.setattr(candidates, "bilinear_many", None)  # must not be asked
    x = torch.randn(1, 8, 5, 5)
    fast = phnn.accelerate(model, x, plan={"0": entry_of("cp_grouped")})
    assert torch.equal(fast[0].mix_in, model[0].V.mT)
    assert close(fast(x), model(x))


def test_lost_hooks_are_told():
    model = network()
    model[2].register_forward_hook(lambda *_: None)
    fast = phnn.accelerate(model, X, rounds=1)
    assert "its forward hooks are lost" in fast.phnn_report.entries[0].note
