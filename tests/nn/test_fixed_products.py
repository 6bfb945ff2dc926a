"""Fixed algebras compute with their few products where that pays."""

import pytest
import torch
from torch import nn

import phnn
from phnn.analysis.counting import count_multiplications
from phnn.nn import _constants as constants

WIDE = {
    "conv": (phnn.PHConv2d(256, 256, 3, padding=1, algebra="quaternion"), (2, 256, 6, 6), 8 / 16),
    "strided": (phnn.PHConv2d(256, 256, 3, stride=2, algebra="complex"), (2, 256, 9, 9), 3 / 4),
    "matrices": (phnn.PHConv1d(256, 256, 5, groups=1, algebra="matrix(2)"), (3, 256, 40), 7 / 16),
    "linear": (phnn.PHLinear(1024, 1024, algebra="quaternion"), (300, 1024), 8 / 16),
    "transposed": (
        phnn.PHConvTranspose2d(256, 256, 3, algebra="quaternion"),
        (2, 256, 6, 6),
        8 / 16,
    ),
    "each product": (
        phnn.PHConvTranspose2d(256, 256, 3, algebra="complex"),
        (2, 256, 6, 6),
        3 / 4,
    ),
}


def learned(layer):
    """The same layer with a learned algebra, which assembles its weight."""
    twin = phnn.nn.PHLayer.like.__func__(
        type(layer), layer.to_dense(), algebra=layer.algebra, learn_algebra=True
    )
    twin.load_state_dict(layer.state_dict())
    return twin


@pytest.mark.parametrize("kind", WIDE)
def test_numbers_gradients_and_work(kind):
    layer, shape, share = WIDE[kind]
    twin, x = learned(layer), torch.randn(shape)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    ours, theirs = layer(inputs[0]), twin(inputs[1])
    scale = theirs.abs().max()
    assert torch.allclose(ours / scale, theirs / scale, atol=1e-5)
    weights = torch.randn_like(ours)
    for output in (ours, theirs):
        (output * weights).sum().backward()
    for one, other in ((inputs[0], inputs[1]), (layer.F, twin.F), (layer.bias, twin.bias)):
        assert torch.allclose(one.grad, other.grad, atol=1e-4 * other.grad.abs().max())
    ratio = count_multiplications(layer, x) / count_multiplications(layer.to_dense(), x)
    assert share < ratio < share + 0.2  # and some for the mixing


def test_narrow_layers_and_few_positions_assemble():
    x = torch.randn(2, 32, 8, 8)
    narrow = phnn.PHConv2d(32, 32, 3, algebra="quaternion")
    assert torch.equal(narrow(x), nn.functional.conv2d(x, narrow.weight, narrow.bias))
    wide, row = phnn.PHLinear(1024, 1024, algebra="quaternion"), torch.randn(1, 1024)
    assert count_multiplications(wide, row) >= count_multiplications(wide.to_dense(), row)


def test_low_precision_and_traces_assemble():
    layer = phnn.PHConv2d(256, 256, 3, algebra="quaternion")
    x = torch.randn(2, 256, 6, 6)
    with torch.no_grad():
        half = layer.bfloat16()
        weight = half.weight
        assert torch.equal(
            half(x.bfloat16()), nn.functional.conv2d(x.bfloat16(), weight, half.bias)
        )
    layer = layer.float()
    program = torch.export.export(layer.eval(), (x,))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "aten.einsum.default" in names
    assert not any("bmm" in name for name in names)
    assert torch.allclose(program.module()(x), layer(x), atol=1e-4)


def test_the_factors_are_no_state():
    layer = phnn.PHConv2d(256, 256, 3, algebra="quaternion")
    keys = set(vars(layer)), layer.state_dict().keys()
    with torch.inference_mode():  # a constant that is made here must serve training, too
        constants._FACTORS.clear()
        layer(torch.randn(2, 256, 6, 6))
    assert (set(vars(layer)), layer.state_dict().keys()) == keys
    layer(torch.randn(2, 256, 6, 6)).sum().backward()
    assert layer.F.grad.any()
    cpu = torch.device("cpu")
    found = constants.constant_factors(layer.algebra, cpu, torch.float32)
    assert constants.constant_factors(phnn.algebra.quaternion, cpu, torch.float32) is found
    assert constants.constant_factors(layer.algebra, cpu, torch.float64).V.dtype == torch.float64


def test_algebras_without_fewer_products():
    cpu = torch.device("cpu")
    assert constants.constant_factors(phnn.algebra.real, cpu, torch.float32) is None


def test_a_tracer_leaves_nothing_behind():
    from torch._subclasses.fake_tensor import FakeTensorMode

    layer, x = phnn.PHConv2d(256, 256, 3, algebra="complex"), torch.randn(2, 256, 6, 6)
    constants._FACTORS.clear()
    mode = FakeTensorMode()
    state = {key: mode.from_tensor(value) for key, value in layer.state_dict().items()}
    with mode:
        torch.func.functional_call(layer, state, mode.from_tensor(x))
    assert not constants._FACTORS
    assert layer(x).isfinite().all()
