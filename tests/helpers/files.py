"""Models and tricks for the tests of model files."""

import hashlib
import json
import struct

import torch
from torch import nn

METADATA = {"classes": ["cat", "dog"], "image_size": [8, 8], "mean": [0.5], "std": [0.25]}


class Tied(nn.Module):
    """A model of somebody else's: tied weights, and a buffer that is not saved."""

    def __init__(self, width=4):
        super().__init__()
        self.encoder = nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.decoder = nn.Linear(width, width)
        self.decoder.weight = self.encoder.weight
        self.register_buffer("scale", torch.arange(float(width)), persistent=False)

    def forward(self, x):
        return self.decoder(self.norm(self.encoder(x))) * self.scale


class Dense(nn.Module):
    """What somebody converts: a tied pair, a layer used twice, a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.second.weight
        self.norm = nn.BatchNorm1d(16)
        self.again = self.norm_of = nn.Linear(16, 16)
        self.register_buffer("scale", torch.arange(16.0), persistent=False)

    def forward(self, x):
        x = self.tied(self.second(self.first(x)))
        return self.again(self.norm_of(self.norm(x))) * self.scale


def same(one, other):
    state, others = one.state_dict(), other.state_dict()
    return state.keys() == others.keys() and all(torch.equal(state[k], others[k]) for k in state)


def flip_byte(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def read_parts(path):
    """The header that phnn wrote, the rest of the safetensors header, and the tensors' bytes."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    entries = json.loads(content[8 : 8 + length])
    return json.loads(entries["__metadata__"]["phnn"]), entries, content[8 + length :]


def reseal(path, header):
    """Writes another header into a file, with a seal that holds: what an attacker can do."""
    _, entries, tensors = read_parts(path)
    text = header if isinstance(header, str) else json.dumps(header)
    digest = hashlib.sha256(text.encode()).hexdigest()
    entries["__metadata__"] = {"format": "pt", "phnn": text, "phnn_sha256": digest}
    raw = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + tensors)
    return path
