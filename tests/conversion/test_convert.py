"""Conversion to PH layers on small models."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.converting import (
    CONVS,
    COUNTERPARTS,
    TRANSPOSED,
    assert_untouched,
    parameters,
    sizes,
    small_network,
    snapshot,
)
from phnn import PHLinear
from phnn.algebra import quaternion
from phnn.conversion import convert, to_dense
from phnn.conversion.sites import PH_LAYERS
from phnn.decompose import nearest
from phnn.testing import assert_close, assert_every_parameter_learns, assert_round_trips


@pytest.mark.parametrize("cls", CONVS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_convolutions_keep_their_hyperparameters(cls, padding_mode):
    dense = cls(
        8, 16, 3, stride=2, padding=2, dilation=2, groups=2, padding_mode=padding_mode
    ).double()
    dense.bias.requires_grad_(False)
    layer = convert(nn.Sequential(dense).eval(), n=2)[0]
    assert type(layer) is COUNTERPARTS[cls]
    for name in COUNTERPARTS[cls].dense_args:
        assert getattr(layer, name) == getattr(dense, name)
    assert layer.F.dtype == layer.A.dtype == torch.float64
    assert not layer.training
    assert layer.F.requires_grad
    assert not layer.bias.requires_grad
    x = torch.randn(2, 8, *[6] * layer.dims, dtype=torch.float64)
    expected = copy.deepcopy(dense)
    expected.weight.data = layer.weight.data
    assert_close(layer(x), expected(x))


@pytest.mark.parametrize("cls", TRANSPOSED, ids=lambda cls: cls.__name__)
def test_transposed_convolutions_keep_their_hyperparameters(cls):
    dense = cls(
        8, 16, 3, stride=3, padding=1, output_padding=2, groups=2, dilation=2, bias=False
    ).requires_grad_(False)
    layer = convert(nn.Sequential(dense), n=4)[0]
    assert type(layer) is COUNTERPARTS[cls]
    for name in COUNTERPARTS[cls].dense_args:
        assert getattr(layer, name) == getattr(dense, name)
    assert layer.bias is None
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    x = torch.randn(2, 8, *[4] * layer.dims)
    expected = copy.deepcopy(dense)
    expected.weight.data = layer.weight.data
    assert_close(layer(x), expected(x))


def test_a_linear_layer_keeps_dtype_mode_and_bias():
    dense = nn.Linear(8, 12, dtype=torch.bfloat16)
    model = nn.Sequential(dense).eval()
    layer = convert(model, n=4)[0]
    assert (layer.in_features, layer.out_features) == (8, 12)
    assert layer.F.dtype == layer.A.dtype == layer.bias.dtype == torch.bfloat16
    assert not layer.training
    assert torch.equal(layer.bias, dense.bias)
    assert layer.bias is not dense.bias


def test_meta_weights_are_built_on_the_meta_device():
    model = nn.Sequential(nn.Linear(8, 8, device="meta"))
    layer = convert(model, n=2, start="random")[0]
    assert all(parameter.is_meta for parameter in layer.parameters())


def test_the_model_itself_may_be_the_layer():
    dense = nn.Linear(8, 8)
    layer = convert(dense, n=2)
    assert type(layer) is PHLinear
    assert layer.phnn_report.changed[0].name == ""
    assert type(to_dense(layer)) is nn.Linear
    before = snapshot(dense)
    with pytest.raises(ValueError, match="Linear is itself the layer; use inplace=False"):
        convert(dense, n=2, inplace=True)
    assert_untouched(dense, before)


def test_a_converted_network_learns_copies_and_pickles():
    small = convert(nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(72, 12)), n=4)
    x = torch.randn(3, 4, 5, 5)
    assert_every_parameter_learns(small, x)
    assert_round_trips(small, x)


def test_n_for_all_layers():
    model = small_network()
    small = convert(model, n=4)
    assert sizes(small) == {"0": (4, 4), "3": (4, 4), "5": (4, 4)}
    weights = {0: 8 * 4 * 9, 3: 8 * 8 * 9, 5: 72 * 12}
    removed = sum(weight - weight // 4 - 4**3 for weight in weights.values())
    assert parameters(small) == parameters(model) - removed


def test_n_by_patterns_the_first_that_matches_counts():
    small = convert(small_network(), n={"5": 3, "[35]": 2})
    assert sizes(small) == {"3": (2, 2), "5": (3, 3)}
    assert small.phnn_report.left_alone[0].note == "no n was given for it"


def test_n_by_a_function_of_name_and_module():
    small = convert(small_network(), n=lambda name, m: 2 if isinstance(m, nn.Conv2d) else None)
    assert sizes(small) == {"0": (2, 2), "3": (2, 2)}


def test_one_dimension_keeps_every_weight():
    model = nn.Sequential(nn.Linear(5, 7))
    x = torch.randn(3, 5)
    assert_close(convert(model, n=1)(x), model(x))


def test_terms():
    model = small_network().eval()
    small = convert(model, n=2, terms=3)
    assert sizes(small) == {"0": (2, 3), "3": (2, 3), "5": (2, 3)}
    x = torch.randn(2, 4, 8, 8)
    assert_close(convert(model, n=2, terms=4)(x), model(x))


def test_a_fixed_algebra_is_fitted_by_least_squares():
    model = nn.Sequential(nn.Linear(8, 8))
    small = convert(model, algebra=quaternion)
    assert small[0].algebra == quaternion
    assert set(dict(small.named_parameters())) == {"0.F", "0.bias"}
    assert torch.equal(small[0].F, nearest(model[0].weight, algebra=quaternion).F)
    assert small.phnn_report.entries[0].after == "PHLinear quaternion"
    assert convert(model, n=4, algebra=quaternion)[0].algebra == quaternion


def test_a_known_algebra_may_be_where_learning_starts():
    small = convert(nn.Sequential(nn.Linear(8, 8)), algebra=quaternion, learn_algebra=True)
    assert small[0].learns_algebra
    assert torch.equal(small[0].A.double(), quaternion.structure)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": "[03]"}, {"0", "3"}),
        ({"include": ["0", "5"]}, {"0", "5"}),
        ({"exclude": "0"}, {"3", "5"}),
        ({"exclude": ["0", "3"]}, {"5"}),
        ({"include": "[03]", "exclude": "0"}, {"3"}),
        ({"include": lambda name, module: isinstance(module, nn.Linear)}, {"5"}),
        ({"exclude": lambda name, module: isinstance(module, nn.Linear)}, {"0", "3"}),
        ({"exclude": lambda name, module: False}, {"0", "3", "5"}),
    ],
)
def test_include_and_exclude(options, expected):
    small = convert(small_network(), n=2, **options)
    assert sizes(small).keys() == expected
    for entry in small.phnn_report.left_alone:
        assert entry.note in ("not included", "excluded")


def test_indivisible_layers_are_skipped_with_the_reason():
    small = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8)), n={"*": 1})
    assert sizes(small) == {"0": (1, 1), "1": (1, 1)}
    small = convert(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Linear(16, 16)), n=4
    )
    assert sizes(small) == {"2": (4, 4)}
    assert [entry.note for entry in small.phnn_report.left_alone] == [
        "n=4 does not divide the 8 and 3 channels",
        "n=4 does not divide the 1 and 1 channels of each of 8 groups",
    ]


def test_a_layer_never_grows_unless_its_terms_are_given():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(64, 64))
    small = convert(model, n=8)
    assert sizes(small) == {"1": (8, 8)}
    assert small.phnn_report.entries[0].note == "n=8 would make it larger"
    assert sizes(convert(model, n=8, terms=8)) == {"0": (8, 8), "1": (8, 8)}


def test_indivisible_layers_raise_by_name():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 6))
    before = snapshot(model)
    with pytest.raises(ValueError, match="1: n=4 does not divide the 6 and 8 channels"):
        convert(model, n=4, indivisible="raise", inplace=True)
    assert_untouched(model, before)


def test_indivisible_layers_shrink_to_the_largest_that_divides():
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 6), nn.Linear(6, 5))
    small = convert(model, n=8, indivisible="shrink")
    assert sizes(small) == {"0": (8, 8), "1": (2, 2)}
    assert small.phnn_report.entries[1].note == "n=8 does not divide the 6 and 32 channels"
    assert small.phnn_report.entries[1].changed
    assert not small.phnn_report.entries[2].changed


def test_a_random_start_keeps_nothing_of_the_weights():
    model = nn.Sequential(nn.Linear(8, 8))
    torch.manual_seed(3)
    small = convert(model, n=2, start="random")
    torch.manual_seed(3)
    fresh = PHLinear(8, 8, n=2)
    assert torch.equal(small[0].F, fresh.F)
    assert torch.equal(small[0].bias, fresh.bias)
    assert small.phnn_report.entries[0].error is None


@pytest.mark.parametrize("start", ["nearest", "random"])
def test_layers_of_a_size_may_share_their_algebra(start):
    model = nn.Sequential(nn.Conv1d(8, 8, 3), nn.Conv1d(8, 8, 3), nn.Conv1d(8, 6, 3))
    small = convert(model, n={"2": 2, "*": 4}, share_algebra=True, start=start)
    assert small[0].A is small[1].A
    assert small[2].A is not small[0].A
    assert parameters(small) == parameters(convert(model, n={"2": 2, "*": 4})) - 4**3
    assert_every_parameter_learns(small, torch.randn(2, 8, 12))
    assert copy.deepcopy(small)[0].A is not small[0].A


def test_layers_that_cannot_hold_one_tensor_do_not_share_an_algebra():
    model = nn.Sequential(
        nn.Linear(8, 8), nn.Linear(8, 8, dtype=torch.float64), nn.Linear(8, 8).requires_grad_(False)
    )
    small = convert(model, n=2, share_algebra=True)
    assert len({id(layer.A) for layer in small}) == 3
    assert [layer.A.dtype for layer in small] == [layer.weight.dtype for layer in model]
    assert [layer.A.requires_grad for layer in small] == [True, True, False]


def test_inplace_changes_the_model_and_otherwise_it_does_not():
    model = small_network()
    before = snapshot(model)
    small = convert(model, n=2)
    assert small is not model
    assert_untouched(model, before)
    # not even memory is shared
    held = {tensor.data_ptr() for tensor in model.state_dict().values()}
    assert not held & {tensor.data_ptr() for tensor in small.state_dict().values()}
    norm = model[1]
    assert convert(model, n=2, inplace=True) is model
    assert model[1] is norm
    assert all(
        torch.equal(value, small.state_dict()[key]) for key, value in model.state_dict().items()
    )


@st.composite
def kronecker_layers(draw):
    """A PH layer of any kind, with a random algebra and random filters."""
    cls = draw(st.sampled_from(PH_LAYERS))
    n = draw(st.integers(1, 4))
    terms = draw(st.integers(1, n * n))
    options = {"n": n, "terms": terms, "bias": draw(st.booleans())}
    groups = 1
    if cls is not PHLinear:
        groups = options["groups"] = draw(st.integers(1, 3))
        options["kernel_size"] = draw(st.integers(1, 3))
        options["padding"] = 1
    sizes = (n * groups * draw(st.integers(1, 3)) for _ in range(2))
    layer = cls(*sizes, **options)
    nn.init.normal_(layer.A)
    nn.init.normal_(layer.F)
    return layer


@given(kronecker_layers())
@settings(max_examples=60, deadline=None)
def test_a_layer_that_is_a_kronecker_sum_is_recovered(layer):
    dense = layer.to_dense()
    found = convert(nn.Sequential(dense), n=layer.n, terms=layer.terms)[0]
    assert type(found) is type(layer)
    assert_close(found.weight, dense.weight, tolerance=1e-5)
    assert {key: value.shape for key, value in found.state_dict().items()} == {
        key: value.shape for key, value in layer.state_dict().items()
    }


@given(kronecker_layers())
@settings(max_examples=40, deadline=None)
def test_n_squared_terms_keep_any_layer(layer):
    dense = layer.to_dense()
    nn.init.normal_(dense.weight)
    found = convert(nn.Sequential(dense), n=layer.n, terms=layer.n**2)
    assert_close(found[0].weight, dense.weight, tolerance=1e-5)
    assert found.phnn_report.entries[0].error < 1e-6


def test_the_reported_error_is_that_of_the_weight():
    model = small_network()
    small = convert(model, n=2)
    for entry in small.phnn_report.entries:
        dense, layer = model.get_submodule(entry.name), small.get_submodule(entry.name)
        error = (dense.weight - layer.weight).norm() / dense.weight.norm()
        assert entry.error == pytest.approx(error.item(), rel=1e-4)
