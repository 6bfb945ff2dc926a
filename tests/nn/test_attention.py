"""Attention and transformer layers: against torch's modules, and against complex arithmetic."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import phnn
from helpers.twins import slow_algebra, slow_kronecker_sum
from phnn import algebra
from phnn.testing import assert_close, assert_round_trips

CHOICES = {
    "learned": {"n": 4},
    "terms": {"n": 2, "terms": 3},
    "fixed": {"algebra": algebra.quaternion},
    "started": {"algebra": algebra.complex, "learn_algebra": True},
    "rank above terms": {"n": 4, "rank": 7},
    "pair": {"n": (4, 2), "terms": 3},
}
every_choice = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
LAYERS = [phnn.PHTransformerEncoderLayer, phnn.PHTransformerDecoderLayer]
every_layer = pytest.mark.parametrize("cls", LAYERS, ids=lambda cls: cls.__name__)
causal = nn.Transformer.generate_square_subsequent_mask


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, with one output."""

    def __init__(self, **options):
        super().__init__()
        self.attention = phnn.PHMultiheadAttention(16, 4, **options)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


def slow_attention(layer):
    """torch's attention with slowly assembled weights."""
    dense = layer.to_dense().eval()
    slow = {name: slow_kronecker_sum(slow_algebra(p), p.F) for name, p in layer.named_children()}
    state = dense.state_dict()
    if "in_proj_weight" in state:
        state["in_proj_weight"] = torch.cat([slow[name] for name in PROJECTIONS[:3]])
    else:
        state |= {f"{name}_weight": slow[name] for name in PROJECTIONS[:3]}
    state["out_proj.weight"] = slow["out_proj"]
    dense.load_state_dict(state)
    return dense.train(layer.training)


@every_choice
@pytest.mark.parametrize("options", [{}, {"kdim": 8, "vdim": 12}], ids=["packed", "kdim"])
def test_equals_the_slow_twin(choice, options):
    layer = phnn.PHMultiheadAttention(16, 2, **options, dtype=torch.float64, **choice)
    with torch.no_grad():
        for name in PROJECTIONS:
            layer.get_submodule(name).bias.normal_()
    inputs = [draw(t, 3, d, dtype=torch.float64) for t, d in ((5, 16), (7, layer.kdim))]
    inputs.append(draw(7, 3, layer.vdim, dtype=torch.float64))
    for need_weights in (False, True):
        actual = layer(*inputs, need_weights=need_weights)
        expected = slow_attention(layer)(*inputs, need_weights=need_weights)
        assert_close(actual[0], expected[0], tolerance=1e-12)
        assert (actual[1] is None) == (expected[1] is None) == (not need_weights)
    assert_close(actual[1], expected[1], tolerance=1e-12)


MASKS = {
    "none": {},
    "boolean": {"attn_mask": torch.ones(5, 7).triu(3).bool()},
    "added": {"attn_mask": torch.linspace(-1, 1, 35).view(5, 7)},
    "of heads": {"attn_mask": torch.linspace(-1, 1, 12 * 35).view(12, 5, 7)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 5 + [True] * 2] * 3)},
    "both": {
        "attn_mask": torch.ones(5, 7).triu(3).bool(),
        "key_padding_mask": torch.tensor([[False] * 5 + [True] * 2] * 3),
    },
}


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_masks_and_options_are_those_of_torch(options, masks):
    layer = phnn.PHMultiheadAttention(16, 4, **options, n=4)
    dense = layer.to_dense()
    x, y = draw(5, 3, 16), draw(7, 3, 16)
    if layer.batch_first:
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    for weights in ({"need_weights": False}, {}, {"average_attn_weights": False}):
        actual, expected = layer(x, y, y, **masks, **weights), dense(x, y, y, **masks, **weights)
        assert_close(actual[0], expected[0])
        if expected[1] is not None:
            assert_close(actual[1], expected[1])


def test_causal_hints_and_single_sequences():
    layer = phnn.PHMultiheadAttention(16, 4, n=2)
    dense = layer.to_dense()
    x = draw(5, 3, 16)
    hint = {"attn_mask": causal(5), "is_causal": True}
    for more in ({"need_weights": False}, {}, {"key_padding_mask": torch.zeros(3, 5)}):
        assert_close(layer(x, x, x, **hint, **more)[0], dense(x, x, x, **hint, **more)[0])
    one = x[:, 0]
    padding = torch.tensor([False, False, False, True, True])
    actual = layer(one, one, one, key_padding_mask=padding)
    expected = dense(one, one, one, key_padding_mask=padding)
    assert_close(actual[0], expected[0])
    assert_close(actual[1], expected[1])
    assert actual[1].shape == (5, 5)


