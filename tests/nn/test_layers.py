"""The conformance suite: what every PH layer must do."""

import math
import shutil

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, stack_module_state
from torch.utils.flop_counter import FlopCounterMode

import phnn
from helpers.twins import slow_algebra, slow_layer
from phnn import algebra
from phnn.testing import (
    assert_close,
    assert_equals_dense,
    assert_every_parameter_learns,
    assert_round_trips,
)

CONVS = [phnn.PHConv1d, phnn.PHConv2d, phnn.PHConv3d]
TRANSPOSED = [phnn.PHConvTranspose1d, phnn.PHConvTranspose2d, phnn.PHConvTranspose3d]
LAYERS = [phnn.PHLinear, *CONVS, *TRANSPOSED]
CHOICES = {
    "learned": {"n": 4},
    "terms": {"n": 2, "terms": 3},
    "fixed": {"algebra": algebra.quaternion},
    "started": {"algebra": algebra.complex, "learn_algebra": True},
    "real": {"n": 1},
    "rank": {"n": 4, "rank": 4},
    "rank above terms": {"n": 4, "rank": 7},
    "rank below n": {"n": 4, "rank": 3, "terms": 2},
    "rank started": {"algebra": algebra.complex, "learn_algebra": True, "rank": 3},
}
LIMITED = [name for name in CHOICES if name.startswith("rank")]


def make(cls, inputs=8, outputs=16, **options):
    """A small layer of this class."""
    if cls is phnn.PHLinear:
        return cls(inputs, outputs, **options)
    return cls(inputs, outputs, 3, **{"padding": 1, **options})


def draw(layer, batch=(2,), size=6, dtype=torch.float32):
    """An input for this layer."""
    if isinstance(layer, phnn.PHLinear):
        return torch.randn(*batch, layer.in_features, dtype=dtype)
    return torch.randn(*batch, layer.in_channels, *[size] * layer.dims, dtype=dtype)


every_layer = pytest.mark.parametrize("cls", LAYERS, ids=lambda cls: cls.__name__)
every_choice = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
# what does not depend on the choice otherwise: once assembled, once as products
either_form = pytest.mark.parametrize(
    "choice", [{"n": 4}, {"n": 4, "rank": 7}], ids=["assembled", "products"]
)


@every_layer
@every_choice
def test_equals_the_slow_twin(cls, choice):
    layer = make(cls, dtype=torch.float64, **choice)
    x = draw(layer, dtype=torch.float64)
    assert_close(layer(x), slow_layer(layer, x), tolerance=1e-12)


