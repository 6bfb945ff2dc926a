"""Conversion to PH layers and back, on small models that the tests make."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, prune

import phnn
from phnn import PHConv2d, PHLinear
from phnn.algebra import quaternion
from phnn.conversion import convert, to_dense
from phnn.conversion.sites import PH_LAYERS
from phnn.decompose import nearest
from phnn.nn import PHLayer
from phnn.testing import assert_close, assert_every_parameter_learns, assert_round_trips

CONVS = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
TRANSPOSED = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
COUNTERPARTS = {layer.dense_type: layer for layer in PH_LAYERS}


def small_network():
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.Flatten(),
        nn.Linear(72, 12),
    )


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def snapshot(model):
    """What must not change: the very modules, their mode, and every number."""
    modules = [(name, module, module.training) for name, module in model.named_modules()]
    return modules, copy.deepcopy(model.state_dict()), sorted(vars(model))


def assert_untouched(model, before):
    modules, state, attributes = before
    now = [(name, module, module.training) for name, module in model.named_modules()]
    assert [(name, id(module), mode) for name, module, mode in now] == [
        (name, id(module), mode) for name, module, mode in modules
    ]
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert sorted(vars(model)) == attributes


def decaying(layer, power):
    """Gives a layer a spectrum that falls like a trained one's: few terms say much of it."""
    with torch.no_grad():
        left, _, right = torch.linalg.svd(layer.weight.flatten(1), full_matrices=False)
        values = torch.arange(1, len(right) + 1).float() ** -power
        layer.weight.copy_((left * values @ right).view(layer.weight.shape))
    return layer


# --- what is kept ---------------------------------------------------------------------------------


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


# --- options --------------------------------------------------------------------------------------


def sizes(model):
    """n and terms of each layer by name; dense layers are left out."""
    return {
        name: (layer.n, layer.terms)
        for name, layer in model.named_modules()
        if isinstance(layer, PHLayer)
    }


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


# --- the nearest start ----------------------------------------------------------------------------


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


# --- budget ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.2, 0.3, 0.5, 0.8])
def test_a_budget_is_kept_and_used(budget):
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32, 10)
    )
    small = convert(model, budget=budget)
    assert (budget - 0.05) * parameters(model) < parameters(small) <= budget * parameters(model)
    assert small.phnn_report.parameters_after == parameters(small)


def passed(report):
    """−log of the energy that passes all layers: what the budget's choice minimizes."""
    return -sum(math.log(1 - (entry.error or 0.0) ** 2) for entry in report.entries)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_budget_beats_uniform_n_of_the_same_size(n):
    model = nn.Sequential(
        decaying(nn.Conv2d(16, 32, 3), 0.5),
        decaying(nn.Conv2d(32, 64, 3), 1.0),
        decaying(nn.Conv2d(64, 64, 1), 2.0),
        decaying(nn.Linear(64, 32), 0.2),
    )
    uniform = convert(model, n=n)
    chosen = convert(model, budget=uniform.phnn_report.parameters_after / parameters(model))
    assert parameters(chosen) <= parameters(uniform)
    assert passed(chosen.phnn_report) < 0.9 * passed(uniform.phnn_report)
    squares = [
        sum((entry.error or 0.0) ** 2 for entry in converted.phnn_report.entries)
        for converted in (chosen, uniform)
    ]
    assert squares[0] < squares[1]


def test_a_budget_leaves_dense_what_is_worth_its_place():
    hard, easy = nn.Linear(16, 16), nn.Linear(128, 128)
    with torch.no_grad():
        easy.weight.copy_(torch.kron(torch.randn(8, 8), torch.randn(16, 16)))
    small = convert(nn.Sequential(hard, easy), budget=0.5)
    assert [entry.changed for entry in small.phnn_report.entries] == [False, True]
    assert small.phnn_report.entries[0].note.startswith("kept")
    assert small.phnn_report.entries[1].error < 1e-6


def test_a_budget_with_zero_weights_and_equal_offers():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        nn.init.zeros_(layer.weight)
    small = convert(model, budget=0.6)
    assert parameters(small) <= 0.6 * parameters(model)
    assert all(entry.error == 0 for entry in small.phnn_report.entries)


