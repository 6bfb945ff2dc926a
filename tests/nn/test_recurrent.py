"""Recurrent layers and cells: against torch's modules, loops over steps, and Hamilton products."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import phnn
from helpers.twins import slow_kronecker_sum
from phnn import algebra
from phnn.functional import Factors
from phnn.testing import assert_close, assert_round_trips

LAYERS = [phnn.PHRNN, phnn.PHGRU, phnn.PHLSTM]
CELLS = [phnn.PHRNNCell, phnn.PHGRUCell, phnn.PHLSTMCell]
CHOICES = {
    "learned": {"n": 4},
    "terms": {"n": 2, "terms": 3},
    "fixed": {"algebra": algebra.quaternion},
    "started": {"algebra": algebra.complex, "learn_algebra": True},
    "rank": {"n": 4, "rank": 4},
    "rank above terms": {"n": 4, "rank": 7},
    "pair": {"n": (4, 2), "terms": 3},
}
every_layer = pytest.mark.parametrize("cls", LAYERS, ids=lambda cls: cls.__name__)
every_cell = pytest.mark.parametrize("cls", CELLS, ids=lambda cls: cls.__name__)
every_class = pytest.mark.parametrize("cls", LAYERS + CELLS, ids=lambda cls: cls.__name__)
every_choice = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())


class Joined(nn.Module):
    """A layer whose outputs are one tensor."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        return join(self.layer(*inputs))


def join(outputs):
    """Return all tensors of an output as one."""
    if isinstance(outputs, torch.Tensor):
        return outputs.flatten()
    return torch.cat([join(output) for output in outputs])


def draw(cls, dtype=torch.float32, batch=3):
    return torch.randn((batch, 8) if cls in CELLS else (5, batch, 8), dtype=dtype)


def slow_weight(layer, name):
    """One of torch's matrices: gate by gate, side by side, block by block."""
    suffix = name.removeprefix("weight")
    if layer.structure.rank is None:
        A = getattr(layer, "A" + suffix)
    else:
        A = Factors(*(getattr(layer, letter + suffix) for letter in "UVW")).tensor()
    F = getattr(layer, "F" + suffix)
    gates = 1 if "_hr" in name else {"RNN": 1, "GRU": 3, "LSTM": 4}[type(layer).__name__[2:]]
    above = "_ih" in name and "l0" not in name and layer.bidirectional
    sides = F.chunk(2, dim=1) if above else [F]
    return torch.cat([slow_kronecker_sum(A, side, gates) for side in sides], dim=1)


def slow_layer(layer, x):
    """torch's module with slowly assembled weights."""
    arguments = {name: getattr(layer, name) for name in layer.dense_args}
    # from the meta device, so that nothing is drawn: dropout then has the same seed
    dense = layer.dense_type(**arguments, device="meta", dtype=x.dtype).to_empty(device="cpu")
    state = {
        name: slow_weight(layer, name) if name.startswith("weight") else getattr(layer, name)
        for name in dense.state_dict()
    }
    dense.load_state_dict(state)
    return dense.train(layer.training)(x)


@every_layer
@every_choice
def test_layers_equal_the_slow_twin(cls, choice):
    layer = cls(8, 16, num_layers=2, bidirectional=True, dtype=torch.float64, **choice)
    x = draw(cls, torch.float64)
    assert_close(join(layer(x)), join(slow_layer(layer, x)), tolerance=1e-12)


@every_layer
@pytest.mark.parametrize(
    "options",
    [{"bias": False}, {"batch_first": True}, {"num_layers": 3, "dropout": 0.3}],
    ids=["no bias", "batch first", "dropout"],
)
def test_layers_take_the_options_of_torch(cls, options):
    layer = cls(8, 16, **options, n=4)
    x = draw(cls)
    torch.manual_seed(1)
    actual = join(layer(x))
    torch.manual_seed(1)
    assert_close(actual, join(slow_layer(layer, x)))


def test_an_lstm_projects_its_hidden_state():
    layer = phnn.PHLSTM(8, 16, 2, proj_size=4, bidirectional=True, dtype=torch.float64, n=2)
    assert layer.F_hr_l1_reverse.shape == (4, 8)
    x = draw(phnn.PHLSTM, torch.float64)
    assert layer(x)[0].shape == (5, 3, 8)
    assert_close(join(layer(x)), join(slow_layer(layer, x)), tolerance=1e-12)
    relu = phnn.PHRNN(8, 16, nonlinearity="relu", n=4)
    assert_close(join(relu(x.float())), join(slow_layer(relu, x.float())))


