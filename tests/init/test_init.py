import math

import pytest
import torch
from torch import nn

import phnn
from phnn import algebra, init
from phnn.functional import Factors
from phnn.testing import assert_close, assert_variance_of_torch

CHOICES = [
    *[{"n": n} for n in (1, 2, 3, 4, 8, 16)],
    *[{"n": 4, "terms": terms} for terms in (1, 2, 7, 16)],
    *[{"algebra": algebra.get(name)} for name in algebra.names()],
    {"algebra": algebra.cyclic(3)},
    {"algebra": algebra.matrix(2)},
    {"algebra": algebra.clifford(1, 1, 1)},
    {"algebra": algebra.octonion, "learn_algebra": True},
    *[{"n": 4, "rank": rank} for rank in (1, 3, 4, 7, 16)],
    *[{"n": n, "rank": rank} for n, rank in ((1, 1), (2, 3), (3, 5), (8, 24))],
    *[{"n": 4, "terms": terms, "rank": rank} for terms, rank in ((2, 3), (7, 7), (7, 9))],
    {"algebra": algebra.split_complex, "learn_algebra": True, "rank": 2},
    {"algebra": algebra.quaternion, "learn_algebra": True, "rank": 8},
]


def name(choice):
    return "-".join(getattr(value, "name", f"{key}{value}") for key, value in choice.items())


@pytest.mark.parametrize("choice", CHOICES, ids=name)
def test_the_weight_varies_as_torch_does(choice):
    """The sampling error of a width is about 1/sqrt(2 · entries): 1 % with 5,000 of them."""
    assert_variance_of_torch(phnn.PHLinear(480, 480, **choice))
    assert_variance_of_torch(phnn.PHConv2d(96, 192, 3, **choice))
    assert_variance_of_torch(phnn.PHConvTranspose2d(96, 192, 3, **choice))
    assert_variance_of_torch(phnn.PHConv1d(192, 192, 7, groups=2, **choice))
    assert_variance_of_torch(phnn.PHConvTranspose3d(192, 96, 3, groups=2, **choice))


def test_the_bias_varies_as_torch_does():
    layer, dense = phnn.PHLinear(64, 40_000, n=4), nn.Linear(64, 40_000)
    assert abs(layer.bias.std() / dense.bias.std() - 1).item() < 0.02


@pytest.mark.parametrize("distribution", ["normal", "orthonormal"])
@pytest.mark.parametrize(("terms", "n"), [(1, 4), (4, 4), (16, 4), (3, 3)])
def test_a_learned_algebra_has_squared_norm_n_squared(distribution, terms, n):
    A = init.algebra_(torch.empty(terms, n, n, dtype=torch.float64), distribution)
    assert math.isclose(A.square().sum().item(), n * n, rel_tol=1e-12)
    if distribution == "orthonormal":
        gram = A.flatten(1) @ A.flatten(1).T
        expected = torch.eye(terms, dtype=torch.float64) * n * n / terms
        assert torch.allclose(gram, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("terms", "n", "rank"), [(4, 4, 4), (4, 4, 7), (2, 4, 2), (2, 4, 3), (3, 3, 9), (8, 8, 24)]
)
def test_learned_factors_are_tight_frames_of_the_same_norm(terms, n, rank):
    V, W = (torch.empty(n, rank, dtype=torch.float64) for _ in range(2))
    U = torch.empty(terms, rank, dtype=torch.float64) if rank > terms else None
    A = init.factors_(Factors(U, V, W)).tensor()
    assert math.isclose(A.square().sum().item(), n * n, rel_tol=1e-12)
    for factor in (V, W) if U is None else (U, V, W):
        short = factor if factor.shape[0] <= factor.shape[1] else factor.T
        gram = short @ short.T
        assert_close(gram, gram[0, 0] * torch.eye(len(short), dtype=torch.float64))
        norms = short.norm(dim=0)
        assert (norms.max() / norms.min()).item() < 1.25


def test_factors_follow_the_seed_and_no_other_dtype_or_device():
    def draw(dtype):
        torch.manual_seed(3)
        return phnn.PHLinear(8, 8, n=4, rank=7, dtype=dtype)

    one, other, coarse = draw(torch.float64), draw(torch.float64), draw(torch.bfloat16)
    assert torch.equal(one.U, other.U)
    assert torch.equal(one.V.bfloat16(), coarse.V)


