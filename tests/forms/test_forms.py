"""Every form computes what the layer does, in torch's own modules."""

import dataclasses
import pickle

import pytest
import torch
from torch import nn

from helpers.accelerating import all_forms, close, entry_of, make_layers, make_source, rectangular
from phnn import PHConv2d
from phnn.analysis.counting import count_multiplications
from phnn.forms import FORMS, Folded, Form, Source, forms_of, read_form
from phnn.forms.norms import add_bias
from phnn.functional import Factors

LAYERS = make_layers()
CASES = [(case, is_last) for case in LAYERS for is_last in (False, len(LAYERS[case][1]) == 4)]


@pytest.mark.parametrize(("case", "channels_last"), sorted(set(CASES)))
@torch.no_grad()
def test_every_form_computes_the_layer(case, channels_last):
    layer, shape = LAYERS[case]
    x = torch.randn(shape, dtype=layer.F.dtype)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    source = make_source(layer)
    expected = layer.to_dense()(x)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    forms = forms_of(source, channels_last)
    assert len(forms) > 2
    for form in forms:
        module = form.build(source)
        actual = module(x)
        assert close(actual, expected), form
        if form.is_winograd and channels_last:  # gaps where tiles reach beyond the edge
            assert actual.stride(1) == 1, form
        else:
            assert actual.is_contiguous(memory_format=memory_format), form
        assert close(module(x.contiguous()), expected), form
        longer = torch.cat([x, x]) if x.dim() > 1 else x
        assert close(module(longer), layer(longer)), form
        if x.dim() > 1:
            assert module(x[:0]).shape == layer(x[:0]).shape, form


@pytest.mark.parametrize("case", ["conv", "low rank", "low rank mirrored", "rectangular", "linear"])
@torch.no_grad()
def test_a_form_takes_the_batch_norm_or_leaves_it(case):
    layer, shape = LAYERS[case]
    x = torch.randn(shape)
    plain = layer(x)
    norm = nn.BatchNorm1d(32) if x.dim() == 2 else nn.BatchNorm2d(plain.shape[1])
    for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        value.uniform_(0.5, 2)
    source = make_source(layer, norm.eval())
    expected = layer.to_dense()(x)
    taken = set()
    for form in forms_of(source):
        y = form.build(source)(x)
        if form.takes_norm(source):
            taken.add(form.name)
            assert close(y, norm(expected)), form
        else:  # then the norm takes the bias
            assert close(add_bias(norm, layer.bias)(y), norm(expected)), form
    wanted = {"low rank": {"filter_first"}, "low rank mirrored": {"mix_first"}}.get(case, set())
    assert taken - {"winograd"} == {"folded", *wanted}


def variants():
    """One layer for each form that there is."""
    for layer, _ in LAYERS.values():
        yield from ((form, layer) for form in all_forms(make_source(layer)))


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.name)
def test_a_form_is_made_of_torch_alone(kind):
    found = {form: layer for form, layer in variants() if type(form) is kind}
    assert found
    for form, layer in list(found.items())[:4]:
        module = form.build(make_source(layer) if form.rank else Source(layer))
        assert not any("phnn" in type(part).__module__ for part in module.modules())
        assert b"phnn" not in pickle.dumps(module)


def test_every_form_is_read_from_its_entry():
    seen = set()
    for form, layer in variants():
        assert read_form(form.to_dict()) == form
        assert form.exists(make_source(layer)) or form.rank is not None
        seen.add(type(form))
    assert seen == set(FORMS)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {"form": "fast"},
        {"form": ["folded"]},
        {"rank": 3},
        {"form": "folded", "channels_last": 1},
        {"form": "folded", "tile_size": 2},
        {"form": "cp_grouped", "rank": "3"},
        {"form": "cp_grouped", "rank": True},
        {"form": "winograd", "tile_size": 4.0},
    ],
    ids=str,
)
def test_entries_that_are_none(wrong):
    with pytest.raises(ValueError, match="is not a form; "):
        read_form(wrong)