@every_layer
def test_first_states_unbatched_and_packed(cls):
    layer = cls(8, 16, 2, bidirectional=True, n=4)
    dense = layer.to_dense()
    x = draw(cls)
    h = torch.randn(4, 3, 16)
    hx = (h, torch.randn(4, 3, 16)) if cls is phnn.PHLSTM else h
    assert_close(join(layer(x, hx)), join(dense(x, hx)))
    assert_close(join(layer(x[:, 0])), join(dense(x[:, 0])))
    one = tuple(state[:, 0] for state in hx) if cls is phnn.PHLSTM else hx[:, 0]
    assert_close(join(layer(x[:, 0], one)), join(dense(x[:, 0], one)))
    packed = pack_sequence([x[:2, 0], x[:5, 1], x[:3, 2]], enforce_sorted=False)
    actual, expected = layer(packed, hx), dense(packed, hx)
    assert_close(pad_packed_sequence(actual[0])[0], pad_packed_sequence(expected[0])[0])
    assert_close(join(actual[1]), join(expected[1]))
    assert_close(join(layer(packed)[1]), join(dense(packed)[1]))


@every_cell
@every_choice
def test_cells_equal_torchs(cls, choice):
    cell = cls(8, 16, **choice)
    assert set(cell.to_dense().state_dict()) == {"weight_ih", "weight_hh", "bias_ih", "bias_hh"}
    x, h = draw(cls), torch.randn(3, 16)
    hx = (h, torch.randn(3, 16)) if cls is phnn.PHLSTMCell else h
    dense = cell.to_dense()
    assert_close(join(cell(x, hx)), join(dense(x, hx)))
    assert_close(join(cell(x[0])), join(dense(x[0])))


@pytest.mark.parametrize(
    ("cls", "cell"), list(zip(LAYERS, CELLS, strict=True)), ids=["RNN", "GRU", "LSTM"]
)
def test_a_loop_over_cells_is_the_layer(cls, cell):
    layer, step = cls(8, 16, n=4), cell(8, 16, n=4)
    step.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    x, state, outputs = draw(cls), None, []
    for frame in x:
        state = step(frame, state)
        outputs.append(state[0] if isinstance(state, tuple) else state)
    assert_close(layer(x)[0], torch.stack(outputs))


def hamilton(weights, x):
    """The Hamilton product of a matrix and a vector of quaternions, written out."""
    (a, b, c, d), (p, q, r, s) = weights, x.chunk(4, -1)
    return torch.cat(
        [
            p @ a.T - q @ b.T - r @ c.T - s @ d.T,
            q @ a.T + p @ b.T + s @ c.T - r @ d.T,
            r @ a.T - s @ b.T + p @ c.T + q @ d.T,
            s @ a.T + r @ b.T - q @ c.T + p @ d.T,
        ],
        -1,
    )


def quaternion_gates(layer, x, part):
    """Hamilton products of each gate's quaternion filters with x, plus the bias."""
    gates = {phnn.PHGRU: 3, phnn.PHLSTM: 4}[type(layer)]
    filters = getattr(layer, f"F_{part}_l0").chunk(gates)
    biases = getattr(layer, f"bias_{part}_l0").chunk(gates)
    return [hamilton(F.chunk(4), x) + bias for F, bias in zip(filters, biases, strict=True)]


def test_a_quaternion_lstm_multiplies_quaternions():
    layer = phnn.PHLSTM(8, 16, dtype=torch.float64, algebra="quaternion")
    x = draw(phnn.PHLSTM, torch.float64)
    h = c = torch.zeros(3, 16, dtype=torch.float64)
    outputs = []
    for frame in x:
        both = zip(
            quaternion_gates(layer, frame, "ih"), quaternion_gates(layer, h, "hh"), strict=True
        )
        i, f, g, o = (a + b for a, b in both)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    assert_close(layer(x)[0], torch.stack(outputs), tolerance=1e-12)


def test_a_quaternion_gru_multiplies_quaternions():
    layer = phnn.PHGRU(8, 16, dtype=torch.float64, algebra="quaternion")
    x = draw(phnn.PHGRU, torch.float64)
    h, outputs = torch.zeros(3, 16, dtype=torch.float64), []
    for frame in x:
        (r, z, n), (hr, hz, hn) = (
            quaternion_gates(layer, value, part) for value, part in ((frame, "ih"), (h, "hh"))
        )
        r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
        h = (1 - z) * (n + r * hn).tanh() + z * h
        outputs.append(h)
    assert_close(layer(x)[0], torch.stack(outputs), tolerance=1e-12)