class SeesFewChannels(nn.Module):
    """Its linear layers have like weights, but the second one's input lives in one component."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, x, y=None):
        mask = torch.zeros(16)
        mask[:1] = 1
        return self.first(x) + self.second(input=x * mask)


def output_error(model, small, x):
    return (model(x) - small(x)).norm().item()


def test_calibration_measures_errors_on_the_outputs():
    model = SeesFewChannels().train()
    x = torch.randn(64, 16)
    before = snapshot(model)
    by_weight = convert(model, budget=0.5)
    by_output = convert(model, budget=0.5, calibration=x)
    assert_untouched(model, before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert parameters(by_output) <= 0.5 * parameters(model)
    assert output_error(model, by_output, x) < output_error(model, by_weight, x)
    several = convert(model, budget=0.5, calibration=(x, x))
    assert sizes(several) == sizes(by_output)


def test_calibration_that_fails_or_misses_a_layer_leaves_the_model_alone():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.used(x)

    model = Unused()
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"does not run on the calibration data \(\(2, 7\)\)"):
        convert(model, budget=0.5, calibration=torch.randn(2, 7), inplace=True)
    assert_untouched(model, before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    small = convert(model, budget=0.9, calibration=torch.randn(8, 8))
    notes = {entry.name: entry.note for entry in small.phnn_report.entries}
    assert "not reached by the calibration data: fitted to its weight" in notes["unused"]


# --- ties, shared modules, hooks ------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def test_layers_that_share_a_weight_share_the_ph_weight():
    # the weight is shared, nothing else: the second has its own stride and no bias
    model = Tied(nn.Conv1d(8, 8, 3), nn.Conv1d(8, 8, 3, stride=2, padding=1, bias=False))
    small = convert(model, n=2)
    assert small.first.A is small.second.A
    assert small.first.F is small.second.F
    assert (small.second.stride, small.second.padding, small.second.bias) == ((2,), (1,), None)
    assert small.phnn_report.entries[1].note == "shares its weight with first"
    assert parameters(small) == 8 * 8 * 3 // 2 + 8 + 8
    x = torch.randn(2, 8, 9)
    assert_every_parameter_learns(small, x)
    folded = to_dense(small)
    assert folded.first.weight is folded.second.weight
    assert parameters(folded) == parameters(model)
    assert_close(folded(x), small(x))
    assert small.first.F is not convert(model, n=2, start="random").first.F


def test_a_budget_counts_a_shared_weight_once():
    model = Tied(nn.Linear(16, 16), nn.Linear(16, 16))
    small = convert(model, budget=0.5)
    assert small.first.F is small.second.F
    assert parameters(small) <= 0.5 * parameters(model)


class TiedEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embedding.weight


def test_a_weight_tied_to_another_kind_of_layer_is_refused_by_name():
    small = convert(TiedEmbedding(), n=2)
    assert sizes(small).keys() == {"body"}
    assert small.head.weight is small.embedding.weight
    (entry,) = small.phnn_report.left_alone
    assert (entry.name, entry.note) == ("head", "tied to embedding.weight")


@pytest.mark.parametrize(
    ("second", "note"),
    [
        (nn.Conv2d(16, 8, 3, groups=2), "tied to second, a layer of another kind"),
        (nn.ConvTranspose2d(8, 8, 3), "tied to second, a layer of another kind"),
    ],
)
def test_equal_weights_that_mean_different_things_are_refused(second, note):
    model = nn.Sequential(Tied(nn.Conv2d(8, 8, 3), second), nn.Linear(8, 8))
    small = convert(model, n=2)
    assert sizes(small).keys() == {"1"}
    assert small.phnn_report.entries[0].note == note.replace("second", "0.second")
    assert small[0].first.weight is small[0].second.weight


def test_a_tie_is_refused_for_all_of_its_layers_or_for_none():
    tied = Tied(nn.Linear(8, 8), nn.Linear(8, 8))
    other = nn.Linear(8, 8)
    other.bias = tied.second.bias  # the weight could be shared, this bias could not
    model = nn.ModuleDict({"tied": tied, "other": other, "free": nn.Linear(8, 8)})
    small = convert(model, n=2)
    assert sizes(small).keys() == {"free"}
    assert small["tied"].first.weight is small["tied"].second.weight
    notes = {entry.name: entry.note for entry in small.phnn_report.left_alone}
    assert notes["tied.first"] == notes["tied.second"] == "tied to other.bias"
    with pytest.raises(ValueError, match=r"no layer can be converted: .*second: excluded"):
        convert(Tied(nn.Linear(8, 8), nn.Linear(8, 8)), n=2, exclude="second")


def test_a_tied_pair_that_n_does_not_divide_is_no_success():
    with pytest.raises(ValueError, match="no layer can be converted: first: n=4 does not divide"):
        convert(Tied(nn.Linear(6, 6), nn.Linear(6, 6)), n=4)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.again = self.layer
        self.hidden = [self.layer]  # where torch does not see it

    def forward(self, x):
        return self.hidden[0](self.again(self.layer(x)))


def test_a_shared_module_stays_shared():
    model = Shared()
    small = convert(model, n=2)
    assert small.layer is small.again is small.hidden[0]
    assert type(small.layer) is PHLinear
    assert small.phnn_report.entries[0].note == "also again"
    folded = to_dense(small)
    assert folded.layer is folded.again is folded.hidden[0]
    x = torch.randn(2, 8)
    assert_close(folded(x), small(x))
    convert(model, n=2, inplace=True)
    assert model.layer is model.again
    assert type(model.layer) is PHLinear


def test_hooks_of_replaced_layers_are_reported_and_others_kept():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("lost"))
    model[0].register_forward_pre_hook(lambda *_: calls.append("lost"))
    model[2].register_full_backward_hook(lambda *_: None)
    model[1].register_forward_hook(lambda *_: calls.append("kept"))
    small = convert(model, n=2)
    notes = [entry.note for entry in small.phnn_report.entries]
    assert notes == ["lost its forward hooks, forward pre hooks", "lost its backward hooks"]
    small(torch.randn(2, 8))
    assert calls == ["kept"]


# --- layers that stay as they are -----------------------------------------------------------------


class MyLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("layer", "note"),
    [
        (MyLinear(8, 8), "MyLinear is a subclass; what it adds is unknown"),
        (nn.LSTM(8, 8), "recurrent layers have no PH twin"),
        (nn.GRU(8, 8), "recurrent layers have no PH twin"),
        (nn.Linear(8, 8, dtype=torch.complex64), "its weight is torch.complex64, not real"),
        (parametrizations.weight_norm(nn.Linear(8, 8)), "its weight is computed"),
        (parametrizations.spectral_norm(nn.Conv2d(8, 8, 3)), "its weight is computed"),
        (parametrizations.orthogonal(nn.Linear(8, 8)), "its weight is computed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_left_alone_with_the_reason(layer, note):
    small = convert(nn.ModuleList([layer, nn.Linear(8, 8)]), n=2)
    assert sizes(small).keys() == {"1"}
    assert type(small[0]).__name__ == type(layer).__name__
    assert small.phnn_report.left_alone[0].note.startswith(note)
    assert small[0].state_dict().keys() == layer.state_dict().keys()


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    "compute",
    [
        lambda layer: nn.utils.weight_norm(layer),
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        lambda layer: prune.l1_unstructured(layer, "bias", 0.5),
    ],
    ids=["weight_norm", "pruned weight", "pruned bias"],
)
def test_weights_that_hooks_compute_are_left_alone(compute):
    model = nn.Sequential(compute(nn.Linear(8, 8)), nn.Linear(8, 8))
    before = sorted(model.state_dict())
    # torch cannot copy such a model; it says so, and nothing has happened
    with pytest.raises(ValueError, match=r"cannot be copied .*inplace=True"):
        convert(model, n=2)
    assert sorted(model.state_dict()) == before
    convert(model, n=2, inplace=True)
    assert sizes(model).keys() == {"1"}
    assert model.phnn_report.left_alone[0].note.startswith("its weight is computed")
    assert model(torch.randn(2, 8)).shape == (2, 8)


def test_pruning_that_was_made_permanent_is_converted():
    layer = nn.Linear(8, 8)
    prune.l1_unstructured(layer, "weight", 0.5)
    prune.remove(layer, "weight")
    assert sizes(convert(nn.Sequential(layer), n=2)) == {"0": (2, 2)}


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_layers_are_left_alone():
    if not torch.backends.quantized.supported_engines[1:]:
        pytest.skip("this build of torch quantizes nothing")
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)))
    with pytest.raises(ValueError, match="0: quantized; convert first, then quantize"):
        convert(model, n=2)
    model.append(nn.Linear(8, 8))
    assert sizes(convert(model, n=2)).keys() == {"1"}


def test_lazy_layers_are_converted_once_they_know_their_size():
    model = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 8))
    with pytest.raises(ValueError, match=r"LazyModules Call `forward`"):
        convert(model, n=2, inplace=True)
    assert [type(layer) for layer in model] == [nn.LazyLinear, nn.Linear]
    model(torch.randn(2, 4))
    assert sizes(convert(model, n=2)) == {"0": (2, 2), "1": (2, 2)}


# --- attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes_of_inputs", [{}, {"kdim": 4, "vdim": 12}])
def test_attention_converts_its_output_projection(sizes_of_inputs):
    model = nn.MultiheadAttention(16, 4, batch_first=True, **sizes_of_inputs)
    small = convert(model, n=4)
    whole, projection = small.phnn_report.entries
    assert whole.note.startswith("its input projections (in_proj_weight) are parameters")
    assert projection.name == "out_proj"
    assert type(small.out_proj) is PHLinear
    x = torch.randn(2, 5, 16)
    keys = torch.randn(2, 5, sizes_of_inputs.get("kdim", 16))
    values = torch.randn(2, 5, sizes_of_inputs.get("vdim", 16))
    small(x, keys, values)[0].sum().backward()
    assert small.out_proj.A.grad.any()
    assert small.out_proj.F.grad.any()
    folded = to_dense(small)
    assert folded.state_dict().keys() == model.state_dict().keys()
    assert type(folded.out_proj) is type(model.out_proj)  # which quantization leaves alone
    for evaluation in (False, True):  # evaluation without gradients takes torch's fast path
        small.train(not evaluation)
        folded.train(not evaluation)
        with torch.set_grad_enabled(not evaluation):
            assert_close(small(x, keys, values)[0], folded(x, keys, values)[0])


def test_a_transformer_converts_runs_and_folds():
    model = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True)
    small = convert(model, n=4)
    assert len(small.phnn_report.changed) == 2 * 3 + 2 * 4
    assert len(small.phnn_report.left_alone) == 2 + 4
    source, target = torch.randn(2, 6, 16), torch.randn(2, 3, 16)
    assert_every_parameter_learns(small, source, target)
    folded = to_dense(small).eval()
    small.eval()
    assert folded.state_dict().keys() == model.state_dict().keys()
    assert_close(small(source, target), folded(source, target))
    with torch.no_grad():  # the encoder's fast path reads the weights instead of calling the layers
        assert_close(small(source, target), folded(source, target))


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "give n=, algebra=, budget="),
        ({"n": 0}, ValueError, "0: n is an integer, at least 1; got n=0"),
        ({"n": 2.0}, ValueError, "0: n is an integer, at least 1; got n=2.0"),
        ({"n": {"5": -1}}, ValueError, "5: n is an integer, at least 1; got n=-1"),
        ({"n": 7}, ValueError, "no layer can be converted: 0: n=7 does not divide the 8 and 4"),
        ({"n": 2, "terms": 5}, ValueError, "0: terms is between 1 and n²=4, got terms=5"),
        ({"n": 2, "algebra": quaternion}, ValueError, "quaternion has n=4, .* n=2"),
        ({"algebra": quaternion, "terms": 2}, ValueError, "4 terms; leave terms=2 out"),
        ({"algebra": quaternion, "indivisible": "shrink"}, ValueError, "only a learned algebra"),
        ({"n": 2, "learn_algebra": False}, ValueError, "needs an algebra="),
        ({"budget": 0.5, "n": 2}, ValueError, "budget=0.5 chooses n and terms itself"),
        ({"budget": 0.5, "terms": 2}, ValueError, "budget=0.5 chooses n and terms itself"),
        ({"budget": 0.5, "algebra": quaternion}, ValueError, "leave n, terms and algebra out"),
        ({"budget": 0}, ValueError, r"in \(0, 1\), got 0"),
        ({"budget": 1.5}, ValueError, r"in \(0, 1\), got 1.5"),
        (
            {"budget": 0.01},
            ValueError,
            r"budget=0.01 of 1,764 parameters cannot be met: .* leave \d+, \d+\.\d%",
        ),
        ({"budget": 0.5, "exclude": "*"}, ValueError, "no layer can be converted: 0: excluded"),
        ({"compute": 0.5}, ValueError, "compute counts .* give calibration= as well"),
        ({"n": 2, "tolerance": 0.1}, ValueError, "tolerance=0.1 limits the score of evaluate="),
        ({"n": 2, "start": "best"}, ValueError, "start is one of nearest, random; got 'best'"),
        ({"n": 2, "indivisible": "pad"}, ValueError, "skip, raise, shrink; got 'pad'"),
        ({"n": 2, "include": "conv*"}, ValueError, r"include: 'conv\*' matches none .* 0, 3, 5"),
        ({"n": 2, "include": ["0", "9"]}, ValueError, "include: '9' matches none of the layers"),
        ({"n": 2, "exclude": "layer4"}, ValueError, "exclude: 'layer4' matches none"),
        ({"n": {"0": 2, "x": 4}}, ValueError, "n: 'x' matches none of the layers 0, 3, 5"),
        ({"n": 2, "include": lambda *_: False}, ValueError, "no layer .*: 0: not included"),
        ({"n": lambda *_: None}, ValueError, "no layer can be converted: 0: no n was given"),
    ],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_message_and_the_model_is_untouched(options, error, message, inplace):
    model = small_network()
    before = snapshot(model)
    with pytest.raises(error, match=message):
        convert(model, **options, inplace=inplace)
    assert_untouched(model, before)


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential(), nn.Embedding(4, 4)])
def test_a_model_without_layers(model):
    with pytest.raises(ValueError, match="the model has no linear or convolutional layer"):
        convert(model, n=2)


@pytest.mark.parametrize("options", [{"n": 2}, {"budget": 0.5}, {"budget": 0.5, "start": "random"}])
def test_weights_without_numbers(options):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, device="meta"))
    with pytest.raises(ValueError, match=r"1 is on the meta device.*start='random'"):
        convert(model, **options, inplace=True)
    assert type(model[0]) is nn.Linear
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    nn.init.constant_(model[1].weight, math.nan)
    with pytest.raises(ValueError, match="the weight of 1 holds values that are NaN or infinite"):
        convert(model, **options, inplace=True)
    assert type(model[0]) is nn.Linear


# --- the report -----------------------------------------------------------------------------------


def test_the_report_prints_as_a_table():
    model = nn.Sequential(nn.Linear(8, 4), nn.Conv1d(3, 8, 3), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.copy_(torch.kron(torch.ones(2, 2), torch.ones(2, 4)))
        model[2].weight.copy_(torch.tensor([4.0, 0, 0, 3]).diag())  # two terms, of norms 4 and 3
    report = convert(model, n=2, terms=1).phnn_report
    assert len(report.changed) == 2
    lines = [line.split("  ") for line in str(report).splitlines()]
    table = [[cell.strip() for cell in line if cell] for line in lines]
    assert table == [
        ["layer", "before", "after", "parameters", "error", "note"],
        ["0", "Linear", "PHLinear n=2 terms=1", "36 → 16", "0.000"],
        ["1", "Conv1d", "80", "n=2 does not divide the 8 and 3 channels"],
        ["2", "Linear", "PHLinear n=2 terms=1", "20 → 12", "0.600"],
        ["2 of 3 layers replaced; whole model 136 → 108 parameters (79.4%)"],
    ]
    starts = [line.find("0.") for line in str(report).splitlines()]
    assert starts[1] == starts[3]  # the columns are aligned


# --- and back -------------------------------------------------------------------------------------


def test_folding_gives_back_the_keys_the_types_and_the_outputs():
    model = small_network().eval()
    small = convert(model, n=4)
    before = snapshot(small)
    folded = to_dense(small)
    assert_untouched(small, before)
    assert folded.state_dict().keys() == model.state_dict().keys()
    assert [type(layer) for layer in folded] == [type(layer) for layer in model]
    model.load_state_dict(folded.state_dict())  # a checkpoint of the original architecture
    x = torch.randn(2, 4, 8, 8)
    assert_close(folded(x), small(x))
    assert_close(model(x), small(x))
    assert [entry.after for entry in folded.phnn_report.entries] == ["Conv2d", "Conv2d", "Linear"]
    assert folded.phnn_report.parameters_after == parameters(model)
    assert to_dense(small, inplace=True) is small
    assert torch.equal(small(x), folded(x))


def test_folding_shares_the_weight_where_all_factors_are_shared():
    model = nn.Sequential(*(PHLinear(8, 8, n=4, rank=7) for _ in range(3)))
    for name in "UVWF":
        setattr(model[1], name, getattr(model[0], name))
    for name in "UVF":
        setattr(model[2], name, getattr(model[0], name))
    x = torch.randn(2, 8)
    folded = to_dense(model)
    assert folded[0].weight is folded[1].weight
    assert folded[0].weight is not folded[2].weight
    assert_close(folded(x), model(x))


def test_folding_a_model_without_ph_layers_copies_it():
    model = small_network()
    folded = to_dense(model)
    assert folded is not model
    assert folded.phnn_report.entries == ()


def test_folding_keeps_apart_what_parametrizations_compute():
    model = nn.Sequential(*(PHLinear(8, 8, n=2) for _ in range(3)))
    for layer in model:
        parametrizations.weight_norm(layer, "F")
    x = torch.randn(2, 8)
    assert_close(to_dense(model)(x), model(x))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("compute", [nn.utils.weight_norm, nn.utils.spectral_norm, "prune"])
def test_filters_that_hooks_compute_are_computed_before_they_fold(compute):
    model, x = nn.Sequential(PHLinear(8, 8, n=2)), torch.randn(2, 8)
    if compute == "prune":
        prune.l1_unstructured(model[0], "F", 0.5)
    else:
        compute(model[0], "F")
    with torch.no_grad():  # as an optimizer or a checkpoint does, after which no call came
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.train()
    state = copy.deepcopy(model.state_dict())
    folded = to_dense(model)
    assert model.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert_close(folded.eval()(x), model.eval()(x))
    assert folded.phnn_report.entries[0].note == ""


class MyPruning(prune.BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t, default_mask):
        return default_mask * (t > 0)


def test_pruning_by_own_rules_is_no_lost_hook():
    model = nn.Sequential(PHLinear(8, 8, n=2))
    MyPruning.apply(model[0], "F")
    assert to_dense(model).phnn_report.entries[0].note == ""


def test_what_is_converted_in_inference_mode_can_be_trained():
    model = nn.Sequential(nn.Linear(8, 8))
    with torch.inference_mode():
        small = convert(model, n=2)
    small(torch.randn(2, 8)).sum().backward()
    assert small[0].F.grad is not None


def test_a_forward_that_was_replaced_is_left_alone():
    x = torch.randn(2, 8)
    for layer in (PHLinear(8, 8, n=2), nn.Linear(8, 8)):
        model = nn.Sequential(layer, PHLinear(8, 8, n=2), nn.Linear(8, 8))
        original = layer.forward
        layer.forward = lambda x, original=original: 2 * original(x)
        expected = model(x)
        folded = to_dense(model)
        assert type(folded[0]) is type(layer)
        assert_close(folded(x), expected)
        if isinstance(layer, PHLinear):
            assert folded.phnn_report.entries[0].note.startswith("its forward was replaced")
        else:
            left = convert(model, n=2).phnn_report.left_alone
            assert left[0].note.startswith("its forward was replaced")


def norms_with_statistics(model, *inputs):
    """Runs the model in training mode, so that fusing has something to multiply in."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias)
            module.momentum = 0.7
    model.train()
    model(*inputs)
    return model.eval()


