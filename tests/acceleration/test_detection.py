"""Detectors: lists of images in, dicts out, and outputs that rounding may change."""

import pytest
import torch
from torch import nn

import phnn
from helpers.accelerating import entry_of
from phnn.forms import winograd

IMAGES = [torch.randn(8, 12, 12), torch.randn(8, 16, 12)]


class Detector(nn.Module):
    """Keeps what is above a threshold; with `wild`, one that rounding crosses."""

    def __init__(self, wild=False):
        super().__init__()
        self.body = phnn.PHConv2d(8, 8, 3, padding=1, n=2)
        self.norm = nn.BatchNorm2d(8)
        self.wild = wild

    def forward(self, images, targets=None):
        found = []
        for image in images:
            y = self.norm(self.body(image[None]))[0].flatten()
            keep = (y * 1e6).sin() > 0 if self.wild else y > 0.5
            found.append({"scores": y[keep], "labels": keep.nonzero()[:, 0]})
        return found


@torch.no_grad()
def test_a_detector():
    model = Detector().eval()
    fast = phnn.accelerate(model, (IMAGES,), rounds=1)
    for ours, theirs in zip(fast(IMAGES), model(IMAGES), strict=True):
        assert torch.allclose(ours["scores"], theirs["scores"], atol=1e-5)
    assert "layers compared" not in str(fast.phnn_report)


@torch.no_grad()
def test_choices_that_rounding_changes():
    model = Detector(wild=True).eval()
    fast = phnn.accelerate(model, (IMAGES,), plan={"body": entry_of("winograd_4")})
    assert [len(each["scores"]) for each in fast(IMAGES)] != [
        len(x["scores"]) for x in model(IMAGES)
    ]
    assert "the outputs are choices" in fast.phnn_report.note
    assert 0 < fast.phnn_report.difference < 1e-4


@torch.no_grad()
def test_a_layer_that_is_wrong_is_found_behind_choices(monkeypatch):
    build = winograd.Winograd.build

    def spoil(form, source):
        module = build(form, source)
        for parameter in module.parameters():
            parameter.data.mul_(1.1)
        return module

    monkeypatch.setattr(winograd.Winograd, "build", spoil)
    with pytest.raises(RuntimeError, match=r"returns tensors of shapes .*layer 'body' differs by"):
        phnn.accelerate(
            Detector(wild=True).eval(), (IMAGES,), plan={"body": entry_of("winograd_4")}
        )
