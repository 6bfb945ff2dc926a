"""Layers with several matrices: recurrent layers, attention, and tables."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import phnn
from helpers.converting import assert_untouched, parameters, snapshot
from phnn import PHGRU, PHLSTM, PHEmbedding, PHLinear, PHMultiheadAttention, convert, to_dense
from phnn.conversion.opening import fuse_opened
from phnn.conversion.sites import OPENED
from phnn.testing import assert_close

LAYERS = [
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu", "num_layers": 2, "bias": False}),
    (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    (nn.LSTM, {"proj_size": 4, "bidirectional": True, "num_layers": 2}),
]
CELLS = [nn.RNNCell, nn.GRUCell, nn.LSTMCell]
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")


def tensors(output):
    """All tensors of nested outputs."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, PackedSequence):
        return [output.data]
    return [tensor for value in output for tensor in tensors(value)]


def assert_same(actual, expected, tolerance=1e-5):
    for ours, theirs in zip(tensors(actual), tensors(expected), strict=True):
        assert_close(ours, theirs, tolerance)


class Reader(nn.Module):
    """One of everything: a table, recurrent layers, attention, a cell."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 8)
        self.lstm = nn.LSTM(8, 8, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
        self.cell = nn.GRUCell(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, ids):
        x, _ = self.lstm(self.table(ids))
        x, last = self.gru(x)
        x = self.encoder(x)
        return self.head(self.cell(x[:, -1], last[0]))


class Counter(nn.Module):
    """A recurrent layer and a head."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


@pytest.fixture
def reader():
    torch.manual_seed(0)
    return Reader().eval()


@pytest.fixture
def ids():
    return torch.randint(32, (20, 4), generator=torch.Generator().manual_seed(1))


class TestOpened:
    @pytest.mark.parametrize(("kind", "options"), LAYERS)
    def test_a_layer(self, kind, options):
        layer = kind(6, 8, **options).eval()
        opened = OPENED[kind](layer)
        x = torch.randn(5, 3, 6)
        packed = pack_sequence([torch.randn(n, 6) for n in (2, 5, 3)], enforce_sorted=False)
        for input in (x, torch.randn(5, 6), packed):
            output = layer(input)
            assert_same(opened(input), output)
            assert_same(opened(input, output[1]), layer(input, output[1]))
        assert_same(opened.fuse()(x), layer(x))
        assert_same(opened.close({})(x), layer(x))  # all matrices dense

    @pytest.mark.parametrize("kind", CELLS)
    def test_a_cell(self, kind):
        cell = kind(6, 8)
        opened = OPENED[kind](cell)
        for input in (torch.randn(3, 6), torch.randn(6)):
            output = cell(input)
            assert_same(opened(input), output)
            assert_same(opened(input, output), cell(input, output))

    @pytest.mark.parametrize("options", [{}, {"kdim": 4, "vdim": 12, "add_bias_kv": True}])
    def test_attention(self, options):
        attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        opened = OPENED[nn.MultiheadAttention](attention)
        sizes = (8, attention.kdim, attention.vdim)
        inputs = [torch.randn(2, 5, size) for size in sizes]
        assert_same(opened(*inputs), attention(*inputs))
        assert opened.q_proj.weight.data_ptr() in {
            p.data_ptr() for p in attention.parameters()
        }  # no copy
        assert_same(opened.fuse()(*inputs), attention(*inputs))

    def test_a_model_without_opened_layers_is_not_copied(self):
        model = nn.Linear(2, 2)
        assert fuse_opened(model) is model