@pytest.mark.parametrize("heads", [1, 2])
def test_complex_attention_is_complex_arithmetic(heads):
    layer = phnn.PHMultiheadAttention(
        12, heads, bias=False, batch_first=True, dtype=torch.float64, algebra="complex"
    )
    real, imaginary = draw(2, 5, 6, dtype=torch.float64), draw(2, 5, 6, dtype=torch.float64)
    z = torch.complex(real, imaginary)
    q, k, v = (
        z @ torch.complex(*layer.get_submodule(name).F.chunk(2)).T for name in PROJECTIONS[:3]
    )
    if heads == 1:  # the real part of the Hermitian product
        weights = ((q @ k.mH).real / math.sqrt(12)).softmax(-1)
        mixed = weights.to(v.dtype) @ v
    else:  # a head for the real parts, and one for the imaginary parts
        parts = [(q.real, k.real, v.real), (q.imag, k.imag, v.imag)]
        mixed = torch.complex(*((a @ b.mT / math.sqrt(6)).softmax(-1) @ c for a, b, c in parts))
    expected = mixed @ torch.complex(*layer.out_proj.F.chunk(2)).T
    x = torch.cat([real, imaginary], dim=-1)
    for need_weights in (False, True):
        output, _ = layer(x, x, x, need_weights=need_weights)
        assert_close(torch.complex(*output.chunk(2, dim=-1)).real, expected.real)
        assert_close(torch.complex(*output.chunk(2, dim=-1)).imag, expected.imag)


@pytest.mark.parametrize("heads", [1, 3, 6])
def test_n_need_not_divide_the_heads(heads):
    layer = phnn.PHMultiheadAttention(12, heads, n=4)
    x = draw(5, 2, 12)
    assert_close(layer(x, x, x)[0], layer.to_dense()(x, x, x)[0])


@every_choice
def test_keys_copies_and_gradients(choice):
    model = SelfAttention(**choice)
    letters = model.attention.q_proj.algebra_names
    expected = {f"{name}.{letter}" for name in PROJECTIONS for letter in (*letters, "F", "bias")}
    assert set(model.attention.state_dict()) == expected
    x = draw(5, 2, 16)
    model(x).sum().backward()
    assert_round_trips(model, x)
    # a bias of the keys adds the same to all scores of a query, so it learns nothing
    model.attention.k_proj.bias.requires_grad_(False)
    model.zero_grad()
    model(x).square().mean().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


@pytest.mark.parametrize("options", [{}, {"kdim": 128}], ids=["packed", "kdim"])
@pytest.mark.parametrize("choice", [{"n": 4}, {"algebra": "quaternion"}, {"n": 4, "rank": 7}])
def test_weights_vary_as_torchs(options, choice):
    layer = phnn.PHMultiheadAttention(256, 4, **options, **choice)
    dense = nn.MultiheadAttention(256, 4, **options)
    if options:
        expected = [dense.q_proj_weight, dense.k_proj_weight, dense.v_proj_weight]
    else:
        expected = [dense.in_proj_weight] * 3
    for name, weight in zip(PROJECTIONS, [*expected, dense.out_proj.weight], strict=True):
        assert abs(layer.get_submodule(name).weight.std() / weight.std() - 1) < 0.05, name
        assert not layer.get_submodule(name).bias.any()


def test_meta_device_then_empty_then_reset():
    layer = phnn.PHMultiheadAttention(
        16, 4, add_bias_kv=True, device="meta", algebra="quaternion"
    ).to_empty(device="cpu")
    for tensor in layer.state_dict().values():
        tensor.fill_(7)
    layer.reset_parameters()
    assert not any((tensor == 7).any() for tensor in layer.state_dict().values())
    x = draw(5, 2, 16)
    assert layer(x, x, x)[0].isfinite().all()


def test_gradients_in_float64():
    model = SelfAttention(dtype=torch.float64, n=2)
    x = draw(3, 2, 16, dtype=torch.float64).requires_grad_()
    names = [name for name, _ in model.named_parameters()]

    def function(x, *parameters):
        return functional_call(model, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, (x, *model.parameters()), fast_mode=True)


