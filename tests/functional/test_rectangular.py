"""Algebras that are not the paper's: A of any shape, computed with the fewest multiplications."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from helpers.twins import slow_components, slow_kronecker_sum
from phnn import functional
from phnn.functional import _choice, _layers
from phnn.testing import assert_close

COMPUTATIONS = (_choice.ASSEMBLED, _choice.FILTER_FIRST, _choice.MIX_FIRST)


def double(*shape, grad=False):
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


def make(terms, n_out, n_in, outputs, inputs, kernel, groups=1, transposed=False, grad=False):
    """A, F and a bias."""
    rows, columns = (inputs, outputs) if transposed else (outputs, inputs)
    A = double(terms, n_out, n_in, grad=grad)
    F = double(groups * terms * rows, columns, *kernel, grad=grad)
    return A, F, double(groups * n_out * outputs, grad=grad)


@pytest.fixture
def force(monkeypatch):
    """Makes all layers take one computation, where the inputs allow it."""

    def choose(computation):
        monkeypatch.setattr(_layers, "choose", lambda *_: computation)

    return choose


@pytest.fixture
def chosen(monkeypatch):
    """The computations that are chosen, as they come."""
    made = []
    choose = _choice.choose

    def keep(*arguments):
        made.append(choose(*arguments))
        return made[-1]

    monkeypatch.setattr(_layers, "choose", keep)
    return made


@given(
    sizes=st.tuples(*[st.integers(1, 4)] * 3, *[st.integers(1, 3)] * 3),
    dims=st.integers(0, 3),
    transposed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_kronecker_sum_equals_the_loops(sizes, dims, transposed):
    terms, n_out, n_in, outputs, inputs, groups = sizes
    A, F, _ = make(terms, n_out, n_in, outputs, inputs, [2, 3, 2][:dims], groups, transposed)
    H = functional.kronecker_sum(A, F, groups, transposed)
    assert_close(H, slow_kronecker_sum(A, F, groups, transposed), tolerance=1e-12)


SHAPES = [  # terms, n_out, n_in, channels of an output component, of an input component
    (2, 3, 1, 2, 4),
    (3, 6, 1, 1, 4),
    (2, 1, 3, 4, 2),
    (3, 1, 6, 4, 1),
    (2, 6, 4, 1, 1),
    (3, 4, 2, 2, 3),
    (1, 2, 3, 3, 2),
    (5, 2, 2, 2, 3),
    (1, 1, 1, 2, 3),
]
OPTIONS = [
    {},
    {"stride": 2, "padding": 1},
    {"padding": 2, "dilation": 2},
    {"padding": "same"},
]


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_convolutions_equal_the_loops(force, options, shape, groups, computation):
    A, F, bias = make(*shape, [3, 5], groups)
    x = double(2, groups * shape[2] * shape[4], 6, 5)
    expected = slow_components(x, A, F, bias, groups, **options)
    force(computation)
    assert_close(functional.conv2d(x, A, F, bias, groups=groups, **options), expected)
    last = functional.conv2d(
        x.contiguous(memory_format=torch.channels_last), A, F, bias, groups=groups, **options
    )
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert_close(last, expected)
    assert_close(functional.conv2d(x[0], A, F, bias, groups=groups, **options), expected[0])
    assert functional.conv2d(x[:0], A, F, None, groups=groups, **options).shape[0] == 0


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1, "output_padding": 1, "dilation": 2}], ids=str
)
def test_transposed_convolutions_equal_the_loops(force, options, shape, groups, computation):
    A, F, bias = make(*shape, [3, 2], groups, transposed=True)
    x = double(2, groups * shape[2] * shape[4], 4, 3)
    expected = slow_components(x, A, F, bias, groups, transposed=True, **options)
    force(computation)
    assert_close(functional.conv_transpose2d(x, A, F, bias, groups=groups, **options), expected)
    last = functional.conv_transpose2d(
        x.contiguous(memory_format=torch.channels_last), A, F, bias, groups=groups, **options
    )
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert_close(last, expected)


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
def test_linear_equals_the_loops(force, batch, shape, computation):
    A, F, bias = make(*shape, [])
    x = double(*batch, shape[2] * shape[4])
    force(computation)
    expected = slow_components(x, A, F, bias)
    assert_close(functional.linear(x, A, F, bias), expected)
    assert_close(functional.linear(x, A, F), expected - bias)


@pytest.mark.parametrize("dims", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES[:6], ids=str)
def test_other_dimensions_equal_the_loops(shape, transposed, dims):
    A, F, bias = make(*shape, [3, 2, 2][:dims], 2, transposed)
    x = double(2, 2 * shape[2] * shape[4], *[4, 3, 4][:dims])
    name = f"conv_transpose{dims}d" if transposed else f"conv{dims}d"
    y = getattr(functional, name)(x, A, F, bias, stride=2, padding=1, groups=2)
    assert_close(y, slow_components(x, A, F, bias, 2, transposed, stride=2, padding=1))


@pytest.mark.parametrize("computation", COMPUTATIONS[1:])
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3], SHAPES[5]], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients(force, transposed, shape, computation):
    force(computation)
    name = "conv_transpose2d" if transposed else "conv2d"
    tensors = make(*shape, [2, 2], 2, transposed, grad=True)
    x = double(2, 2 * shape[2] * shape[4], 3, 3, grad=True)

    def compute(*arguments):
        return getattr(functional, name)(*arguments, stride=2, groups=2)

    assert torch.autograd.gradcheck(compute, (x, *tensors))
    x, tensors = double(3, shape[2] * shape[4], grad=True), make(*shape, [], grad=True)
    assert torch.autograd.gradcheck(functional.linear, (x, *tensors))


def multiplications(function, *arguments, **options):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function(*arguments, **options)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(2, 6, 3, 4, 5), (3, 4, 1, 2, 6), (9, 3, 3, 4, 4)], ids=str)
def test_multiplications_are_counted_as_they_are(force, shape, transposed, stride):
    A, F, _ = make(*shape, [3, 3], 2, transposed)
    x = double(2, 2 * shape[2] * shape[4], 8, 8)
    sizes = _layers.Sizes.of(A.shape, F, 2, transposed)
    options = {"stride": stride, "padding": 1, "groups": 2}
    if transposed:
        options["output_padding"] = stride - 1
    function = functional.conv_transpose2d if transposed else functional.conv2d
    positions = 2 * 8 * 8 // (1 if transposed else stride**2)
    counts = {
        _choice.ASSEMBLED: sizes.assembled() * positions + sizes.assembly(),
        _choice.FILTER_FIRST: sizes.filter_first(stride**2) * positions,
        _choice.MIX_FIRST: sizes.mix_first(stride**2) * positions,
    }
    for computation, count in counts.items():
        force(computation)
        assert multiplications(function, x, A, F, **options) == count, computation


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 64, 1, 1, 64), _choice.FILTER_FIRST),
        ((4, 1, 64, 64, 1), _choice.MIX_FIRST),
        ((1, 8, 4, 8, 16), _choice.FILTER_FIRST),
        ((1, 4, 8, 16, 8), _choice.MIX_FIRST),
        ((2, 4, 4, 16, 16), _choice.FILTER_FIRST),
        ((6, 4, 4, 16, 16), _choice.ASSEMBLED),
        ((32, 8, 4, 8, 16), _choice.ASSEMBLED),
    ],
    ids=str,
)
def test_the_fewest_multiplications_are_taken(chosen, shape, expected):
    A, F, bias = (tensor.float() for tensor in make(*shape, [3, 3]))
    x = torch.randn(8, 64, 16, 16)
    y = functional.conv2d(x, A, F, bias, padding=1)
    with torch.autocast("cpu", torch.bfloat16):
        low = functional.conv2d(x, A, F, bias, padding=1)
    assert low.dtype == torch.bfloat16
    assert_close(low.float(), y, tolerance=0.05)
    lower = functional.conv2d(*(tensor.bfloat16() for tensor in (x, A, F, bias)), padding=1)
    assert_close(lower.float(), y, tolerance=0.05)
    with torch.no_grad():
        functional.conv2d(x, A, F, bias, padding=1)
    assert chosen == [expected] * 4


def test_few_positions_are_not_worth_an_assembly(chosen):
    A, F, _ = make(6, 4, 4, 16, 16, [3, 3])
    functional.conv2d(double(1, 64, 2, 2), A, F, padding=1)
    functional.conv2d(double(8, 64, 16, 16), A, F, padding=1)
    assert chosen == [_choice.FILTER_FIRST, _choice.ASSEMBLED]


CORNERS = [(4, 16, 1, 1, 16), (4, 1, 16, 16, 1)]


@pytest.mark.parametrize("shape", CORNERS, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_corners_are_two_plain_convolutions(shape, groups):
    A, F, bias = make(*shape, [3, 3], groups)
    x = double(2, groups * 16, 8, 8)
    with torch.no_grad(), torch.profiler.profile() as profile:
        functional.conv2d(x, A, F, bias, padding=1, groups=groups)
    calls = [event.name for event in profile.events()]
    assert calls.count("aten::conv2d") == 2
    assert "aten::bmm" not in calls
    A, F, bias = make(*shape, [])
    with torch.no_grad(), torch.profiler.profile() as profile:
        functional.linear(double(3, 16), A, F, bias)
    calls = [event.name for event in profile.events()]
    assert calls.count("aten::linear") == 2
    assert "aten::bmm" not in calls
    assert "aten::clone" not in calls


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        A, F, bias = (tensor.float() for tensor in make(*shape, [3, 3]))
        self.A, self.F, self.bias = map(nn.Parameter, (A, F, bias))

    def forward(self, x):
        return functional.conv2d(x, self.A, self.F, self.bias, padding=1)


@pytest.mark.parametrize("shape", [*CORNERS, (1, 2, 4, 8, 4), (9, 4, 2, 4, 8)], ids=str)
@pytest.mark.parametrize("strict", [True, False])
def test_exported_graphs_have_an_open_batch(shape, strict):
    layer, x = Layer(shape), torch.randn(3, 16, 8, 8)
    open_batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(layer, (x,), dynamic_shapes=open_batch, strict=strict).module()
    other = torch.randn(5, 16, 8, 8)
    assert_close(program(other), layer(other))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("shape", [*CORNERS, (1, 2, 4, 8, 4)], ids=str)
def test_traced_graphs_take_other_sizes(shape):
    layer = Layer(shape)
    A, F, bias = (parameter.detach() for parameter in layer.parameters())
    traced = torch.jit.trace(
        lambda x: functional.conv2d(x, A, F, bias, padding=1), torch.randn(2, 16, 8, 8)
    )
    other = torch.randn(3, 16, 5, 6)
    assert_close(traced(other), layer(other))


@pytest.mark.parametrize("shape", [*CORNERS, (1, 2, 4, 8, 4)], ids=str)
def test_compiled_in_one_graph_for_all_batches(shape):
    layer, graphs = Layer(shape), []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    compiled = torch.compile(layer, backend=keep, fullgraph=True)
    for batch in (2, 20, 40, 17):
        x = torch.randn(batch, 16, 8, 8)
        assert_close(compiled(x), layer(x))
    assert len(graphs) == 2  # for the first batch, and for all the others


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((6, 16, 1, 1, 16), _choice.FILTER_FIRST),
        ((6, 1, 16, 16, 1), _choice.MIX_FIRST),
        ((6, 4, 2, 32, 64), _choice.PRODUCTS),
    ],
)
def test_factors_may_be_rectangular(chosen, shape, expected):
    rank, n_out, n_in, outputs, inputs = shape
    for terms in (rank, 3):
        U = None if terms == rank else double(terms, rank)
        A = functional.Factors(U, double(n_in, rank), double(n_out, rank))
        assert A.shape == (terms, n_out, n_in) == A.tensor().shape
        F, bias = double(terms * outputs, inputs, 3, 3), double(n_out * outputs)
        x = double(4, n_in * inputs, 9, 9)
        y = functional.conv2d(x, A, F, bias, padding=1)
        assert_close(y, slow_components(x, A.tensor(), F, bias, padding=1))
        rows, bias = double(5, n_in * inputs), double(n_out * outputs)
        y = functional.linear(rows, A, F[..., 0, 0], bias)
        assert_close(y, slow_components(rows, A.tensor(), F[..., 0, 0], bias))
    assert chosen[0] == expected


@pytest.mark.parametrize(
    ("x", "bias", "message"),
    [
        (torch.ones(2, 15, 3, 3), None, "expected input.* to have 16 channels, but got 15"),
        (torch.ones(2, 16, 3, 3), torch.ones(1), "expected bias to be 1-dimensional with 16"),
        (torch.ones(2, 16, 3, 3).double(), None, "type"),
    ],
)
def test_errors_are_those_of_torch(x, bias, message):
    with pytest.raises(RuntimeError, match=message):
        functional.conv2d(x, torch.ones(2, 16, 1), torch.ones(2, 16, 3, 3), bias)