def test_unknown_distribution_and_criterion_are_named():
    with pytest.raises(ValueError, match="got 'uniform'"):
        init.algebra_(torch.empty(2, 2, 2), "uniform")
    with pytest.raises(ValueError, match="got 'lecun'"):
        init.polar_(phnn.PHLinear(4, 4, n=2), "lecun")
    with pytest.raises(ValueError, match="terms=3, n=2"):
        init.polar_(phnn.PHLinear(4, 4, n=2, terms=3))
    with pytest.raises(ValueError, match="no layers of limited rank, got rank=2"):
        init.authors_(phnn.PHLinear(4, 4, n=2, rank=2))


def test_authors_start_has_the_widths_that_were_published():
    """std(H) for 512 → 512, n=4: 0.00181 for a 3×3 convolution and 0.0054 for a linear layer."""
    conv = phnn.PHConv2d(512, 512, 3, bias=False, n=4)
    init.authors_(conv)
    n, d, s, k = 4, 512, 512, 3
    bound = math.sqrt(6 / ((d / n) * (s / n) * k**2 + s * k**2))
    assert abs(conv.F.abs().max().item() / bound - 1) < 1e-3
    assert conv.A.abs().max().item() <= math.sqrt(3) / n
    # given this A, the width of H follows from the norms
    expected = conv.F.std() * conv.A.norm() / n
    assert abs(conv.weight.std() / expected - 1).item() < 0.01
    widths = torch.tensor([_authors_width(phnn.PHLinear(512, 512, n=4)) for _ in range(20)])
    assert abs(widths.square().mean().sqrt().item() / 0.0054 - 1) < 0.05


def _authors_width(layer):
    init.authors_(layer)
    return layer.weight.std().item()


def test_authors_start_keeps_a_fixed_algebra():
    layer = phnn.PHLinear(8, 8, algebra=algebra.quaternion)
    init.authors_(layer)
    assert torch.equal(layer.A.double(), algebra.quaternion.structure)


@pytest.mark.parametrize("a", [algebra.complex, algebra.quaternion], ids=lambda a: a.name)
@pytest.mark.parametrize(("criterion", "fans"), [("glorot", 64 + 128), ("he", 64)])
def test_polar_start_has_a_chi_modulus_and_uniform_direction(a, criterion, fans):
    layer = phnn.PHConv2d(64 * a.n, 128 * a.n, 3, algebra=a)
    init.polar_(layer, criterion)
    components = layer.F.detach().unflatten(0, (a.n, -1)).flatten(1)
    modulus_squared = components.square().sum(0)
    # E|W|² = 2/fans · 1/k², and Var(χ²_n) = 2n gives Var|W|² = 2/n · E²
    mean = 2 / (fans * 9)
    assert abs(modulus_squared.mean().item() / mean - 1) < 0.02
    assert abs(modulus_squared.var().item() / (2 / a.n * mean**2) - 1) < 0.05
    direction = components / modulus_squared.sqrt()
    assert direction.mean(1).abs().max() < 0.01
    assert torch.allclose(direction.square().mean(1), torch.full((a.n,), 1 / a.n), atol=0.01)
    assert not layer.bias.any()


@pytest.mark.parametrize(
    "choice", [{"n": 4}, {"algebra": algebra.quaternion}, {"n": 4, "rank": 7}], ids=name
)
def test_zero_start_makes_a_branch_vanish_and_still_learn(choice):
    layer = phnn.PHConv2d(8, 8, 3, **choice)
    init.zero_(layer)
    x = torch.randn(2, 8, 5, 5)
    assert not layer(x).any()
    (layer(x) - 1).square().mean().backward()
    assert layer.F.grad.any()


@pytest.mark.parametrize(
    "choice",
    [{"n": 4}, {"n": 2, "terms": 3}, {"n": 4, "rank": 4}, {"n": 4, "rank": 7}]
    + [
        {"algebra": algebra.get(a), "learn_algebra": True, "rank": rank}
        for a, rank in (("split_complex", 2), ("complex", 3))
    ]
    + [{"algebra": algebra.get(a)} for a in ("complex", "quaternion", "matrix(2)", "cyclic(4)")],
    ids=name,
)
def test_identity_start_passes_the_input(choice):
    layer = phnn.PHConv2d(16, 16, 3, padding=1, groups=2, **choice)
    init.identity_(layer)
    x = torch.randn(2, 16, 5, 5)
    assert_close(layer(x), x)
    linear = phnn.PHLinear(8, 8, **choice)
    init.identity_(linear)
    assert_close(linear(x[:, :8, 0, 0]), x[:, :8, 0, 0])