class TestConvert:
    @pytest.mark.parametrize(("kind", "options"), LAYERS)
    def test_n_squared_terms_change_nothing(self, kind, options):
        model = nn.ModuleDict({"layer": kind(8, 8, **options)})
        small = convert(model, n=2, terms=4)
        x = torch.randn(5, 3, 8)
        assert type(small.layer).__name__ == f"PH{kind.__name__}"
        assert_same(small.layer(x), model.layer(x), 1e-4)
        small = convert(model, n=2)
        folded = to_dense(small)
        assert folded.state_dict().keys() == model.state_dict().keys()
        assert_same(folded.layer(x), small.layer(x))
        assert parameters(small) < parameters(model)

    @pytest.mark.parametrize("kind", CELLS)
    def test_cells(self, kind):
        model = nn.Sequential(kind(8, 8))
        small = convert(model, algebra="complex")
        x = torch.randn(3, 8)
        folded = to_dense(small)
        assert folded.state_dict().keys() == model.state_dict().keys()
        assert_same(folded(x), small(x))

    def test_it_starts_from_the_nearest_weights(self):
        model = nn.Sequential(nn.LSTM(8, 8))
        small = convert(model, n=4)
        entries = {entry.name: entry for entry in small.phnn_report.entries}
        weight, H = model[0].weight_hh_l0.detach(), small[0].weight_hh_l0.detach()
        assert entries["0.weight_hh_l0"].error == pytest.approx(
            float((weight - H).norm() / weight.norm()), rel=1e-4
        )
        assert entries["0.weight_hh_l0"].after == "PHLSTM n=4"
        assert torch.equal(small[0].bias_hh_l0, model[0].bias_hh_l0)

    @pytest.mark.parametrize(
        "options",
        [
            {"n": 4},
            {"n": 4, "calibration": True, "refine": 1},
            {"budget": 0.6},
            {"budget": 0.6, "calibration": True, "refine": 0},
            {"n": 2, "share_algebra": True},
            {"n": 4, "start": "random"},
        ],
        ids=str,
    )
    def test_a_model_of_everything(self, reader, ids, options, tmp_path):
        if "calibration" in options:
            options = {**options, "calibration": ids}
        before = snapshot(reader)
        small = convert(reader, **options)
        assert_untouched(reader, before)
        assert parameters(small) < parameters(reader)
        if "budget" in options:
            assert parameters(small) <= 0.6 * parameters(reader)
        folded = to_dense(small)
        assert folded.state_dict().keys() == reader.state_dict().keys()
        with torch.no_grad():  # torch's fused encoder reads the weights
            assert_close(small(ids), folded(ids), 1e-4)
        assert_close(small(ids), folded(ids), 1e-4)
        file = phnn.save(small, tmp_path / "small.safetensors")
        assert torch.equal(phnn.load(file, model=Reader)(ids), small(ids))
        assert torch.equal(phnn.load(file, model=Reader())(ids), small(ids))
        assert "lstm" in str(phnn.io.inspect(file))

    def test_data_help(self):
        torch.manual_seed(0)
        model = Counter().eval()
        x = torch.randn(60, 4, 2) @ torch.randn(
            2, 8
        )  # inputs that leave much of the weights unused
        expected = model(x)
        errors = [
            float((small(x) - expected).detach().norm())
            for small in (convert(model, n=4), convert(model, n=4, calibration=x, refine=0))
        ]
        assert errors[1] < 0.5 * errors[0]

    def test_a_search_by_score_sees_torch_layers(self):
        model, x, kinds = Counter().eval(), torch.randn(20, 3, 8), []

        def evaluate(candidate):
            kinds.append(type(candidate.gru))
            candidate.gru.flatten_parameters()  # as models with recurrent layers do
            return -(candidate(x) - model(x)).square().mean()

        small = convert(model, evaluate=evaluate, tolerance=1.0, calibration=x, refine=0)
        assert set(kinds) == {nn.GRU}
        assert type(small.gru) is PHGRU

    def test_a_layer_is_put_back_after_an_error(self, reader):
        before = snapshot(reader)
        with pytest.raises(ValueError, match="does not run on the calibration data"):
            convert(reader, n=4, calibration=torch.randn(8, 5))
        assert_untouched(reader, before)

    def test_multiplications_of_recurrent_layers_stay(self, ids):
        model = nn.Sequential(nn.GRU(8, 8))
        report = convert(model, n=4, calibration=torch.randn(16, 5, 8), refine=0).phnn_report
        assert report.multiplications_after == report.multiplications_before == 5 * 8 * 48