@every_layer
@every_choice
def test_state_keys_and_shapes(cls, choice):
    layer = make(cls, **choice)
    n, terms, rank = layer.n, layer.terms, layer.rank
    if rank is None:
        algebra_shapes = {"A": (terms, n, n)}
    else:
        algebra_shapes = {"V": (n, rank), "W": (n, rank)}
        if rank > terms:
            algebra_shapes["U"] = (terms, rank)
    assert set(layer.state_dict()) == {*algebra_shapes, "F", "bias"}
    assert set(layer.algebra_names) == set(algebra_shapes)
    for name, shape in algebra_shapes.items():
        assert layer.state_dict()[name].shape == shape
    learned = {name for name, _ in layer.named_parameters()}
    assert learned == {"F", "bias", *(algebra_shapes if layer.learns_algebra else {})}
    assert layer.algebra_tensor.shape == (terms, n, n)
    dense = layer.to_dense()
    rows, columns, *kernel = dense.weight.shape
    assert layer.F.shape == (rows * terms // n, columns // n, *kernel)
    assert layer.weight.shape == dense.weight.shape
    assert type(dense).__name__ == cls.__name__.removeprefix("PH")


@every_layer
def test_keys_without_bias(cls):
    layer = make(cls, n=2, bias=False)
    assert set(layer.state_dict()) == {"A", "F"}
    assert layer.bias is None
    assert_equals_dense(layer, draw(layer))
    limited = make(cls, n=2, rank=2, bias=False)
    assert set(limited.state_dict()) == {"V", "W", "F"}
    assert_equals_dense(limited, draw(limited))


@every_layer
@every_choice
def test_copies_and_every_parameter_learns(cls, choice):
    layer = make(cls, **choice)
    x = draw(layer)
    layer(x).sum().backward()  # a graph must not get in the way of copying
    assert_round_trips(layer, x)
    assert_every_parameter_learns(layer, x)


@every_layer
@either_form
def test_the_bias_is_applied(cls, choice):
    layer = make(cls, **choice)
    x = draw(layer)
    before = layer(x)
    with torch.no_grad():
        layer.bias += 100
    assert_close(layer(x), before + 100)


@every_layer
@either_form
def test_unbatched_input_and_extra_axes(cls, choice):
    layer = make(cls, **choice)
    x = draw(layer)
    assert_close(layer(x[0]), layer(x)[0])
    if cls is phnn.PHLinear:
        x = torch.randn(2, 3, 5, 8)
        assert layer(x).shape == (2, 3, 5, 16)


@every_layer
@either_form
def test_an_empty_batch_passes(cls, choice):
    layer = make(cls, **choice)
    assert layer(draw(layer, batch=(0,))).shape[0] == 0


@every_layer
@pytest.mark.parametrize("choice", ["learned", "fixed", *LIMITED])
def test_meta_device_then_empty_then_reset(cls, choice):
    layer = make(cls, device="meta", **CHOICES[choice])
    assert all(tensor.is_meta for tensor in layer.state_dict().values())
    layer = layer.to_empty(device="cpu")
    for tensor in layer.state_dict().values():
        tensor.fill_(7)
    layer.reset_parameters()
    assert not any((tensor == 7).any() for tensor in layer.state_dict().values())
    if choice in ("fixed", "rank started"):
        assert_close(layer.algebra_tensor, layer.algebra.structure)
    x = draw(layer)
    assert layer(x).isfinite().all()
    assert_round_trips(layer, x)
    with torch.device("meta"):
        abstract = make(cls, **CHOICES[choice])
        assert abstract(draw(abstract)).shape == layer(x).shape


@every_layer
@pytest.mark.parametrize("choice", ["learned", "terms", "fixed", *LIMITED])
def test_gradients_in_float64(cls, choice):
    layer = make(cls, inputs=4, outputs=4, dtype=torch.float64, **CHOICES[choice])
    x = draw(layer, batch=(1,), size=3, dtype=torch.float64).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def function(x, *parameters):
        return functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, (x, *layer.parameters()), fast_mode=True)


@every_layer
@either_form
def test_low_precision_and_autocast(cls, choice):
    layer = make(cls, **choice)
    x = draw(layer)
    expected = layer(x)
    low = make(cls, dtype=torch.bfloat16, **choice)
    low.load_state_dict(layer.state_dict())
    assert low.algebra_tensor.dtype == low.F.dtype == torch.bfloat16
    output = low(x.bfloat16())
    assert output.dtype == torch.bfloat16
    assert_close(output.float(), expected, tolerance=4e-2)
    dense = layer.to_dense()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, folded = layer(x), dense(x)
        assert layer.weight.dtype == torch.float32
    assert output.dtype == torch.bfloat16
    if layer.rank is None:
        # assembled in float32 and rounded once, exactly as the folded layer's weight is
        assert torch.equal(output, folded)
    assert_close(output.float(), expected, tolerance=4e-2)


@pytest.mark.parametrize("cls", [phnn.PHConv2d, phnn.PHConvTranspose2d, phnn.PHConv3d])
@either_form
def test_channels_last_in_and_out(cls, choice):
    layer = make(cls, **choice)
    x = draw(layer)
    expected = layer(x)
    last = torch.channels_last if layer.dims == 2 else torch.channels_last_3d
    layer.to(memory_format=last)
    output = layer(x.to(memory_format=last))
    assert output.is_contiguous(memory_format=last)
    assert_close(output, expected)


@every_layer
@pytest.mark.parametrize("choice", ["learned", "fixed", "rank", "rank above terms"])
def test_exports_without_a_trace_of_autocast(cls, choice):
    layer = make(cls, **CHOICES[choice]).eval()
    x = draw(layer)
    program = torch.export.export(layer, (x,))
    assert "autocast" not in str(program.graph)
    assert_close(program.module()(x), layer(x))