@pytest.mark.parametrize("choice", [{"n": 4}, {"algebra": algebra.quaternion}])
@pytest.mark.parametrize("kind", [phnn.PHConv2d, phnn.PHConvTranspose2d])
def test_identity_start_draws_the_outputs_beyond_the_inputs(kind, choice):
    torch.manual_seed(0)
    layer = kind(8, 16, 3, padding=1, bias=False, **choice)
    init.identity_(layer, rest="random")
    x = torch.randn(2, 8, 5, 5)
    y = layer(x).unflatten(1, (4, 4))
    assert_close(y[:, :, :2].flatten(1, 2), x)
    assert (y[:, :, 2:].square().mean((0, 3, 4)) > 1e-3).all()
    init.identity_(layer)
    assert not layer(x).unflatten(1, (4, 4))[:, :, 2:].any()


def test_the_rest_of_an_identity_is_zero_or_random():
    with pytest.raises(ValueError, match=r"rest must be .* got 'noise'"):
        init.identity_(phnn.PHLinear(4, 4, n=2), rest="noise")


def test_identity_start_needs_a_unit():
    nilpotent = algebra.Algebra("nilpotent", [[[0, 0], [0, 0]], [[0, 0], [1, 0]]])
    with pytest.raises(ValueError, match="nilpotent has no unit"):
        init.identity_(phnn.PHLinear(4, 4, algebra=nilpotent))
    with pytest.raises(ValueError, match="rank=3 is too low for the identity of n=4, which needs"):
        init.identity_(phnn.PHLinear(8, 8, n=4, rank=3))


EXACT = ["complex", "quaternion", "tessarine", "cyclic(3)"]


@pytest.mark.parametrize(
    ("choice", "tolerance"),
    [
        *[({"algebra": name}, 1e-5) for name in EXACT],
        ({"n": 2}, 1e-4),
        ({"n": 4}, 0.2),
        ({"n": 4, "terms": 2}, 1e-2),
        ({"algebra": "octonion"}, 0.2),
    ],
    ids=str,
)
def test_orthogonal_start(choice, tolerance):
    torch.manual_seed(0)
    layer = phnn.PHLinear(48, 48, **choice)
    init.orthogonal_(layer, gain=0.5)
    assert (torch.linalg.svdvals(layer.weight) - 0.5).abs().max() < 0.5 * tolerance
    if layer.algebra is None:
        assert_close(layer.A.square().sum(), torch.tensor(float(layer.n**2)))
    wide = phnn.PHLinear(48, 24, **choice)
    init.orthogonal_(wide)
    assert (torch.linalg.svdvals(wide.weight) - 1).abs().max() < tolerance


def test_orthogonal_start_of_a_recurrence():
    lstm = phnn.PHLSTM(8, 24, 2, bidirectional=True, n=2)
    before = {name: tensor.clone() for name, tensor in lstm.state_dict().items()}
    init.orthogonal_(lstm)
    for layer in ("l0", "l1", "l0_reverse", "l1_reverse"):
        for gate in lstm.matrices[f"weight_hh_{layer}"].weight.chunk(4):
            assert (torch.linalg.svdvals(gate) - 1).abs().max() < 1e-3
    unchanged = [name for name, tensor in lstm.state_dict().items() if tensor.equal(before[name])]
    assert unchanged == [name for name in before if not name.startswith(("A_hh", "F_hh"))]
    init.orthogonal_(phnn.PHLSTM(8, 24, device="meta", n=2))
    with pytest.raises(ValueError, match=r"for matrices, got filters of shape \(4, 2, 3\)"):
        init.orthogonal_(phnn.PHConv1d(4, 4, 3, n=2))


def test_a_limited_algebra_gets_the_nearest_start_it_has():
    layer = phnn.PHLinear(48, 48, n=4, rank=7)
    before = layer.algebra_tensor.detach().clone()
    init.orthogonal_(layer)
    assert layer.algebra_tensor.shape == before.shape
    spread = torch.linalg.svdvals(layer.weight)
    assert spread.max() < 1.6
    assert 0.5 < spread.mean() < 1.1
