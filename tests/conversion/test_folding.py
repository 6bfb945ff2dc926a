"""PH layers back to torch's layers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import phnn
from helpers.converting import assert_untouched, parameters, small_network, snapshot
from phnn import PHConv2d, PHLinear
from phnn.algebra import quaternion
from phnn.conversion import convert, to_dense
from phnn.testing import assert_close


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
