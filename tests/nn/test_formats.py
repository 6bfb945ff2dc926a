"""Memory formats and types that torch's layers keep."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import phnn

STRUCTURES = [
    {"n": 4},
    {"n": 2},
    {"algebra": "quaternion"},
    {"n": 4, "rank": 7},
    {"n": (4, 1), "terms": 2},
]


@pytest.mark.parametrize("sizes", [(4, 12), (12, 12), (24, 48), (64, 64)])
@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_channels_last_changes_no_gradient(structure, sizes):
    layer = phnn.PHConv2d(*sizes, 3, padding=1, bias=False, **structure)
    other = copy.deepcopy(layer).to(memory_format=torch.channels_last)
    x = torch.randn(32, sizes[0], 8, 8)
    y = torch.randn(32, sizes[1], 8, 8)
    for each, format in ((layer, torch.contiguous_format), (other, torch.channels_last)):
        (each(x.to(memory_format=format)) * y).sum().backward()
    for (name, parameter), same in zip(layer.named_parameters(), other.parameters(), strict=True):
        scale = parameter.grad.abs().max()
        assert (same.grad - parameter.grad).abs().max() < 1e-4 * scale, name


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
@pytest.mark.parametrize("kind", [phnn.PHConv2d, phnn.PHConvTranspose2d])
@pytest.mark.parametrize("width", [8, 64])
def test_formats_of_outputs_and_gradients(kind, structure, width):
    last = torch.channels_last
    for weights in (torch.contiguous_format, last):
        for inputs in (torch.contiguous_format, last):
            layer = kind(width, width, 3, groups=2, **structure)
            dense = layer.to_dense().to(memory_format=weights)
            layer = layer.to(memory_format=weights)
            x = torch.randn(2, width, 5, 5).to(memory_format=inputs)
            strides = []
            for module in (layer, dense):
                leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
                y = module(leaf)
                y.backward(torch.ones_like(y))
                strides.append((y.stride(), leaf.grad.stride()))
            assert strides[0] == strides[1], (weights, inputs)
            assert all(
                p.grad.stride() == p.stride() for p in layer.parameters() if min(p.shape) > 1
            )


@pytest.mark.parametrize("padding", [0, (0, 0), "valid", 1])
@pytest.mark.parametrize("structure", [{"n": 1}, *STRUCTURES], ids=str)
def test_few_channels_last_and_a_stride(structure, padding):
    # torch alone aborts here, or its gradients are wrong: uxlfoundation/oneDNN, issue 6035
    layer = phnn.PHConv2d(4, 8, 1, stride=2, padding=padding, bias=False, **structure)
    other = copy.deepcopy(layer).to(memory_format=torch.channels_last)
    for _ in range(3):
        x = torch.randn(32, 4, 16, 16)
        expected = layer(x)
        output = other(x.to(memory_format=torch.channels_last))
        torch.testing.assert_close(output, expected)
        seen = torch.randn_like(expected)
        of_layer = torch.autograd.grad(expected, list(layer.parameters()), seen)
        of_other = torch.autograd.grad(output, list(other.parameters()), seen)
        torch.testing.assert_close(of_other, of_layer, rtol=1e-4, atol=1e-3)


@pytest.fixture
def group(tmp_path):
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("kind", "sizes", "shape"),
    [
        (phnn.PHLinear, (64, 64), (2, 64)),
        (phnn.PHConv2d, (64, 64, 3), (2, 64, 8, 8)),
        (phnn.PHConvTranspose1d, (8, 8, 3), (2, 8, 8)),
        (phnn.PHLSTM, (16, 16), (3, 2, 16)),
    ],
)
def test_a_fixed_algebra_follows_the_policy_of_fsdp(kind, sizes, shape):
    layer = kind(*sizes, algebra="quaternion")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(layer, mp_policy=policy)
    output = layer(torch.randn(shape))
    output = output[0] if isinstance(output, tuple) else output
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