def test_low_precision_and_autocast():
    model, x = SelfAttention(n=4), draw(5, 2, 16)
    expected = model(x)
    low = SelfAttention(n=4, dtype=torch.bfloat16)
    low.load_state_dict(model.state_dict())
    assert low(x.bfloat16()).dtype == torch.bfloat16
    assert_close(low(x.bfloat16()).float(), expected, tolerance=8e-2)
    dense, mask = model.attention.to_dense(), causal(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
        for options in ({"need_weights": False}, {}):
            actual = model.attention(x, x, x, attn_mask=mask, **options)[0]
            folded = dense(x, x, x, attn_mask=mask, **options)[0]
            assert_close(actual.float(), folded.float(), tolerance=4e-2)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's attention, too
def test_compiles_exports_and_maps():
    model, x = SelfAttention(n=4).eval(), draw(5, 2, 16)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), expected)
    assert_close(torch.export.export(model, (x,)).module()(x), expected)
    models = [SelfAttention(n=4) for _ in range(2)]
    parameters, buffers = stack_module_state(models)
    outputs = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    for output, one in zip(outputs, models, strict=True):
        assert_close(output, one(x))


@pytest.mark.parametrize("options", [{}, {"kdim": 8}, {"add_bias_kv": True, "bias": False}])
def test_like_and_to_dense_are_inverse_in_everything_but_the_weights(options):
    dense = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True, **options).eval()
    layer = phnn.PHMultiheadAttention.like(dense, n=2)
    assert not layer.training
    layer.q_proj.F.requires_grad_(False)
    folded = layer.to_dense()
    assert {k: v.shape for k, v in folded.state_dict().items()} == {
        k: v.shape for k, v in dense.state_dict().items()
    }
    assert repr(folded) == repr(dense)
    assert all(getattr(folded, name) == getattr(dense, name) for name in layer.dense_args)
    frozen = [name for name, p in folded.named_parameters() if not p.requires_grad]
    assert frozen == (["q_proj_weight"] if "kdim" in options else [])


def call(layer, x, memory, **options):
    if isinstance(layer, phnn.PHTransformerEncoderLayer | nn.TransformerEncoderLayer):
        return layer(x, **{f"src_{name}": value for name, value in options.items()})
    return layer(x, memory, **{f"tgt_{name}": value for name, value in options.items()})