@every_layer
@either_form
def test_exports_with_a_dynamic_batch(cls, choice):
    layer = make(cls, **choice).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(layer, (draw(layer),), dynamic_shapes=({0: batch},))
    x = draw(layer, batch=(5,))
    assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize(
    ("cls", "choice"),
    [(cls, "learned") for cls in LAYERS]
    + [(cls, "rank above terms") for cls in (phnn.PHLinear, phnn.PHConv2d, phnn.PHConvTranspose1d)],
)
def test_compiles_whole(cls, choice):
    layer = make(cls, **CHOICES[choice])
    x = draw(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # inductor's own
@pytest.mark.parametrize("cls", [phnn.PHLinear, phnn.PHConv2d, phnn.PHConvTranspose2d])
@either_form
def test_compiles_with_inductor(cls, choice):
    layer = make(cls, **choice)
    x = draw(layer)
    compiled = torch.compile(layer, fullgraph=True)
    assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()
    assert layer.F.grad is not None


@every_layer
@either_form
def test_vmap_over_an_ensemble(cls, choice):
    ensemble = [make(cls, **choice) for _ in range(3)]
    parameters, buffers = stack_module_state(ensemble)
    x = draw(ensemble[0])
    template = make(cls, device="meta", **choice)

    def call(parameters, buffers):
        return functional_call(template, (parameters, buffers), (x,))

    outputs = torch.func.vmap(call)(parameters, buffers)
    for output, member in zip(outputs, ensemble, strict=True):
        assert_close(output, member(x))


@every_layer
@either_form
def test_writes_to_the_weight_vanish(cls, choice):
    layer = make(cls, **choice)
    x = draw(layer)
    before = layer(x)
    with torch.no_grad():
        layer.weight.zero_()
    assert torch.equal(layer(x), before)
    for value in (torch.zeros_like(layer.weight), nn.Parameter(torch.zeros_like(layer.weight))):
        with pytest.raises(AttributeError, match=r"cannot be set; phnn\.decompose\.nearest finds"):
            layer.weight = value


@every_layer
@pytest.mark.parametrize("choice", LIMITED)
def test_a_layer_with_a_rank_multiplies_its_factors_out(cls, choice):
    layer = make(cls, dtype=torch.float64, **CHOICES[choice])
    assert "A" not in layer.state_dict()
    assert_close(layer.algebra_tensor, slow_algebra(layer), tolerance=1e-14)
    before = layer(x := draw(layer, dtype=torch.float64))
    with torch.no_grad():
        layer.algebra_tensor.zero_()  # vanishes, as a write to the weight does
    assert torch.equal(layer(x), before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.algebra_tensor, layer.factors.tensor())
        assert layer.algebra_tensor.dtype == torch.float64


def test_as_many_products_as_terms_start_in_another_basis_of_the_algebra():
    """The split-complex numbers are two copies of the reals; F is drawn for these."""
    started = {"algebra": algebra.split_complex, "learn_algebra": True, "rank": 2}
    layer = phnn.PHLinear(4, 4, dtype=torch.float64, **started)
    assert set(layer.state_dict()) == {"V", "W", "F", "bias"}
    both = torch.cat([layer.algebra_tensor.flatten(1), algebra.split_complex.structure.flatten(1)])
    assert torch.linalg.matrix_rank(both) == 2


class Multiplications(FlopCounterMode):
    """Counts every multiplication once; torch's own count of a backward forgets the groups."""

    def __init__(self):
        super().__init__(display=False, custom_mapping={torch.ops.aten.convolution_backward: _back})

    def count(self):
        return self.get_total_flops() / 2


def _back(gradient, x, weight, *options, **_):
    transposed, mask = options[-4], options[-1]
    space = x[2:] if transposed else gradient[2:]
    return sum(mask[:2]) * 2 * x[0] * math.prod(weight) * math.prod(space)


@pytest.mark.parametrize("rank", [4, 7])
def test_forward_and_backward_cost_rank_by_n_squared(rank):
    n, channels, size = 4, 64, 8
    counts = {}
    for name, layer in {
        "dense": nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        "rank": phnn.PHConv2d(channels, channels, 3, padding=1, bias=False, n=n, rank=rank),
    }.items():
        x = torch.randn(2, channels, size, size, requires_grad=True)
        with Multiplications() as forward:
            y = layer(x)
        with Multiplications() as backward:
            y.sum().backward()
        counts[name] = forward.count(), backward.count()
    positions = 2 * size**2
    assert counts["dense"] == (positions * 9 * channels**2, 2 * positions * 9 * channels**2)
    convolution = positions * 9 * channels**2 * rank / n**2
    mixes = 2 * positions * channels * rank  # n → rank of every channel, and back
    filters = 9 * channels**2 / n**2 * rank * n if rank > n else 0
    assert counts["rank"][0] == convolution + mixes + filters
    assert counts["rank"][1] == 2 * counts["rank"][0]
    assert sum(counts["rank"]) / sum(counts["dense"]) < 1.2 * rank / n**2


def test_repr_shows_the_algebra():
    assert repr(phnn.PHLinear(8, 16, n=4)) == (
        "PHLinear(in_features=8, out_features=16, bias=True, n=4)"
    )
    conv = phnn.PHConv2d(8, 8, 3, 2, "valid", 2, 2, False, "circular", n=2, terms=3)
    assert repr(conv) == (
        "PHConv2d(8, 8, kernel_size=(3, 3), stride=(2, 2), padding=valid, dilation=(2, 2), "
        "groups=2, padding_mode=circular, bias=False, n=2, terms=3)"
    )
    started = phnn.PHConvTranspose1d(
        8, 8, 3, stride=2, output_padding=1, algebra=algebra.dual, learn_algebra=True
    )
    assert repr(started) == (
        "PHConvTranspose1d(8, 8, kernel_size=(3,), stride=(2,), output_padding=(1,), "
        "algebra=dual, learn_algebra=True)"
    )
    assert repr(phnn.PHLinear(8, 16, n=4, rank=3)) == (
        "PHLinear(in_features=8, out_features=16, bias=True, n=4, terms=3, rank=3)"
    )


@every_layer
def test_a_learned_state_is_refused_by_a_fixed_layer(cls):
    fixed = make(cls, algebra=algebra.quaternion)
    before = fixed.A.clone()
    learned = make(cls, n=4)
    with pytest.raises(RuntimeError, match=r'"A" holds a learned algebra.*quaternion.*n=4'):
        fixed.load_state_dict(learned.state_dict())
    other = make(cls, algebra=algebra.tessarine)
    with pytest.raises(RuntimeError, match=r"holds tessarine.*fixed algebra quaternion"):
        fixed.load_state_dict(other.state_dict())
    assert torch.equal(fixed.A, before)
    learned.load_state_dict(fixed.state_dict())  # the other way is fine: a start
    assert torch.equal(learned.A, before)


def test_refusal_names_the_layer_inside_a_model():
    fixed = nn.Sequential(nn.Flatten(), phnn.PHLinear(8, 8, algebra=algebra.quaternion))
    learned = nn.Sequential(nn.Flatten(), phnn.PHLinear(8, 8, n=4))
    with pytest.raises(RuntimeError, match=r'"1\.A" holds a learned algebra'):
        fixed.load_state_dict(learned.state_dict())


def test_quaternion_convolution_is_the_hamilton_product():
    """Equation 3 of the paper, written out by hand."""
    layer = phnn.PHConv2d(4 * 8, 4 * 8, 3, padding=1, bias=False, algebra=algebra.quaternion)
    w0, w1, w2, w3 = layer.F.chunk(4)
    rows = [(w0, -w1, -w2, -w3), (w1, w0, -w3, w2), (w2, w3, w0, -w1), (w3, -w2, w1, w0)]
    weight = torch.cat([torch.cat(row, dim=1) for row in rows])
    x = torch.randn(2, 32, 9, 9)
    assert_close(layer(x), nn.functional.conv2d(x, weight, padding=1))


def test_a_linear_layer_of_one_number_is_the_product_of_the_algebra():
    for name in algebra.names():
        a = algebra.get(name)
        layer = phnn.PHLinear(a.n, a.n, bias=False, dtype=torch.float64, algebra=a)
        x = torch.randn(5, a.n, dtype=torch.float64)
        assert_close(layer(x), a.multiply(layer.F[:, 0], x), tolerance=1e-12)


def test_terms_of_n_squared_represent_any_weight():
    n = 3
    layer = phnn.PHLinear(6, 9, n=n, terms=n * n, bias=False, dtype=torch.float64)
    weight = torch.randn(9, 6, dtype=torch.float64)
    with torch.no_grad():
        layer.A.copy_(torch.eye(n * n, dtype=torch.float64).view(n * n, n, n))
        layer.F.copy_(weight.view(n, 3, n, 2).transpose(1, 2).reshape(n * n * 3, 2))
    assert torch.equal(layer.weight, weight)


@pytest.mark.parametrize("cls", CONVS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, 2, "same", "valid"])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("rank", [None, 3])
def test_padding_modes_equal_torch(cls, padding_mode, padding, rank):
    options = {"padding": padding, "padding_mode": padding_mode, "n": 2, "rank": rank}
    layer = cls(4, 8, 3, dilation=2, **options)
    assert_equals_dense(layer, draw(layer))
    even = cls(4, 8, 2, **options)
    assert_equals_dense(even, draw(even))


