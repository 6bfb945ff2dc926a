"""Norms and dropout over components, against loops over numbers and components."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import phnn
from phnn.testing import assert_close, assert_every_parameter_learns, assert_round_trips

BATCH = [phnn.ComponentBatchNorm, phnn.WhiteningBatchNorm]
NORMS = [*BATCH, phnn.ComponentLayerNorm]
every_batch_norm = pytest.mark.parametrize("cls", BATCH, ids=lambda cls: cls.__name__)
every_norm = pytest.mark.parametrize("cls", NORMS, ids=lambda cls: cls.__name__)
every_n = pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
SHAPES = [(40, 12), (9, 12, 5), (6, 12, 4, 3), (4, 12, 2, 3, 2)]


def draw(shape=(40, 12), dtype=torch.float64):
    """Correlated channels of different means and sizes."""
    x = torch.randn(shape, dtype=dtype).movedim(1, -1)
    mix = torch.randn(shape[1], shape[1], dtype=dtype)
    return (x @ mix + torch.randn(shape[1], dtype=dtype)).movedim(-1, 1)


def learn(norm):
    """Give a norm scales and biases that are not those of the start."""
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    return norm


def channels(x):
    """(channels, samples) of (batch, channels, *positions)."""
    return x.movedim(1, 0).flatten(1)


def slow_norm(norm, x):
    """One number after another."""
    n, numbers = norm.n, norm.num_features // norm.n
    rows, out = channels(x), torch.empty_like(channels(x))
    for c in range(numbers):
        members = [a * numbers + c for a in range(n)]
        values = torch.stack([rows[i] - rows[i].mean() for i in members])
        if isinstance(norm, phnn.WhiteningBatchNorm):
            covariance = values @ values.mT / values.shape[1]
            L = torch.linalg.cholesky(covariance + norm.eps * torch.eye(n, dtype=x.dtype))
            values = norm.weight[c] @ torch.linalg.solve_triangular(L, values, upper=False)
        else:
            variance = sum(value.square().mean() for value in values) / n
            values = norm.weight[c] * values / (variance + norm.eps).sqrt()
        for i, value in zip(members, values, strict=True):
            out[i] = value + norm.bias[i]
    return out.view(rows.shape[0], x.shape[0], *x.shape[2:]).movedim(0, 1)


@every_batch_norm
@every_n
@pytest.mark.parametrize("shape", SHAPES, ids=["2d", "3d", "4d", "5d"])
def test_equals_the_slow_twin(cls, n, shape):
    norm = learn(cls(12, dtype=torch.float64, n=n))
    x = draw(shape)
    assert_close(norm(x), slow_norm(norm, x), tolerance=1e-9)


@every_n
def test_whitened_components_are_uncorrelated(n):
    norm = phnn.WhiteningBatchNorm(12, eps=1e-10, affine=False, dtype=torch.float64, n=n)
    y = channels(norm(draw((400, 12))))
    for c in range(12 // n):
        number = y[c :: 12 // n]
        assert_close(number @ number.mT / 400, torch.eye(n, dtype=torch.float64), tolerance=1e-6)


def test_one_variance_keeps_the_ratios_of_components():
    x = draw()
    y = phnn.ComponentBatchNorm(12, affine=False, dtype=torch.float64, n=4)(x)
    centred = (x - x.mean(0)).view(40, 4, 3)
    assert_close(y.view(40, 4, 3) / y.view(40, 4, 3)[:, :1], centred / centred[:, :1], 1e-9)
    assert_close(y.view(40, 4, 3).square().mean((0, 1)), torch.ones(3, dtype=torch.float64), 1e-4)


@every_batch_norm
def test_one_component_is_torchs_norm(cls):
    norm, dense = cls(12, n=1), nn.BatchNorm2d(12)
    x = draw((6, 12, 4, 3), torch.float32)
    for _ in range(3):
        assert_close(norm(x), dense(x), tolerance=1e-4)
    assert_close(norm.running_mean, dense.running_mean)
    assert_close(norm.get_buffer(norm._statistic).flatten(), dense.running_var)
    assert_close(norm.eval()(x), dense.eval()(x), tolerance=1e-4)


@every_batch_norm
@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics_approach_those_of_the_data(cls, momentum):
    norm = learn(cls(12, momentum=momentum, dtype=torch.float64, n=4))
    x = draw((500, 12))
    for _ in range(60):
        expected = norm(x)
    norm.eval()
    assert_close(norm(x), expected, tolerance=5e-3)
    assert_close(norm(x)[:3], norm(x[:3]), tolerance=1e-12)
    assert norm.num_batches_tracked == 60
    norm.reset_running_stats()
    assert norm.num_batches_tracked == 0
    assert_close(norm.running_mean, torch.zeros(12))


@every_norm
def test_constant_and_single_inputs_give_finite_outputs_and_gradients(cls):
    single = torch.randn(1, 8)
    twins = torch.randn(64, 2).repeat(1, 4) * 1e3  # all components of a number are equal
    for x in (torch.full((16, 8), 3.7), torch.zeros(16, 8), single, twins):
        norm = cls(8, n=4)
        x = x.clone().requires_grad_()
        for _ in range(2):
            norm(x).sum().backward()
        assert norm(x).isfinite().all()
        assert x.grad.isfinite().all()
        assert all(p.grad.isfinite().all() for p in norm.parameters())
        assert all(tensor.isfinite().all() for tensor in norm.state_dict().values())
        assert norm.eval()(x).isfinite().all()
    norm = learn(cls(8, n=4)).train()
    if cls in BATCH:
        assert_close(norm(single), norm.bias[None])


@every_batch_norm
def test_without_running_statistics_and_without_scales(cls):
    norm = cls(12, affine=False, track_running_stats=False, n=3)
    assert not norm.state_dict()
    x = draw(dtype=torch.float32)
    assert torch.equal(norm.eval()(x), norm.train()(x))
    norm.reset_parameters()


@pytest.mark.parametrize("one_variance", [False, True])
def test_layer_norm_of_components(one_variance):
    norm = learn(phnn.ComponentLayerNorm(12, n=3, one_variance=one_variance, dtype=torch.float64))
    x = draw((2, 12, 5)).movedim(1, -1)
    if one_variance:
        centred = torch.cat([part - part.mean(-1, keepdim=True) for part in x.chunk(3, -1)], -1)
        expected = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    else:
        expected = torch.cat([nn.functional.layer_norm(part, (4,)) for part in x.chunk(3, -1)], -1)
    assert_close(norm(x), expected * norm.weight + norm.bias)
    assert set(phnn.ComponentLayerNorm(12, bias=False, n=3).state_dict()) == {"weight"}
    assert not phnn.ComponentLayerNorm(12, elementwise_affine=False, n=3).state_dict()
    whole = phnn.ComponentLayerNorm(12, n=1)
    assert_close(whole(x.float()), nn.functional.layer_norm(x.float(), (12,)))


@every_norm
def test_copies_gradients_meta_and_low_precision(cls):
    norm = learn(cls(8, dtype=torch.float64, n=4))
    x = draw((6, 8))
    assert_every_parameter_learns(norm, x)
    assert_round_trips(norm.eval(), x)
    names = [name for name, _ in norm.named_parameters()]
    x.requires_grad_()
    for mode in (True, False):
        norm.train(mode)
        norm.track_running_stats = not mode  # nothing is remembered between the calls

        def function(x, *parameters):
            return functional_call(norm, dict(zip(names, parameters, strict=True)), (x,))

        assert torch.autograd.gradcheck(function, (x, *norm.parameters()), atol=1e-4)
    norm = cls(8, n=4, device="meta").to_empty(device="cpu")
    norm.reset_parameters()
    x = x.detach().float()
    expected = norm(x)
    low = cls(8, n=4, dtype=torch.bfloat16)
    assert low(x.bfloat16()).dtype == torch.bfloat16
    assert_close(low(x.bfloat16()).float(), cls(8, n=4)(x.bfloat16().float()), tolerance=2e-2)
    mixed = cls(8, n=4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(mixed(x), expected)
        assert mixed(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.slow
@every_norm
def test_compiles(cls):
    norm, x = learn(cls(8, n=4)), draw((6, 8), torch.float32)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    for mode in (True, False):
        norm.train(mode)
        assert_close(compiled(x), norm(x))


@every_norm
def test_exports_and_maps(cls):
    norm, x = learn(cls(8, n=4)).eval(), draw((6, 8), torch.float32)
    expected = norm(x)
    assert_close(torch.export.export(norm, (x,)).module()(x), expected)
    assert_close(torch.vmap(norm)(torch.stack([x, x]))[1], expected)
    image = draw((2, 8, 3, 3), torch.float32).to(memory_format=torch.channels_last)
    if cls in BATCH:
        assert_close(norm(image), norm(image.contiguous()))
        assert norm(image).shape == image.shape


def test_dropout_drops_numbers_whole():
    drop = phnn.ComponentDropout(0.25, n=4)
    x = torch.ones(50, 12, 5, 5)
    y = drop(x)
    numbers = y.view(50, 4, 3, 5, 5)
    assert (numbers == numbers[:, :1]).all()
    assert abs((y == 0).float().mean().item() - 0.25) < 0.03
    assert_close(y.max(), torch.tensor(1 / 0.75))
    assert abs(y.mean().item() - 1) < 0.05
    last = phnn.ComponentDropout(0.5, n=3, dim=-1)(torch.ones(2, 5, 12)).view(2, 5, 3, 4)
    assert (last == last[:, :, :1]).all()
    assert 0 < last.mean() < 2
    inplace = phnn.ComponentDropout(1.0, inplace=True, n=3)
    assert inplace(x) is x
    assert not x.any()
    assert drop.eval()(y) is y
    assert phnn.ComponentDropout(0.0, n=3)(y) is y


def test_param_groups_leave_norms_without_decay():
    model = nn.Sequential(phnn.PHConv2d(8, 8, 3, n=4), phnn.WhiteningBatchNorm(8, n=4))
    groups = phnn.param_groups(model, lr=1.0, weight_decay=1e-3, vector_decay=0.0)
    sizes = {g["name"]: (len(g["params"]), g["weight_decay"]) for g in groups}
    assert sizes == {"algebra": (1, 1e-3), "weight": (1, 1e-3), "vector": (3, 0.0)}
    groups = phnn.param_groups(model, lr=1.0, norm_bias_scale=8.0)
    assert [g["lr"] for g in groups if g["name"] == "norm_bias"] == [8.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: phnn.ComponentBatchNorm(10, n=4), ValueError, "num_features=10; .* 8 and 12"),
        (lambda: phnn.WhiteningBatchNorm(3, n=4), ValueError, "num_features=3; the least is 4"),
        (lambda: phnn.ComponentLayerNorm(10, n=4), ValueError, "normalized_shape=10"),
        (lambda: phnn.ComponentLayerNorm(10, n=0), ValueError, "n=0 must be an integer"),
        (lambda: phnn.ComponentDropout(1.5, n=4), ValueError, "p=1.5 must be a probability"),
        (
            lambda: phnn.ComponentDropout(0.5, n=4)(torch.ones(2, 6, 8)),
            ValueError,
            r"channels on axis 1, got input of shape \(2, 6, 8\); dim= names another axis",
        ),
        (
            lambda: phnn.ComponentBatchNorm(8, n=4)(torch.ones(2, 4, 8)),
            ValueError,
            r"expects \(batch, 8, \*positions\), got input of shape \(2, 4, 8\)",
        ),
        (
            lambda: phnn.ComponentLayerNorm(8, n=4)(torch.ones(2, 4)),
            ValueError,
            r"8 features in its last axis, got input of shape \(2, 4\)",
        ),
        (
            lambda: phnn.ComponentBatchNorm(8, n=4)(torch.ones(2, 8).long()),
            TypeError,
            "got torch.int64",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_repr():
    assert repr(phnn.ComponentDropout(0.1, n=4)) == (
        "ComponentDropout(p=0.1, inplace=False, n=4, dim=1)"
    )
    assert repr(phnn.WhiteningBatchNorm(8, n=4)).endswith("track_running_stats=True, n=4)")
    assert repr(phnn.ComponentLayerNorm(8, n=4, one_variance=True)).endswith(
        "n=4, one_variance=True)"
    )