@every_layer
@pytest.mark.parametrize(
    "options",
    [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": True, "bias": False}],
    ids=["plain", "norm first", "batch first"],
)
def test_transformer_layers_are_torchs(cls, options):
    layer = cls(16, 4, 32, **options, n=4).eval()
    dense = layer.to_dense()
    assert {name.split(".")[0] for name in layer.state_dict()} == {
        name.split(".")[0] for name in dense.state_dict()
    }
    x, memory = draw(5, 5, 16), draw(5, 5, 16)
    padding = torch.tensor([[False] * 4 + [True]] * 5)
    with torch.no_grad():
        assert_close(call(layer, x, memory), call(dense, x, memory))
        masks = {"mask": causal(5) < 0, "key_padding_mask": padding}
        assert_close(call(layer, x, memory, **masks), call(dense, x, memory, **masks))
    layer.train()
    dense.train()
    for part in (*layer.modules(), *dense.modules()):  # their order of dropouts differs
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif hasattr(part, "num_heads"):
            part.dropout = 0.0
    assert_close(call(layer, x, memory), call(dense, x, memory))
    twin = cls.like(dense, n=2)
    assert repr(twin.to_dense()) == repr(dense)
    assert_round_trips(layer, *([x] if cls is LAYERS[0] else [x, memory]))


@pytest.mark.slow
@every_layer
def test_transformer_layers_learn_compile_and_export(cls):
    layer = cls(16, 4, 32, dropout=0.0, n=4)
    inputs = (draw(5, 2, 16),) if cls is LAYERS[0] else (draw(5, 2, 16), draw(6, 2, 16))
    (layer(*inputs) * draw(5, 2, 16)).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or "k_proj.bias" in name, name
    expected = layer(*inputs)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(compiled(*inputs), expected)
    assert_close(torch.export.export(layer, inputs).module()(*inputs), expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's attention, too
@every_layer
def test_transformer_layers_in_other_precisions_and_many_at_once(cls):
    def make(**options):
        return cls(8, 2, 8, dropout=0.0, n=2, **options)

    def draw_inputs(dtype):
        return [draw(3, 2, 8, dtype=dtype) for _ in range(1 if cls is LAYERS[0] else 2)]

    layer, inputs = make(dtype=torch.float64), draw_inputs(torch.float64)
    names = [name for name, _ in layer.named_parameters()]

    def function(*values):
        parameters = dict(zip(names, values[len(inputs) :], strict=True))
        return functional_call(layer, parameters, values[: len(inputs)])

    values = [x.requires_grad_() for x in inputs] + list(layer.parameters())
    assert torch.autograd.gradcheck(function, values, fast_mode=True)
    layer, inputs = make(), draw_inputs(torch.float32)
    low = make(dtype=torch.bfloat16)
    low.load_state_dict(layer.state_dict())
    output = low(*(x.bfloat16() for x in inputs))
    assert output.dtype == torch.bfloat16
    assert_close(output.float(), layer(*inputs), tolerance=8e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(layer(*inputs).float(), layer.to_dense()(*inputs).float(), tolerance=8e-2)
    layers = [make() for _ in range(2)]
    stacked = stack_module_state(layers)
    outputs = vmap(lambda *state: functional_call(layers[0], state, tuple(inputs)))(*stacked)
    for output, one in zip(outputs, layers, strict=True):
        assert_close(output, one(*inputs))
    assert all(p.is_meta for p in make(device="meta").parameters())


def test_torchs_stacks_take_the_layers():
    encoder = nn.TransformerEncoder(
        phnn.PHTransformerEncoderLayer(16, 4, 32, n=4), 2, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(phnn.PHTransformerDecoderLayer(16, 4, 32, n=4), 2)
    model = nn.Transformer(
        16, 4, custom_encoder=encoder, custom_decoder=decoder, batch_first=False
    ).eval()
    output = model(draw(7, 2, 16), draw(5, 2, 16), tgt_mask=causal(5), tgt_is_causal=True)
    assert output.shape == (5, 2, 16)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: phnn.PHMultiheadAttention(16, 4), TypeError, "give n="),
        (
            lambda: phnn.PHMultiheadAttention(18, 2, n=4),
            ValueError,
            "n=4 must divide embed_dim=18; the nearest that work are 16 and 20",
        ),
        (lambda: phnn.PHMultiheadAttention(16, 4, kdim=6, n=4), ValueError, "divide kdim=6"),
        (lambda: phnn.PHMultiheadAttention(16, 4, vdim=6, n=4), ValueError, "divide vdim=6"),
        (lambda: phnn.PHMultiheadAttention(16, 3, n=4), ValueError, "num_heads=3 must divide"),
        (
            lambda: phnn.PHTransformerEncoderLayer(16, 4, 30, n=4),
            ValueError,
            "n=4 must divide dim_feedforward=30",
        ),
        (lambda: phnn.PHTransformerDecoderLayer(18, 2, n=4), ValueError, "divide d_model=18"),
        (
            lambda: phnn.PHTransformerEncoderLayer(16, 4, activation="sin", n=4),
            ValueError,
            '"relu", "gelu" or a function of a tensor, got \'sin\'',
        ),
    ],
)
def test_bad_sizes(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"attn_mask": torch.zeros(5, 6)},
            ValueError,
            r"attn_mask must have the shape \(5, 7\) or \(12, 5, 7\).*num_heads=4, got \(5, 6\)",
        ),
        ({"attn_mask": torch.zeros(3, 5, 7)}, ValueError, r"got \(3, 5, 7\)"),
        (
            {"key_padding_mask": torch.zeros(7, 3)},
            ValueError,
            r"key_padding_mask must have the shape \(3, 7\).*got \(7, 3\)",
        ),
        (
            {"key_padding_mask": torch.zeros(3, 7, dtype=torch.int64)},
            TypeError,
            r"got torch.int64; convert it with key_padding_mask.bool\(\)",
        ),
        ({"is_causal": True}, ValueError, "is_causal=True is a hint about attn_mask"),
        ({"key": torch.zeros(7, 2, 16)}, ValueError, r"one batch size, got .*key \(7, 2, 16\)"),
        ({"value": torch.zeros(6, 3, 16)}, ValueError, r"a value for each key.*value \(6, 3, 16\)"),
        ({"query": torch.zeros(5, 3, 8)}, ValueError, r"query with 16 features.*\(5, 3, 8\)"),
        ({"key": torch.zeros(7, 16)}, ValueError, r"a 3D key with 16 features.*\(7, 16\)"),
    ],
)
def test_bad_calls(options, error, message):
    inputs = {"query": draw(5, 3, 16), "key": draw(7, 3, 16), "value": draw(7, 3, 16)}
    with pytest.raises(error, match=message):
        phnn.PHMultiheadAttention(16, 4, n=4)(**{**inputs, **options})


def test_repr_shows_what_differs_from_the_defaults():
    layer = phnn.PHMultiheadAttention(16, 4, 0.1, kdim=8, batch_first=True, add_bias_kv=True, n=4)
    first = repr(layer).splitlines()[1].strip()
    assert first == "16, 4, dropout=0.1, kdim=8, batch_first=True, add_bias_kv=True"
