"""The trained networks of the package: each loads, and computes what it did when it was written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import phnn
from phnn.models.pretrained import FOLDER, list_pretrained

LOGITS = Path(__file__).parents[1] / "data" / "pretrained.json"
NETWORKS = list_pretrained()
LARGEST = 1_000_000  # bytes of a file


def name(arguments: dict[str, Any]) -> str:
    return "-".join(map(str, arguments.values()))


def make_input() -> torch.Tensor:
    return torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)


@pytest.mark.parametrize("arguments", NETWORKS, ids=name)
def test_each_network_computes_the_committed_logits(arguments):
    model = phnn.create_model(**arguments).eval()
    with torch.no_grad():
        logits = model(make_input())[0]
    expected = torch.tensor(json.loads(LOGITS.read_text())[name(arguments)])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert len(model.phnn_metadata["classes"]) == len(expected)
    assert {"mean", "std", "image_size"} <= model.phnn_metadata.keys()


def test_every_file_is_listed_small_and_has_a_card():
    files = list(FOLDER.glob("*.safetensors"))
    assert len(files) == len(NETWORKS) > 0
    for file in files:
        assert file.stat().st_size <= LARGEST
        card = file.with_suffix(".md").read_text(encoding="utf-8")
        assert "test accuracy" in card
        assert "licence" in card


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.safetensors")), ids=lambda file: file.stem)
def test_load_reads_the_same_network(file):
    model = phnn.load(file)
    same = phnn.create_model(**phnn.models.pretrained.Pretrained.read(file).arguments).eval()
    with torch.no_grad():
        assert torch.equal(model(make_input()), same(make_input()))


def test_other_classes_get_a_new_head_on_the_trained_features():
    trained = phnn.create_model("cifarnet", n=4, pretrained="cifar10").eval()
    model = phnn.create_model("cifarnet", n=4, pretrained="cifar10", num_classes=3).eval()
    with torch.no_grad():
        assert model(make_input()).shape == (1, 3)
        features = model.forward_features(make_input())
        assert torch.equal(features, trained.forward_features(make_input()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 5}, r"no trained network cifarnet-cifar10-n5; did you mean .*cifarnet-cifar10-n4"),
        ({"n": 4, "pretrained": "cifar100"}, "no trained network cifarnet-cifar100-n4"),
        ({"n": 4, "widths": "standard"}, "widths='standard' differs .* leave out widths="),
    ],
)
def test_what_there_is_not_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        phnn.create_model("cifarnet", **{"pretrained": "cifar10", **arguments})