@st.composite
def convolutions(draw):
    cls = draw(st.sampled_from([*CONVS, *TRANSPOSED]))
    n = draw(st.integers(1, 4))
    groups = draw(st.integers(1, 3))
    inputs, outputs = (n * groups * draw(st.integers(1, 3)) for _ in range(2))
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    options = {
        "kernel_size": draw(st.integers(1, 3)),
        "stride": stride,
        "padding": draw(st.integers(0, 2)),
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
        "n": n,
        "terms": (terms := draw(st.integers(1, n * n))),
        "rank": draw(st.none() | st.integers(terms, n * n)),
    }
    if cls in TRANSPOSED:
        options["output_padding"] = draw(st.integers(0, max(stride, dilation) - 1))
    else:
        modes = ["zeros", "reflect", "replicate", "circular"]
        options["padding_mode"] = draw(st.sampled_from(modes))
    return cls, inputs, outputs, options


@given(convolutions(), st.integers(4, 7), st.booleans())
@settings(max_examples=60, deadline=None)
def test_drawn_convolutions_equal_slow_twin_and_torch(convolution, size, batched):
    cls, inputs, outputs, options = convolution
    layer = cls(inputs, outputs, dtype=torch.float64, **options)
    x = draw(layer, batch=(2,) if batched else (), size=size, dtype=torch.float64)
    try:
        expected = slow_layer(layer, x)
    except RuntimeError:  # the kernel is larger than the padded input: torch has no output either
        assume(False)
    assert_close(layer(x), expected, tolerance=1e-12)
    assert_equals_dense(layer, x)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.data())