@every_class
@pytest.mark.parametrize("choice", [{"n": 4}, {"algebra": "quaternion"}, {"n": 4, "rank": 7}])
def test_weights_and_biases_vary_as_torchs(cls, choice):
    layer = cls(96, 160, **choice)
    dense = layer.dense_type(96, 160)
    for name, parameter in dense.named_parameters():
        ratio = getattr(layer, name).std() / parameter.std()
        assert abs(ratio.item() - 1) < (0.06 if "weight" in name else 0.15), name


@every_class
@every_choice
def test_keys_copies_and_gradients(cls, choice):
    layer = cls(8, 16, **choice)
    x = draw(cls)
    letters = ["A"] if layer.structure.rank is None else ["V", "W"]
    if choice.get("rank") == 7:
        letters.append("U")
    end = "" if cls in CELLS else "_l0"
    expected = {f"{letter}_{part}{end}" for letter in [*letters, "F"] for part in ("ih", "hh")}
    assert set(layer.state_dict()) == expected | {f"bias_ih{end}", f"bias_hh{end}"}
    joined = Joined(layer)
    hx = torch.randn(3, 16) if cls in CELLS else torch.randn(1, 3, 16)
    hx = (hx, hx) if "LSTM" in cls.__name__ else hx
    joined(x, hx).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    assert_round_trips(joined, x)


@every_class
def test_meta_device_then_empty_then_reset(cls):
    layer = cls(8, 16, device="meta", algebra="quaternion")
    assert all(tensor.is_meta for tensor in layer.state_dict().values())
    layer = layer.to_empty(device="cpu")
    for tensor in layer.state_dict().values():
        tensor.fill_(7)
    layer.reset_parameters()
    assert not any((tensor == 7).any() for tensor in layer.state_dict().values())
    assert join(layer(draw(cls))).isfinite().all()


