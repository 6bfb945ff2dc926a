import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import phnn
from helpers.twins import slow_kronecker_sum
from phnn import functional
from phnn.functional import _assembly
from phnn.testing import assert_close


@given(
    n=st.integers(1, 5),
    groups=st.integers(1, 3),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    dims=st.integers(0, 3),
    transposed=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_kronecker_sum_equals_the_loops(n, groups, rows, columns, dims, transposed, data):
    terms = data.draw(st.integers(1, n * n))
    A = torch.randn(terms, n, n, dtype=torch.float64)
    kernel = [2, 3, 2][:dims]
    F = torch.randn(groups * terms * rows, columns, *kernel, dtype=torch.float64)
    H = functional.kronecker_sum(A, F, groups, transposed)
    assert H.shape == (groups * n * rows, n * columns, *kernel)
    assert_close(H, slow_kronecker_sum(A, F, groups, transposed), tolerance=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_kronecker_sum_is_torch_kron(n):
    A, F = torch.randn(n, n, n), torch.randn(n * 3, 4)
    H = sum(torch.kron(A[i], F[i * 3 : i * 3 + 3]) for i in range(n))
    assert_close(functional.kronecker_sum(A, F), H)


def test_filters_that_do_not_split_are_refused():
    A, F = torch.ones(3, 2, 2), torch.ones(8, 2)
    with pytest.raises(ValueError, match=r"groups · terms = 2 · 3.*\(8, 2\)"):
        functional.kronecker_sum(A, F, groups=2)
    for rows in (1, 9):
        with pytest.raises(ValueError, match=r"groups · terms = 1 · 3.*\(8, 2\)"):
            functional.linear(torch.ones(rows, 4), A, F)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_functional_forms_equal_torch_with_the_assembled_weight(dims):
    A, F = torch.randn(2, 2, 2), torch.randn(8, 1, *[3] * dims)
    bias, x = torch.randn(8), torch.randn(2, 4, *[6] * dims)
    H = functional.kronecker_sum(A, F, groups=2)
    convolve = getattr(functional, f"conv{dims}d")
    expected = getattr(nn.functional, f"conv{dims}d")(x, H, bias, 2, 1, 1, 2)
    assert torch.equal(convolve(x, A, F, bias, 2, 1, 1, 2), expected)
    F = torch.randn(4, 4, *[3] * dims)
    bias = torch.randn(16)
    H = functional.kronecker_sum(A, F, groups=2, transposed=True)
    convolve = getattr(functional, f"conv_transpose{dims}d")
    expected = getattr(nn.functional, f"conv_transpose{dims}d")(x, H, bias, 2, 1, 1, 2)
    assert torch.equal(convolve(x, A, F, bias, 2, 1, 1, 2), expected)


def test_linear_equals_torch_with_the_assembled_weight():
    A, F, bias, x = torch.randn(2, 2, 2), torch.randn(8, 3), torch.randn(8), torch.randn(5, 6)
    expected = nn.functional.linear(x, functional.kronecker_sum(A, F), bias)
    assert torch.equal(functional.linear(x, A, F, bias), expected)


@pytest.fixture
def assemblies(monkeypatch):
    """The weights that are assembled, as they come."""
    made = []
    assemble = _assembly._kronecker_sum
    monkeypatch.setattr(
        _assembly, "_kronecker_sum", lambda *args: made.append(assemble(*args)) or made[-1]
    )
    return made


@pytest.mark.parametrize("terms", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("batch", [(), (1,), (2,)])
def test_filtering_first_is_the_same(assemblies, dims, groups, terms, batch):
    n, space, kernel = 3, [4, 3, 2][:dims], [3, 2, 3][:dims]
    A = torch.randn(terms, n, n, dtype=torch.double, requires_grad=True)
    F = torch.randn(groups * terms * 5, 40, *kernel, dtype=torch.double, requires_grad=True)
    bias = torch.randn(groups * n * 5, dtype=torch.double, requires_grad=True)
    x = torch.randn(*batch, groups * n * 40, *space, dtype=torch.double, requires_grad=True)
    options = {"stride": (2, 1, 1)[:dims], "padding": 2, "dilation": 2, "groups": groups}
    name = f"conv{dims}d"
    y = getattr(functional, name)(x, A, F, bias, **options)
    assert not assemblies
    H = functional.kronecker_sum(A, F, groups)
    expected = getattr(nn.functional, name)(x, H, bias, **options)
    assert_close(y, expected, tolerance=1e-12)
    inputs, weights = (x, A, F, bias), torch.randn_like(y)
    for ours, theirs in zip(
        torch.autograd.grad(y, inputs, weights),
        torch.autograd.grad(expected, inputs, weights),
        strict=True,
    ):
        assert_close(ours, theirs, tolerance=1e-12)


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_linear_filters_few_rows_first(assemblies, batch):
    A, F, bias = (
        torch.randn(2, 2, 2).double(),
        torch.randn(8, 20).double(),
        torch.randn(8).double(),
    )
    x = torch.randn(*batch, 40).double()
    y = functional.linear(x, A, F, bias)
    assert not assemblies
    assert_close(y, nn.functional.linear(x, functional.kronecker_sum(A, F), bias), tolerance=1e-12)


def test_the_smaller_of_weight_and_filtered_components_is_made(assemblies):
    A, F = torch.randn(4, 4, 4), torch.randn(8, 16, 3, 3)
    few, many = torch.randn(1, 64, 11, 13), torch.randn(1, 64, 12, 12)  # 4 · 143, 4 · 144; 64 · 9
    functional.conv2d(few, A, F, padding=1)
    functional.conv2d(many, A, F, padding=1, stride=2)
    functional.conv2d(few[..., :1, :1], A, F, padding=1, stride=2)
    functional.linear(few[0, :, 0].T, A, F[..., 0, 0])
    assert not assemblies
    functional.conv2d(many, A, F, padding=1)
    assert assemblies.pop().shape == (8, 64, 3, 3)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "case", ["autocast", "bfloat16", "int64", "empty", "traced", "many terms", "not square"]
)
def test_assembled_where_it_is_better_or_safer(assemblies, case):
    A, F, x = torch.randn(4, 4, 4), torch.randn(8, 16, 3, 3), torch.randn(2, 64, 3, 3)
    if case == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            functional.conv2d(x, A, F)
    elif case in ("bfloat16", "int64"):
        dtype = getattr(torch, case)
        functional.conv2d(x.to(dtype), A.to(dtype), F.to(dtype))
    elif case == "empty":
        assert functional.conv2d(x[:0], A, F).shape == (0, 8, 1, 1)
    elif case == "traced":
        traced = torch.jit.trace(lambda x: functional.conv2d(x, A, F, padding=1), x)
        longer = torch.randn(3, 64, 4, 5)
        assert_close(traced(longer), functional.conv2d(longer, A, F, padding=1))
    elif case == "many terms":
        functional.conv2d(x, torch.randn(8, 4, 4), F)
    else:
        assert functional.conv2d(x, torch.randn(4, 2, 4), F).shape == (2, 4, 1, 1)
    assert assemblies


def weights_of(graph):
    """Sizes of the weights that a graph convolves with."""
    return [
        tuple(node.args[1].meta["example_value"].shape)
        for node in graph.graph.nodes
        if node.target is torch.conv2d
    ]


@pytest.mark.skipif(
    not hasattr(torch.compiler, "is_exporting"),
    reason="this torch does not tell an exported graph from a compiled one",
)
def test_compiled_for_its_sizes_a_graph_filters_first():
    A, F = torch.randn(4, 4, 4), torch.randn(8, 16, 3, 3)
    made = []

    def keep(graph, _):
        made.append(weights_of(graph))
        return graph

    compiled = torch.compile(
        lambda x: functional.conv2d(x, A, F, padding=1), backend=keep, fullgraph=True
    )
    for batch in (2, 20, 40, 17):  # filters are smaller up to 28
        x = torch.randn(batch, 64, 5, 1)
        assert_close(compiled(x), functional.conv2d(x, A, F, padding=1))
    # one for the first batch and one, assembled, for all the others
    assert made == [[(8, 16, 3, 3)], [(8, 64, 3, 3)]]


@pytest.mark.parametrize("strict", [True, False])
def test_exported_graphs_assemble(strict):
    class Layer(nn.Module):
        def forward(self, x, A, F):
            return functional.conv2d(x, A, F, padding=1)

    example = torch.randn(2, 64, 3, 3), torch.randn(4, 4, 4), torch.randn(8, 16, 3, 3)
    program = torch.export.export(Layer(), example, strict=strict)
    (convolution,) = [
        node for node in program.graph.nodes if node.target is torch.ops.aten.conv2d.default
    ]
    assert convolution.args[1].meta["val"].shape == (8, 64, 3, 3)


@pytest.mark.parametrize(
    ("x", "bias", "message"),
    [
        (torch.ones(2, 60, 3, 3), None, "expected input.* to have 64 channels, but got 60"),
        (torch.ones(1, 2, 64, 3, 3), None, "Expected 3D .* or 4D .* input to conv2d"),
        (torch.ones(2, 64, 3, 3), torch.ones(1), "expected bias to be 1-dimensional with 8"),
        (torch.ones(2, 64, 3, 3).double(), None, "type"),
        (torch.ones(2, 64, 3, 3), torch.ones(8).double(), "type"),
    ],
)
def test_few_positions_have_the_errors_of_torch(x, bias, message):
    with pytest.raises(RuntimeError, match=message):
        functional.conv2d(x, torch.ones(4, 4, 4), torch.ones(8, 16, 3, 3), bias)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("which", ["input", "filters", "both", "none"])
def test_filtering_first_has_the_format_of_torch(assemblies, dims, which):
    last = (None, None, torch.channels_last, torch.channels_last_3d)[dims]
    A, F = torch.randn(4, 4, 4), torch.randn(8, 16, *[3] * dims)
    x = torch.randn(2, 64, *[3] * dims)
    x = x.contiguous(memory_format=last) if which in ("input", "both") else x
    F = F.contiguous(memory_format=last) if which in ("filters", "both") else F
    y = getattr(functional, f"conv{dims}d")(x, A, F, padding=1)
    assert not assemblies
    assert y.is_contiguous(memory_format=torch.contiguous_format if which == "none" else last)
    H = functional.kronecker_sum(A, F)
    assert_close(y, getattr(nn.functional, f"conv{dims}d")(x, H, padding=1))


def test_other_strides_are_no_format(assemblies):
    A = torch.randn(4, 4, 4)
    sequence = torch.randn(2, 5, 64).transpose(1, 2)
    assert functional.conv1d(sequence, A, torch.randn(8, 16, 3)).is_contiguous()
    image, F = torch.randn(2, 64, 1, 1), torch.randn(8, 16, 3, 3)
    assert functional.conv2d(image, A, F, padding=2).is_contiguous()
    assert functional.conv2d(image.expand(2, 64, 4, 4), A, F).is_contiguous()
    assert not assemblies


def test_assembly_stays_in_float32_under_autocast():
    A, F = torch.randn(4, 4, 4), torch.randn(16, 4)
    expected = functional.kronecker_sum(A, F)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        H = functional.kronecker_sum(A, F)
    assert H.dtype == torch.float32
    assert torch.equal(H, expected)


def factored(n, rank, terms):
    V, W = torch.randn(n, rank).double(), torch.randn(n, rank).double()
    return functional.Factors(None if rank == terms else torch.randn(terms, rank).double(), V, W)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("dims", "batch", "is_last"), [(1, 2, 0), (2, 0, 0), (2, 2, 0), (2, 2, 1)])
def test_products_are_zero_padded_to_whole_vectors(
    assemblies, dims, batch, is_last, groups, transposed
):
    A, inputs, outputs = factored(4, 5, terms=4), 17, 25
    rows, columns = (inputs, outputs) if transposed else (outputs, inputs)
    F = torch.randn(groups * 4 * rows, columns, *[3] * dims).double().requires_grad_()
    x = torch.randn(*[batch] * (batch > 0), groups * 4 * inputs, *[6] * dims).double()
    x = x.contiguous(memory_format=torch.channels_last) if is_last else x
    name = "conv_transpose" if transposed else "conv"
    y = getattr(functional, f"{name}{dims}d")(x, A, F, stride=2, groups=groups)
    assert not assemblies
    H = functional.kronecker_sum(A, F, groups, transposed)
    expected = getattr(nn.functional, f"{name}{dims}d")(x, H, stride=2, groups=groups)
    assert_close(y, expected, tolerance=1e-12)
    assert y.stride() == expected.stride()
    weights = torch.randn_like(y)
    (ours,), (theirs,) = (torch.autograd.grad(result, F, weights) for result in (y, expected))
    assert_close(ours, theirs, tolerance=1e-12)


@pytest.mark.parametrize(
    ("rank", "channels", "is_assembled"),
    [(4, 6, True), (4, 8, False), (7, 8, True), (7, 12, True), (7, 15, False), (8, 24, False)],
)
def test_narrow_products_are_assembled(assemblies, rank, channels, is_assembled):
    A = factored(4, rank, terms=4)
    x = torch.randn(8, 4 * channels, 9, 9).double()
    functional.conv2d(x, A, torch.randn(4 * channels, channels, 3, 3).double())
    assert bool(assemblies) == is_assembled


@pytest.mark.parametrize("terms", [4, 7])
def test_factored_algebras_compute_what_their_tensor_does(terms):
    V, W = torch.randn(2, 4, 7).double()
    U = torch.randn(terms, 7).double() if terms < 7 else None
    algebra = functional.Factors(U, V, W)
    F, x = torch.randn(2 * terms * 3, 2, 3, 3).double(), torch.randn(2, 16, 5, 5).double()
    expected = functional.conv2d(x, algebra.tensor(), F, padding=1, groups=2)
    assert_close(functional.conv2d(x, algebra, F, padding=1, groups=2), expected)
    H = functional.kronecker_sum(algebra, F, groups=2)
    assert_close(H, slow_kronecker_sum(algebra.tensor(), F, groups=2))
    F, x = torch.randn(terms * 3, 2).double(), torch.randn(2, 5, 8).double()
    assert_close(functional.linear(x, algebra, F), functional.linear(x, algebra.tensor(), F))


def test_compiled_convolutions_of_one_position_assemble():
    """Their grouped products leave channels last; eager and exported ones multiply."""
    layer = phnn.PHConv2d(256, 256, 1, n=4, rank=4).eval()
    x, graphs = torch.randn(2, 256, 8, 8), []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    with torch.no_grad():
        compiled = torch.compile(layer, backend=backend, dynamic=False)(x)
        assert torch.allclose(compiled, layer(x), atol=1e-5)
    assert "bmm" not in graphs[0].code
    program = torch.export.export(layer, (x,))
    assert "bmm" in program.graph_module.code