FUSIBLE = {
    "linear": (nn.Linear(8, 12), nn.BatchNorm1d(12), (8,)),
    "linear without bias": (nn.Linear(8, 12, bias=False), nn.BatchNorm1d(12), (8,)),
    "conv1d": (nn.Conv1d(8, 12, 3), nn.BatchNorm1d(12), (8, 6)),
    "conv2d": (nn.Conv2d(8, 12, 3, bias=False), nn.BatchNorm2d(12), (8, 6, 6)),
    "conv2d in groups": (nn.Conv2d(8, 12, 3, groups=2), nn.BatchNorm2d(12), (8, 6, 6)),
    "conv3d, not affine": (nn.Conv3d(4, 4, 2), nn.BatchNorm3d(4, affine=False), (4, 3, 3, 3)),
    "transposed": (nn.ConvTranspose2d(8, 12, 3), nn.BatchNorm2d(12), (8, 4, 4)),
    "transposed in groups": (
        nn.ConvTranspose2d(8, 12, 3, stride=2, groups=2, bias=False),
        nn.BatchNorm2d(12),
        (8, 4, 4),
    ),
    "transposed 1d": (nn.ConvTranspose1d(8, 12, 3, groups=2), nn.BatchNorm1d(12), (8, 5)),
    "transposed 3d": (nn.ConvTranspose3d(4, 6, 2), nn.BatchNorm3d(6, affine=False), (4, 2, 2, 2)),
}


