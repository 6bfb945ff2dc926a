"""Ties, shared modules, hooks, attention, and layers that stay as they are."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from helpers.converting import parameters, sizes
from phnn import PHLinear
from phnn.conversion import convert, to_dense
from phnn.testing import assert_close, assert_every_parameter_learns


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


def test_a_table_that_stays_keeps_the_layer_that_it_is_tied_to():
    small = convert(TiedEmbedding(), n=2)
    assert sizes(small).keys() == {"body"}
    assert small.head.weight is small.embedding.weight
    table, head = small.phnn_report.left_alone
    assert table.note.startswith("the rows of a table are no components")
    assert head.note.startswith("tied to embedding, which stays: ")


@pytest.mark.parametrize("options", [{"n": 2, "include": "*"}, {"budget": 0.6}])
def test_a_tied_table_stays_tied(options):
    model = TiedEmbedding()
    small = convert(model, **options)
    assert small.head.F is small.embedding.F
    assert small.head.A is small.embedding.A
    ids = torch.arange(12)
    assert_close(small.embedding(ids), small.head.weight)
    folded = to_dense(small)
    assert folded.head.weight is folded.embedding.weight
    assert_close(folded.embedding(ids), small.embedding(ids))


def test_a_table_with_a_padding_row_is_not_shared_with_a_linear_layer():
    model = TiedEmbedding()
    model.embedding = nn.Embedding(12, 8, padding_idx=3)
    model.head.weight = model.embedding.weight
    small = convert(model, n=2, include="*")
    assert sizes(small).keys() == {"body"}
    notes = {entry.name: entry.note for entry in small.phnn_report.left_alone}
    assert notes["embedding"] == "tied to head, which does not mask the padding row 3"


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


class MyLinear(nn.Linear):
    pass


class MyLSTM(nn.LSTM):
    pass


@pytest.mark.parametrize(
    ("layer", "note"),
    [
        (MyLinear(8, 8), "MyLinear is a subclass; what it adds is unknown"),
        (MyLSTM(8, 8), "MyLSTM is a subclass; what it adds is unknown"),
        (nn.Embedding(8, 8), "the rows of a table are no components"),
        (nn.EmbeddingBag(8, 8), "it sums rows while it looks them up"),
        (nn.LSTM(8, 8, dtype=torch.complex64), "its weights are torch.complex64, not real"),
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
    with pytest.raises(ValueError, match="LazyLinear whose weight has no size yet; run the model"):
        convert(model, n=2, inplace=True)
    assert [type(layer) for layer in model] == [nn.LazyLinear, nn.Linear]
    model(torch.randn(2, 4))
    assert sizes(convert(model, n=2)) == {"0": (2, 2), "1": (2, 2)}


@pytest.mark.parametrize("sizes_of_inputs", [{}, {"kdim": 4, "vdim": 12}])
def test_the_output_projection_of_attention_alone(sizes_of_inputs):
    model = nn.MultiheadAttention(16, 4, batch_first=True, **sizes_of_inputs)
    small = convert(model, n=4, include="out_proj")
    assert type(small) is nn.MultiheadAttention
    names = [entry.name for entry in small.phnn_report.entries]
    assert names == ["q_proj", "k_proj", "v_proj", "out_proj"]
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
    assert len(small.phnn_report.changed) == 2 * (4 + 2) + 2 * (8 + 2)
    assert not small.phnn_report.left_alone
    source, target = torch.randn(2, 6, 16), torch.randn(2, 3, 16)
    assert_every_parameter_learns(small, source, target)
    folded = to_dense(small).eval()
    small.eval()
    assert folded.state_dict().keys() == model.state_dict().keys()
    assert_close(small(source, target), folded(source, target))
    with torch.no_grad():  # the encoder's fast path reads the weights instead of calling the layers
        assert_close(small(source, target), folded(source, target))