def test_names_tell_forms_apart():
    assert len({kind.name for kind in FORMS}) == len(FORMS)
    for layer, _ in LAYERS.values():
        for channels_last in (False, True):
            forms = all_forms(make_source(layer), channels_last)
            assert len({form.label for form in forms}) == len(forms)


def test_a_new_form_is_one_class(monkeypatch):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Twice(Form):
        """Folded, and added to nothing."""

        name = "twice"

        @classmethod
        def variants(cls, source, channels_last):
            if not channels_last:
                yield cls()

        def build(self, source):
            return nn.Sequential(source.fold(), nn.Identity())

    monkeypatch.setattr("phnn.forms.FORMS", (*FORMS, Twice))
    source = Source(PHConv2d(8, 8, 3, n=2))
    assert forms_of(source)[-1] == read_form({"form": "twice"}) == Twice()


@pytest.mark.parametrize("label", ["cp_grouped", "cp_grouped_last"])
def test_multiplications_are_those_of_the_rank(label):
    n, R, channels, positions = 4, 7, 128, 4 * 4
    layer = PHConv2d(channels, channels, 3, padding=1, n=n).eval()
    source = Source(layer, Factors(torch.randn(n, R), torch.randn(n, R), torch.randn(n, R)))
    x = torch.randn(1, channels, 4, 4)
    fast = read_form(entry_of(label, R)).build(source)
    folded = count_multiplications(layer.to_dense(), x)
    mixing = 2 * R * channels * positions
    assert count_multiplications(fast, x) == folded * R // n**2 + mixing
    assert mixing < 0.02 * folded


@pytest.mark.parametrize(("n", "name"), [((64, 1), "filter_first"), ((1, 64), "mix_first")])
def test_low_rank_layers_are_two_plain_convolutions(n, name):
    source = Source(rectangular(PHConv2d, 8, *n, 64, 64, 3, padding=1))
    shapes = [(16, 64, 16, 16)]
    promising = [form for form in forms_of(source) if form.is_promising(source, shapes)]
    assert name in {form.name for form in promising}
    module = read_form({"form": name}).build(source)
    targets = {node.target for node in module.graph.nodes}
    assert nn.functional.conv2d in targets or torch.conv2d in targets
    assert torch.bmm not in targets
    x = torch.randn(2, 64, 8, 8)
    assert count_multiplications(module, x) == 2 * 64 * 8 * (64 * 9 + 64)


def test_filter_first_is_promising_where_positions_are_few():
    source = Source(PHConv2d(64, 64, 3, padding=1, n=4))
    form = read_form({"form": "filter_first"})
    assert form.is_promising(source, [(1, 64, 4, 4)])
    assert not form.is_promising(source, [(1, 64, 4, 4), (1, 64, 40, 40)])
    assert not form.is_promising(Source(PHConv2d(64, 64, 3, n=1)), [(1, 64, 4, 4)])
    few_terms = Source(PHConv2d(64, 64, 3, padding=1, n=4, terms=2))
    assert form.is_promising(few_terms, [(1, 64, 40, 40)])


def test_zero_padding_is_promising_where_vectors_are_not_whole():
    padded = read_form(entry_of("cp_grouped_padded", 2))
    for channels, expected in ((32, False), (24, True)):
        source = make_source(PHConv2d(channels, 32, 3, n=4, terms=1))
        assert padded.is_promising(source, [(1, channels, 8, 8)]) == expected


def test_more_products_than_there_are_save_nothing():
    source = Source(PHConv2d(8, 8, 3, n=2), Factors(*(torch.randn(2, 4) for _ in range(3))))
    grouped = read_form(entry_of("cp_grouped", 4))
    assert grouped.exists(source)
    assert not grouped.is_promising(source, [(1, 8, 8, 8)])


def test_folded_comes_first():
    for layer, _ in LAYERS.values():
        assert forms_of(make_source(layer))[0] == Folded()