@settings(max_examples=30, deadline=None)
def test_drawn_linear_layers_equal_slow_twin(n, rows, columns, data):
    terms = data.draw(st.integers(1, n * n))
    rank = data.draw(st.none() | st.integers(terms, n * n))
    layer = phnn.PHLinear(n * columns, n * rows, n=n, terms=terms, rank=rank, dtype=torch.float64)
    x = draw(layer, dtype=torch.float64)
    assert_close(layer(x), slow_layer(layer, x), tolerance=1e-12)
    assert_equals_dense(layer, x)


@pytest.mark.parametrize("cls", TRANSPOSED, ids=lambda cls: cls.__name__)
def test_output_size_chooses_among_the_open_sizes(cls):
    layer = cls(4, 4, 3, stride=2, padding=1, n=2, rank=3)
    dense = layer.to_dense()
    x = draw(layer)
    for size in (11, 12):
        for output_size in ([size] * layer.dims, [2, 4, *[size] * layer.dims]):
            assert_close(layer(x, output_size=output_size), dense(x, output_size=output_size))
    with pytest.raises(ValueError, match=r"13.*valid sizes range from \(11.*to \(12"):
        layer(x, output_size=[13] * layer.dims)
    with pytest.raises(ValueError, match="spatial sizes"):
        layer(x, output_size=[12] * (layer.dims + 3))


def test_to_dense_keeps_mode_and_requires_grad():
    layer = phnn.PHConv2d(4, 4, 3, n=2).eval()
    layer.F.requires_grad_(False)
    dense = layer.to_dense()
    assert not dense.training
    assert not dense.weight.requires_grad
    assert dense.bias.requires_grad
    dense.bias.data.zero_()
    assert layer.bias.any()  # a copy, not a view


def test_a_fixed_algebra_loads_in_every_precision():
    rule = [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.3], [1.0, 0.0]]]
    layer = phnn.PHLinear(8, 8, algebra=algebra.Algebra("mine", rule))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        state = {name: value.to(dtype) for name, value in layer.state_dict().items()}
        other = phnn.PHLinear(8, 8, algebra=layer.algebra)
        other.load_state_dict(state)
        assert torch.equal(other.A, layer.A)  # not as the file has rounded it
        other.load_state_dict(state, assign=True)
        assert other.A.dtype == dtype
    state["A"] = state["A"] + 1e-3
    with pytest.raises(RuntimeError, match="holds a learned algebra"):
        layer.load_state_dict(state)


def test_tracing_by_fx_names_the_way():
    model = nn.Sequential(phnn.PHLinear(8, 8, n=2))
    with pytest.raises(TypeError, match=r"is_leaf_module.*phnn\.to_dense\(model\)"):
        torch.fx.symbolic_trace(model)
    torch.fx.symbolic_trace(phnn.to_dense(model))


def test_an_infinite_entry_does_not_excuse_the_others():
    infinite = float("inf")
    assert_close(torch.tensor([infinite, 7.0]), torch.tensor([infinite, 7.0]))
    with pytest.raises(AssertionError):
        assert_close(torch.tensor([infinite, 0.0]), torch.tensor([infinite, 7.0]))
