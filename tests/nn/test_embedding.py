"""The PH embedding, against torch's table with a slowly assembled weight."""

import pytest
import torch
from torch import nn

import phnn
from helpers.twins import slow_algebra, slow_kronecker_sum
from phnn import algebra
from phnn.testing import assert_close, assert_round_trips

CHOICES = {
    "learned": {"n": 4},
    "terms": {"n": 2, "terms": 3},
    "fixed": {"algebra": algebra.quaternion},
    "started": {"algebra": algebra.complex, "learn_algebra": True},
    "rank": {"n": 4, "rank": 4},
    "rank above terms": {"n": 4, "rank": 7},
    "any number of rows": {"n": (1, 4), "terms": 2},
    "low rank": {"n": (20, 1), "terms": 3},
}
every_choice = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())


@pytest.fixture
def rows():
    return torch.tensor([[0, 1, 3, 19], [3, 3, 7, 10]])


@every_choice
def test_equals_the_slow_twin(choice, rows):
    table = phnn.PHEmbedding(20, 8, dtype=torch.float64, **choice)
    H = slow_kronecker_sum(slow_algebra(table), table.F)
    assert_close(table(rows), nn.functional.embedding(rows, H), tolerance=1e-12)
    assert_close(table.weight, H, tolerance=1e-12)
    assert_close(table.to_dense()(rows), table(rows), tolerance=1e-12)


@every_choice
def test_keys_copies_and_gradients(choice, rows):
    table = phnn.PHEmbedding(20, 8, **choice)
    letters = {"A"} if table.rank is None else {"V", "W"} | ({"U"} if table.rank == 7 else set())
    assert set(table.state_dict()) == {*letters, "F"}
    table(rows).sum().backward()
    assert all(parameter.grad.any() for parameter in table.parameters())
    assert_round_trips(table, rows)


@pytest.mark.parametrize("options", [{}, {"scale_grad_by_freq": True}, {"padding_idx": -17}])
def test_gradients_are_those_of_the_assembled_table(options, rows):
    table = phnn.PHEmbedding(20, 8, dtype=torch.float64, **options, n=4)
    factor = torch.randn(2, 4, 8, dtype=torch.float64)
    names = [name for name, _ in table.named_parameters()]
    (table(rows) * factor).sum().backward()
    actual = {name: table.get_parameter(name).grad.clone() for name in names}
    table.zero_grad()
    H = slow_kronecker_sum(table.A, table.F)
    looked = nn.functional.embedding(rows, H, **{**options, "padding_idx": table.padding_idx})
    (looked * factor).sum().backward()
    for name in names:
        assert_close(actual[name], table.get_parameter(name).grad, tolerance=1e-12)


def test_the_padding_row_is_zero(rows):
    table = phnn.PHEmbedding(20, 8, padding_idx=3, n=4)
    assert not table(rows)[rows == 3].any()
    assert not table.weight[3].any()
    assert table.weight[2].any()
    assert table.to_dense().padding_idx == 3


@pytest.mark.parametrize("choice", [{"n": 4}, {"n": (20, 1), "terms": 3}], ids=str)
def test_sparse_gradients_equal_dense_ones(rows, choice):
    dense, sparse = (phnn.PHEmbedding(20, 8, sparse=kind, **choice) for kind in (False, True))
    sparse.load_state_dict(dense.state_dict())
    for table in (dense, sparse):
        table(rows).square().sum().backward()
    assert sparse.F.grad.is_sparse
    assert_close(sparse.F.grad.to_dense(), dense.F.grad)
    assert_close(sparse.A.grad, dense.A.grad)


def test_long_rows_are_scaled_to_the_largest_norm(rows):
    table = phnn.PHEmbedding(20, 8, max_norm=1.0, norm_type=1.0, n=4)
    plain = phnn.PHEmbedding(20, 8, n=4)
    plain.load_state_dict(table.state_dict())
    dense = plain.to_dense()
    expected = nn.functional.embedding(rows, dense.weight.detach().clone(), None, 1.0, 1.0)
    assert_close(table(rows), expected)


@pytest.mark.parametrize("choice", [{"n": 4}, {"algebra": "quaternion"}, {"n": 4, "rank": 7}])
def test_the_table_varies_as_torchs(choice):
    assert abs(phnn.PHEmbedding(400, 200, **choice).weight.std().item() - 1) < 0.05


def test_meta_low_precision_export_and_compile(rows):
    table = phnn.PHEmbedding(20, 8, device="meta", algebra="quaternion").to_empty(device="cpu")
    table.reset_parameters()
    assert torch.equal(table.A, algebra.quaternion.structure.float())
    expected = table(rows)
    program = torch.export.export(table, (rows,))
    assert_close(program.module()(rows), expected)
    compiled = torch.compile(table, fullgraph=True, backend="aot_eager")
    assert_close(compiled(rows), expected)
    low = phnn.PHEmbedding(20, 8, dtype=torch.bfloat16, algebra="quaternion")
    low.load_state_dict(table.state_dict())
    assert low(rows).dtype == torch.bfloat16
    assert_close(low(rows).float(), expected, tolerance=4e-2)
    twin = phnn.PHEmbedding.like(table.to_dense(), n=2)
    assert twin.n == 2


def test_maps_over_several_tables(rows):
    tables = [phnn.PHEmbedding(20, 8, n=4) for _ in range(2)]
    stacked = torch.func.stack_module_state(tables)
    outputs = torch.vmap(lambda *s: torch.func.functional_call(tables[0], s, (rows,)))(*stacked)
    for output, table in zip(outputs, tables, strict=True):
        assert_close(output, table(rows))


def test_gradcheck():
    table = phnn.PHEmbedding(4, 4, dtype=torch.float64, n=2)
    rows = torch.tensor([0, 3, 3])

    def function(A, F):
        return torch.func.functional_call(table, {"A": A, "F": F}, (rows,))

    assert torch.autograd.gradcheck(function, (table.A, table.F))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: phnn.PHEmbedding(21, 8, n=4), ValueError, "num_embeddings=21; .* 20 and 24"),
        (lambda: phnn.PHEmbedding(20, 6, n=4), ValueError, "embedding_dim=6; .* 4 and 8"),
        (lambda: phnn.PHEmbedding(20, 8, 20, n=4), ValueError, "padding_idx=20 is no row"),
        (lambda: phnn.PHEmbedding(20, 8, n=4)(torch.randn(2)), TypeError, "got torch.float32"),
        (lambda: phnn.PHEmbedding(20, 8, n=4)(torch.tensor([20])), IndexError, "out of range"),
        (lambda: phnn.PHEmbedding(20, 8, n=4)(torch.tensor([-1])), IndexError, "out of range"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_repr():
    assert repr(phnn.PHEmbedding(20, 8, 0, sparse=True, n=4)) == (
        "PHEmbedding(20, 8, padding_idx=0, sparse=True, n=4)"
    )
