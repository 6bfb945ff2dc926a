"""Layers, a network and a fake runtime, for the tests of forms and acceleration."""

import torch
from torch import nn

from phnn import PHConv1d, PHConv2d, PHConv3d, PHConvTranspose1d, PHConvTranspose2d, PHLinear
from phnn.algebra import complex as complex_numbers
from phnn.algebra import quaternion
from phnn.decompose import bilinear
from phnn.forms import FORMS, Form, Source, read_form
from phnn.functional import Factors
from phnn.runtimes import Eager

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


def close(actual, expected):
    scale = expected.double().abs().max()
    return (actual.double() - expected.double()).abs().max() <= TOLERANCE[expected.dtype] * scale


def rectangular(make, terms, n_out, n_in, *arguments, **options):
    """A layer whose algebra is not square."""
    layer = make(*arguments, n=1, **options)
    rows, columns, *kernel = layer.F.shape
    above, beside = (n_in, n_out) if layer.transposed else (n_out, n_in)
    layer.A = nn.Parameter(torch.randn(terms, n_out, n_in))
    layer.F = nn.Parameter(torch.randn(terms * rows // above, columns // beside, *kernel))
    return layer


def make_layers():
    """A layer of each kind and the shape of an input, by name."""
    return {
        "conv": (PHConv2d(16, 32, 3, padding=1, n=4), (2, 16, 8, 7)),
        "odd": (
            PHConv2d(8, 12, 3, padding=(2, 0), algebra=complex_numbers, bias=False),
            (3, 8, 5, 6),
        ),
        "same": (PHConv2d(8, 4, 3, padding="same", n=2, dtype=torch.float64), (1, 8, 2, 3)),
        "valid": (PHConv2d(8, 4, 3, padding="valid", n=2), (1, 8, 4, 11)),
        "strided": (PHConv2d(16, 32, 3, stride=2, dilation=2, bias=False, n=4), (2, 16, 9, 9)),
        "grouped": (PHConv2d(16, 32, (3, 1), groups=2, n=4), (3, 16, 6, 5)),
        "circular": (PHConv2d(8, 8, 3, padding=1, padding_mode="circular", n=2), (2, 8, 5, 5)),
        "reflect same": (
            PHConv2d(8, 8, 3, padding="same", padding_mode="reflect", n=2),
            (2, 8, 5, 5),
        ),
        "terms": (PHConv2d(8, 12, 3, n=2, terms=3), (2, 8, 5, 5)),
        "one term": (PHConv2d(16, 16, 3, n=4, terms=1), (2, 16, 5, 5)),
        "quaternion": (PHConv2d(8, 8, 3, algebra=quaternion), (2, 8, 5, 5)),
        "pointwise": (PHConv2d(16, 32, 1, n=4), (3, 16, 4, 5)),
        "pointwise strided": (
            PHConv2d(16, 32, 1, stride=2, groups=2, bias=False, n=4),
            (3, 16, 5, 6),
        ),
        "pointwise padded": (PHConv2d(8, 8, 1, padding=1, n=2), (2, 8, 3, 3)),
        "pointwise same": (PHConv2d(8, 8, 1, padding="same", n=2), (2, 8, 3, 3)),
        "one batch": (PHConv2d(8, 8, 1, n=2), (1, 8, 3, 3)),
        "1d": (PHConv1d(12, 6, 5, padding=2, n=3), (2, 12, 9)),
        "1d pointwise": (PHConv1d(8, 8, 1, n=2), (2, 8, 9)),
        "3d": (PHConv3d(8, 4, 3, n=2), (2, 8, 4, 4, 3)),
        "transposed": (
            PHConvTranspose2d(8, 16, 3, stride=2, output_padding=1, groups=2, n=2),
            (2, 8, 4, 5),
        ),
        "transposed 1d": (PHConvTranspose1d(8, 8, 1, n=2), (2, 8, 5)),
        "linear": (PHLinear(16, 32, n=4), (5, 16)),
        "linear, no batch": (PHLinear(16, 32, n=4), (16,)),
        "linear, sequence": (PHLinear(16, 8, bias=False, n=4), (2, 3, 16)),
        "low rank": (rectangular(PHConv2d, 3, 12, 1, 8, 12, 3, padding=1), (2, 8, 5, 6)),
        "low rank mirrored": (rectangular(PHConv2d, 3, 1, 8, 8, 12, 3, stride=2), (2, 8, 5, 6)),
        "low rank grouped": (rectangular(PHConv2d, 2, 6, 1, 8, 12, 3, groups=2), (2, 8, 5, 6)),
        "rectangular": (rectangular(PHConv2d, 3, 4, 2, 8, 12, 3), (2, 8, 5, 6)),
        "rectangular transposed": (
            rectangular(PHConvTranspose2d, 2, 2, 4, 8, 12, 3, stride=2, groups=2),
            (2, 8, 4, 5),
        ),
        "rectangular linear": (rectangular(PHLinear, 2, 4, 2, 8, 12), (3, 8)),
        "low rank linear": (rectangular(PHLinear, 2, 12, 1, 8, 12), (2, 3, 8)),
    }


def make_source(layer, norm=None):
    """A layer and random factors, after which its algebra is changed: no search is needed."""
    if not layer.learns_algebra:
        return Source(layer, bilinear(layer.A).factors, norm)
    terms, n_out, n_in = layer.A.shape
    R = terms + 1
    factors = Factors(*(torch.randn(size, R, dtype=layer.A.dtype) for size in (terms, n_in, n_out)))
    layer.A.data.copy_(factors.tensor())
    return Source(layer, factors, norm)


def all_forms(source, channels_last=False):
    return [form for kind in FORMS for form in kind.variants(source, channels_last)]


def entry_of(label, rank=None, **fields):
    """The entry of a plan, by the label of a form."""
    name, fields = label, dict(fields)
    if label.startswith("cp_grouped"):
        name = "cp_grouped"
        fields |= {"zero_padded": True} if "padded" in label else {}
        fields |= {"inside_last": True} if label.endswith("_last") else {}
    elif "winograd" in label:
        name, _, size = label.rpartition("_")
        fields["tile_size"] = int(size)
    if name.startswith("cp_"):
        fields["rank"] = 3 if rank is None else rank
    return {"form": name, **fields}


FOLDED = {"form": "folded"}
PLAN = {"2": entry_of("cp_grouped"), "5": entry_of("cp_samples"), "8": entry_of("cp_rows")}


def form(label, rank=None, **fields):
    return read_form(entry_of(label, rank, **fields))


def network():
    """A network in evaluation mode whose norms are not those of a fresh one."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        PHConv2d(8, 16, 3, padding=1, bias=False, algebra=complex_numbers),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        PHConv2d(16, 16, 1, algebra=complex_numbers),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        PHLinear(64, 10, algebra=complex_numbers),
    )
    torch.manual_seed(0)
    model(torch.randn(8, 3, 8, 8))
    return model.eval()


X = torch.randn(2, 3, 8, 8)


class FakeRuntime(Eager):
    """Runs everything once, and tells the times that it is told.

    Args:
        forms: Seconds of the forms of a layer, by their labels; 1 for others.
        models: A function from a choice of forms, or "assembled", to seconds; the sum of the
            seconds of the forms by default.
        last: Seconds that channels last take in addition.
    """

    def __init__(self, forms=None, models=None, last=0.0):
        self.forms, self.models, self.last = forms or {}, models, last
        self.timed = []

    def time(self, contenders, rounds, warmup=2, seconds=0.0):
        self.timed.append(list(contenders))
        for call in contenders.values():
            call()
        return {key: self._seconds(key) for key in contenders}

    def _seconds(self, key):
        if isinstance(key, Form):
            return self.forms.get(key.label, 1.0) + self.last * key.channels_last
        if self.models is not None:
            return self.models(key)
        return 1e3 if key == "assembled" else sum(self._seconds(form) for _, form in key.forms)