@every_class
def test_gradients_in_float64(cls):
    layer = cls(4, 4, dtype=torch.float64, n=2)
    x = torch.randn((2, 4) if cls in CELLS else (3, 2, 4), dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def function(x, *parameters):
        return join(functional_call(layer, dict(zip(names, parameters, strict=True)), (x,)))

    assert torch.autograd.gradcheck(function, (x, *layer.parameters()), fast_mode=True)


@every_class
def test_low_precision_and_autocast(cls):
    layer = cls(8, 16, n=4)
    x, dense = draw(cls), layer.to_dense()
    low = cls(8, 16, dtype=torch.bfloat16, n=4)
    low.load_state_dict(layer.state_dict())
    output = join(low(x.bfloat16()))
    assert output.dtype == torch.bfloat16
    assert_close(output.float(), join(layer(x)), tolerance=8e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            expected = join(dense(x))
        except RuntimeError as error:
            if "primitive descriptor" not in str(error):
                raise
            pytest.skip("torch has no LSTM of low precision for this processor")
        assert torch.equal(join(layer(x)), expected)


@every_class
def test_exports(cls):
    layer = Joined(cls(8, 16, n=4)).eval()
    x = draw(cls)
    program = torch.export.export(layer, (x,))
    assert_close(program.module()(x), layer(x))


@every_cell
def test_cells_compile_whole(cls):
    cell = Joined(cls(8, 16, n=4))
    x = draw(cls)
    assert_close(torch.compile(cell, fullgraph=True, backend="aot_eager")(x), cell(x))


@every_class
def test_to_dense_keeps_what_is_frozen_and_weights_cannot_be_set(cls):
    layer = cls(8, 16, n=4).eval()
    layer.get_parameter("F_hh" + ("" if cls in CELLS else "_l0")).requires_grad_(False)
    dense = layer.to_dense()
    assert not dense.training
    frozen = [name for name, p in dense.named_parameters() if not p.requires_grad]
    assert [name.removesuffix("_l0") for name in frozen] == ["weight_hh"]
    name = "weight_ih" + ("" if cls in CELLS else "_l0")
    assert torch.equal(getattr(layer, name), getattr(dense, name))
    with pytest.raises(AttributeError, match=r"computes weight_ih.* from A_ih.*cannot be set"):
        setattr(layer, name, torch.zeros(1))
    twin = cls.like(dense, n=2)
    assert twin.structure.n == 2
    assert not twin.training


@every_class
@pytest.mark.parametrize("choice", [{"n": 4}, {"n": 4, "rank": 7}, {"algebra": "quaternion"}])
def test_groups_and_descriptions_know_the_matrices(cls, choice):
    layer = cls(8, 16, **choice)
    sizes = {
        group["name"]: len(group["params"])
        for group in phnn.param_groups(layer, lr=0.1, algebra_scale=2.0, filter_scale=0.5)
    }
    algebras = {"quaternion": {}, 7: {"algebra": 6}}.get(
        choice.get("algebra", choice.get("rank")), {"algebra": 2}
    )
    assert sizes == {**algebras, "filter": 2, "vector": 2}
    described = phnn.analysis.describe(layer, rank=False)
    assert [found.name.removesuffix("_l0") for found in described] == ["weight_ih", "weight_hh"]
    if "algebra" in choice:
        assert all(found.match.name == "quaternion" for found in described)


def test_the_matrix_of_a_bidirectional_layer_is_described_by_components():
    layer = phnn.PHGRU(8, 16, 2, bidirectional=True, n=2)
    for found in phnn.analysis.describe(nn.Sequential(layer), rank=False):
        assert found.errors[-1] < 1e-6, found.name
        assert found.name.startswith("0.weight_")


def test_another_algebra_is_refused():
    fixed = phnn.PHGRU(8, 8, algebra="quaternion")
    learned = phnn.PHGRU(8, 8, n=4)
    with pytest.raises(RuntimeError, match=r'"A_ih_l0" holds a learned algebra.*quaternion.*n=4'):
        fixed.load_state_dict(learned.state_dict())
    learned.load_state_dict(fixed.state_dict())
    assert torch.equal(learned.A_hh_l0, fixed.A_hh_l0)


def test_repr_shows_the_algebra():
    layer = phnn.PHLSTM(8, 16, 2, batch_first=True, proj_size=4, n=4)
    assert repr(layer) == "PHLSTM(8, 16, num_layers=2, batch_first=True, proj_size=4, n=4)"
    assert repr(phnn.PHGRUCell(8, 16, algebra="quaternion")) == (
        "PHGRUCell(8, 16, algebra=quaternion)"
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: phnn.PHLSTM(8, 16), TypeError, "give n="),
        (lambda: phnn.PHLSTM(6, 16, n=4), ValueError, "n=4 must divide input_size=6; .* 4 and 8"),
        (lambda: phnn.PHGRU(8, 18, n=4), ValueError, "n=4 must divide hidden_size=18"),
        (lambda: phnn.PHLSTM(8, 16, proj_size=6, n=4), ValueError, "n=4 must divide proj_size=6"),
        (lambda: phnn.PHRNN(8, 16, nonlinearity="sin", n=4), ValueError, "sin"),
        (lambda: phnn.PHRNNCell(8, 16, nonlinearity="sin", n=4), ValueError, "sin"),
        (
            lambda: phnn.PHGRU(8, 16, n=4)(torch.randn(5, 3, 6)),
            ValueError,
            r"input_size=8 features in its last axis, got shape \(5, 3, 6\)",
        ),
        (
            lambda: phnn.PHGRU(8, 16, n=4)(torch.randn(0, 3, 8)),
            ValueError,
            r"at least one step, got input of shape \(0, 3, 8\)",
        ),
        (
            lambda: phnn.PHGRU(8, 16, n=4)(torch.randn(5, 3, 8), torch.zeros(1, 2, 16)),
            ValueError,
            r"state h of shape \(1, 3, 16\) for this input, got \(1, 2, 16\)",
        ),
        (
            lambda: phnn.PHGRU(8, 16, n=4)(
                PackedSequence(torch.randn(3, 8), torch.tensor([2, 1, 0]))
            ),
            ValueError,
            r"packed sequence of 3 steps with batch_sizes=\[2, 1, 0\]; leave empty sequences out",
        ),
        (
            lambda: phnn.PHLSTM(8, 16, n=4)(torch.randn(5, 3, 8), torch.zeros(1, 3, 16)),
            TypeError,
            r"a pair \(h, c\) of tensors, got Tensor",
        ),
        (
            lambda: phnn.PHGRUCell(8, 16, n=4)(torch.randn(3, 8).double()),
            TypeError,
            "parameters of torch.float32, got an input of torch.float64",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