@pytest.mark.parametrize("case", FUSIBLE)
@pytest.mark.parametrize("n", [None, 2])
def test_fused_norms_change_nothing_but_the_speed(case, n):
    layer, norm, shape = copy.deepcopy(FUSIBLE[case])
    x = torch.randn(16, *shape)
    model = nn.Sequential(layer, norm, nn.ReLU())
    if n is not None:
        model = convert(model, n=n)
    norms_with_statistics(model, x)
    fused = to_dense(model, fuse=True)
    assert type(fused[1]) is nn.Identity
    assert fused.phnn_report.entries[-1].note == "fused into 0"
    assert type(model[1]) is type(norm)
    assert_close(fused(x), model(x))


def assert_not_fused(model, *inputs):
    norms_with_statistics(model, *inputs)
    fused = to_dense(model, fuse=True)
    assert not any(isinstance(module, nn.Identity) for module in fused.modules())
    assert_close(fused(*inputs), model(*inputs))


class Reuses(nn.Module):
    """One norm after two layers, one layer before two norms, an output that is used twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (PHConv2d(4, 4, 1, n=2) for _ in range(4))
        self.norm, self.left, self.right, self.late = (nn.BatchNorm2d(4) for _ in range(4))

    def forward(self, x):
        x = self.norm(self.b(self.norm(self.a(x))))
        x = self.left(self.c(x)) + self.right(self.c(x))
        y = self.d(x)
        return y + self.late(y)


def test_norms_and_layers_that_are_used_twice_are_not_fused():
    assert_not_fused(Reuses(), torch.randn(4, 4, 3, 3))


class NormWithActivation(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).relu()


class StandardizedConv(nn.Conv2d):
    def forward(self, x):
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return nn.functional.conv2d(x, weight, self.bias)


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(4, 4, 1), NormWithActivation(4)),
        (StandardizedConv(4, 4, 1), nn.BatchNorm2d(4)),
        (nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)),
        (nn.Conv2d(4, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)),
        (nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)),
        (parametrizations.weight_norm(nn.Conv2d(4, 4, 1)), nn.BatchNorm2d(4)),
    ],
    ids=["subclass of norm", "subclass of layer", "no statistics", "between", "before", "computed"],
)
def test_what_cannot_be_fused_exactly_is_left_alone(layers):
    assert_not_fused(nn.Sequential(*layers), torch.randn(8, 4, 3, 3))


def test_hooks_and_norms_in_training_mode_prevent_fusing():
    x = torch.randn(8, 4, 3, 3)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    model[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert_not_fused(model, x)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).eval()
    model[1].train()
    assert type(to_dense(model, fuse=True)[1]) is nn.BatchNorm2d


def test_fusing_needs_evaluation_mode():
    model = convert(small_network(), n=2)
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"evaluation mode only; call model.eval\(\) first"):
        to_dense(model, fuse=True, inplace=True)
    assert_untouched(model, before)


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = PHLinear(4, 4, n=2), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.layer(x)) if x.sum() > 0 else x


def test_fusing_needs_a_model_that_can_be_traced():
    model = Untraceable().eval()
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"torch.fx cannot trace this model.*use fuse=False"):
        to_dense(model, fuse=True, inplace=True)
    assert_untouched(model, before)


def test_a_norm_whose_weight_is_computed_is_not_fused():
    norm = nn.BatchNorm2d(4)
    prune.l1_unstructured(norm, "weight", 0.5)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), norm).eval()
    with torch.no_grad():
        norm.weight_orig.mul_(3)  # which the next call takes up
    x = torch.randn(2, 4, 3, 3)
    expected = nn.functional.batch_norm(
        model[0](x), norm.running_mean, norm.running_var, norm.weight_orig * norm.weight_mask
    )
    folded = to_dense(model, fuse=True, inplace=True)
    assert type(folded[1]) is nn.BatchNorm2d
    assert_close(folded(x), expected)


class TiedDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return nn.functional.linear(self.norm(self.encoder(x)), self.encoder.weight.t())


class SkipsUnlessGiven(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x, skip=None):
        y = self.layer(x)
        return self.norm(y + x if skip is None else y)


def test_a_layer_whose_weight_is_used_elsewhere_is_not_fused():
    assert_not_fused(TiedDecoder(), torch.randn(6, 8))


def test_a_norm_that_follows_for_some_arguments_alone_is_not_fused():
    x = torch.randn(6, 8)
    model = SkipsUnlessGiven()
    assert_not_fused(model, x)
    assert_close(to_dense(model, fuse=True)(x, x), model(x, x))


def test_half_precision_stays_half_precision_when_fused():
    model = nn.Sequential(nn.Conv2d(4, 4, 1).bfloat16(), nn.BatchNorm2d(4)).eval()
    fused = to_dense(model, fuse=True)
    assert fused[0].weight.dtype == fused[0].bias.dtype == torch.bfloat16


def test_a_network_of_the_zoo_converts_folds_and_fuses():
    model = phnn.create_model("resnet20")
    x = torch.randn(2, 3, 32, 32)
    small = norms_with_statistics(convert(model, n=4), x)
    fused = to_dense(small, fuse=True)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    assert_close(fused(x), small(x))


# --- what folding must not hide -------------------------------------------------------------------


class Doubled(PHLinear):
    def forward(self, input):
        return 2 * super().forward(input)


class Foldable(Doubled):
    def to_dense(self):
        dense = super().to_dense()
        with torch.no_grad():
            dense.weight *= 2
            dense.bias *= 2
        return dense


@torch.no_grad()
def test_a_layer_with_a_forward_of_its_own_is_not_folded():
    model, x = nn.Sequential(Doubled(8, 8, n=2), Foldable(8, 8, n=2)), torch.randn(3, 8)
    folded = to_dense(model)
    assert_close(folded(x), model(x))
    assert [type(layer) for layer in folded] == [Doubled, nn.Linear]
    kept, replaced = folded.phnn_report.entries
    assert "has a forward of its own" in kept.note
    assert not kept.changed
    assert replaced.changed


def test_hooks_that_folding_loses_are_named():
    model = nn.Sequential(PHLinear(8, 8, n=2))
    model[0].register_forward_hook(lambda module, args, output: 2 * output)
    assert to_dense(model).phnn_report.entries[0].note == "lost its forward hooks"


@pytest.mark.parametrize("move", [lambda model: model, lambda model: model.double()])
def test_tied_filters_of_a_fixed_algebra_are_one_weight(move):
    model = nn.Sequential(*(PHLinear(8, 8, algebra=quaternion) for _ in range(3)))
    model[1].F = model[0].F
    folded = to_dense(move(model))
    assert folded[0].weight is folded[1].weight
    assert folded[0].weight is not folded[2].weight


def test_an_algebra_goes_by_its_name():
    small = convert(nn.Sequential(nn.Linear(8, 8)), algebra="quaternion")
    assert small[0].algebra is quaternion
    with pytest.raises(ValueError, match="unknown algebra 'quaternoin'"):
        convert(nn.Sequential(nn.Linear(8, 8)), algebra="quaternoin")