class TestWhichLayers:
    def test_one_matrix(self):
        model = nn.Sequential(nn.GRU(8, 8))
        small = convert(model, n=4, include="*.weight_ih_*")
        notes = {entry.name: entry.note for entry in small.phnn_report.entries}
        assert notes == {"0.weight_ih_l0": "", "0.weight_hh_l0": "not included"}
        assert torch.equal(small[0].weight_hh_l0, model[0].weight_hh_l0)
        assert small[0].structure is None
        assert "weight_hh_l0: algebra=real" in repr(small)
        copy.deepcopy(small)

    def test_a_matrix_that_n_does_not_divide(self):
        small = convert(nn.Sequential(nn.LSTM(6, 8)), n=4)
        notes = {entry.name: entry.note for entry in small.phnn_report.entries}
        assert notes["0.weight_ih_l0"] == (
            "n=4 does not divide the 8 and 6 channels of each of 4 gates"
        )
        assert type(small[0]) is PHLSTM

    def test_a_number_for_each(self):
        small = convert(nn.Sequential(nn.GRU(8, 8)), n={"*.weight_ih*": 2, "*": 4})
        structures = small[0].structures
        assert (structures["_ih_l0"].n, structures["_hh_l0"].n) == (2, 4)

    def test_projections_of_attention(self):
        model = nn.ModuleDict({"attention": nn.MultiheadAttention(16, 4)})
        small = convert(model, n=4, include="*.v_proj").attention
        assert type(small) is PHMultiheadAttention
        assert [type(small.q_proj), type(small.v_proj)] == [nn.Linear, PHLinear]

    @pytest.mark.parametrize("kinds", [["square"], ["low rank"]])
    def test_kinds(self, kinds):
        small = convert(nn.Sequential(nn.GRU(16, 16)), budget=0.5, kinds=kinds)
        for structure in small[0].structures.values():
            is_low_rank = 1 in structure.pair
            assert structure.algebra is not None or is_low_rank == (kinds == ["low rank"])

    def test_tied_matrices_stay(self):
        model = nn.ModuleList([nn.GRU(8, 8), nn.GRU(8, 8), nn.GRU(8, 8)])
        model[1].weight_hh_l0 = model[0].weight_hh_l0
        small = convert(model, n=4)
        assert [type(layer) for layer in small] == [nn.GRU, nn.GRU, PHGRU]
        assert small.phnn_report.entries[0].note == "tied to 1.weight_hh_l0"

    def test_a_computed_matrix_stays(self):
        layer = nn.utils.parametrizations.weight_norm(nn.GRU(8, 8), "weight_hh_l0")
        small = convert(nn.ModuleList([layer, nn.Linear(8, 8)]), n=2)
        assert small.phnn_report.left_alone[0].note.startswith("ParametrizedGRU is a subclass")


class TestTables:
    def test_a_budget_converts_them(self):
        torch.manual_seed(0)
        table = nn.Embedding(50, 16)
        with torch.no_grad():
            table.weight.copy_(torch.randn(50, 4) @ torch.randn(4, 16))
        small = convert(nn.Sequential(table, nn.Linear(16, 4)), budget=0.6)
        assert type(small[0]) is PHEmbedding
        ids = torch.arange(50)
        assert_close(small[0](ids), table(ids), 1e-3)
        assert_close(to_dense(small)[0](ids), small[0](ids))

    def test_rows_that_are_used_count_more(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(40, 16), nn.Flatten(), nn.Linear(16, 4))
        ids = torch.randint(8, (400, 1))  # the others are never used
        small = convert(model, n={"0": (1, 16)}, terms=8, calibration=ids, refine=0)
        errors = (small[0].weight - model[0].weight).norm(dim=1)
        assert errors[:8].mean() < 0.9 * errors[8:].mean()
        plain = convert(model, n={"0": (1, 16)}, terms=8)
        assert errors[:8].mean() < (plain[0].weight - model[0].weight).norm(dim=1)[:8].mean()

    def test_a_padding_row_that_is_not_zero(self):
        table = nn.Embedding(8, 8, padding_idx=2)
        assert type(convert(nn.Sequential(table), n=2, include="*")[0]) is PHEmbedding
        with torch.no_grad():
            table.weight[2] = 1
        with pytest.raises(ValueError, match="0: its padding row 2 is not zero"):
            convert(nn.Sequential(table), n=2, include="*")
