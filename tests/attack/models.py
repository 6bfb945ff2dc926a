"""Random models through convert, fold, accelerate, export and load: all must compute the same."""

import random

import torch
from torch import nn

import phnn
from attack.sandbox import RefusedError
from phnn.io import ModelFileError
from phnn.nn import PHLayer

ALGEBRAS = ["complex", "quaternion", "dual", "split_complex", "tessarine", "cyclic(3)", "matrix(2)"]
WIDTHS = [4, 6, 8, 12, 16, 24, 32, 48, 64]


class Residual(nn.Module):
    """A branch beside the identity, or concatenated with it."""

    def __init__(self, inner, joins):
        super().__init__()
        self.inner, self.joins = inner, joins

    def forward(self, x):
        y = self.inner(x)
        return torch.cat([x, y], 1) if self.joins else x + y


class Turns(nn.Module):
    """A branch that torch.fx cannot trace."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) if x.abs().sum() >= 0 else x


class Network(nn.Module):
    """A body, a mean over all positions, and a head."""

    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x):
        return self.head(self.body(x).flatten(2).mean(2))


class Attends(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return x + self.attention(x, x, x, need_weights=False)[0]


class Recurs(nn.Module):
    """The outputs of a recurrent layer, without its last state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


def draw_sequences(draw):
    """Return a model with recurrent layers, attention, a table and tied weights, and tokens."""
    torch.manual_seed(draw.randrange(2**31))
    width, tokens = draw.choice([8, 16, 24]), draw.choice([16, 32, 60])
    table = nn.Embedding(tokens, width)
    layers = []
    for _ in range(draw.randint(1, 3)):
        how = draw.randrange(5)
        if how < 2:
            kind, layers_deep = (nn.LSTM, nn.GRU)[how], draw.choice([1, 2])
            layers.append(Recurs(kind(width, width, layers_deep, batch_first=True)))
        elif how == 2:
            heads = draw.choice([1, 2])
            layers.append(Attends(nn.MultiheadAttention(width, heads, batch_first=True)))
        elif how == 3:
            layers.append(
                nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
            )
        else:
            layers.append(nn.Sequential(nn.Linear(width, width), nn.GELU()))
    head = nn.Linear(width, tokens, bias=draw.random() < 0.5)
    if draw.random() < 0.5:
        head.weight = table.weight
    model = nn.Sequential(table, *layers, head).eval()
    return model, torch.randint(tokens, (draw.choice([1, 2]), draw.choice([3, 7])))


def draw_model(draw):
    """Return a model and an input of it."""
    if draw.random() < 0.3:
        return draw_sequences(draw)
    torch.manual_seed(draw.randrange(2**31))
    dims = draw.choice([1, 2, 2, 2, 3])
    channels = draw.choice(WIDTHS)
    size = {1: 32, 2: 12, 3: 6}[dims]
    x = torch.randn(draw.choice([1, 2, 3]), channels, *[size] * dims)
    layers = []
    for _ in range(draw.randint(1, 4)):
        made, channels = draw_block(draw, dims, channels)
        layers.append(made)
    head = nn.Linear(channels, draw.choice(WIDTHS), bias=draw.random() < 0.8)
    model = Network(nn.Sequential(*layers), head).eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return model, x


def draw_block(draw, dims, channels):
    """Return some layers and the channels after them."""
    conv = draw_conv(draw, dims, channels)
    outputs = conv.out_channels
    parts = [conv]
    norms = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d]
    if draw.random() < 0.6:
        parts.append(norms[dims - 1](outputs))
    parts.append(draw.choice([nn.ReLU(), nn.SiLU(), nn.Identity(), nn.Tanh()]))
    block = nn.Sequential(*parts)
    if draw.random() < 0.15:
        block = Turns(block)
    keeps = conv.stride == (1,) * dims and not conv.transposed
    reach = [k // 2 * d for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    keeps = keeps and conv.padding == tuple(reach) and conv.kernel_size[0] % 2 == 1
    if keeps and draw.random() < 0.4:
        joins = outputs != channels
        return Residual(block, joins), outputs + channels * joins
    return block, outputs


def draw_conv(draw, dims, channels):
    """Return a convolution with random arguments that fits its input."""
    groups = draw.choice([g for g in (1, 1, 1, 2, 4, channels) if channels % g == 0])
    outputs = groups * max(1, draw.choice(WIDTHS) // groups)
    kernel = draw.choice([1, 1, 2, 3, 3, 3, 5])
    dilation = draw.choice([1, 1, 1, 2])
    options = {"groups": groups, "bias": draw.random() < 0.6}
    if draw.random() < 0.2 and kernel > 1:
        kinds = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
        return kinds[dims - 1](
            channels, outputs, kernel, draw.choice([1, 2]), kernel // 2, **options
        )
    kinds = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
    padding = dilation * (kernel // 2)
    mode = draw.choice(["zeros", "zeros", "circular", "replicate"])
    stride = draw.choice([1, 1, 1, 2])
    return kinds[dims - 1](
        channels, outputs, kernel, stride, padding, dilation, padding_mode=mode, **options
    )


def draw_options(draw):
    """Return how a model is converted."""
    how = draw.randrange(6)
    if how == 0:
        return {"algebra": draw.choice(ALGEBRAS)}
    if how == 1:
        return {"n": 2, "terms": draw.choice([1, 3, 4])}
    if how == 2:
        return {"n": (draw.choice([1, 2, 4]), draw.choice([1, 2])), "terms": draw.choice([1, 2])}
    if how == 3:
        return {"budget": draw.choice([0.3, 0.5, 0.8])}
    options = {"n": draw.choice([2, 3, 4, 8]), "indivisible": draw.choice(["skip", "shrink"])}
    return {**options, "share_algebra": draw.random() < 0.3}


def assert_same(actual, expected, what, tolerance=2e-3):
    scale = expected.abs().max().clamp(min=1e-3)
    difference = (actual - expected).abs().max() / scale
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}"
    assert difference <= tolerance, f"{what} differs by {difference:.2g}"


def warm_up(folder):
    """Import what all cases need, before any is forked: the exporters alone take seconds."""
    import onnxruntime  # noqa: F401

    layer, x = phnn.PHConv2d(4, 4, 3, n=2).eval(), torch.randn(1, 4, 6, 6)
    for format, suffix in (("onnx", "onnx"), ("torch", "pt2")):
        phnn.export(layer, folder / f"warm.{suffix}", x, format=format, dynamic_batch=False)


def make_case(number, seed, ground, folder):
    """Return the case of a number."""
    draw = random.Random(f"{seed} models {number}")

    def run():
        folder.mkdir(parents=True)
        torch.set_num_threads(1)
        return go_through(draw, folder)

    return "models", run


@torch.no_grad()
def go_through(draw, folder):
    model, x = draw_model(draw)
    build_seed, options = draw.getstate(), draw_options(draw)
    before = model(x)
    try:
        small = phnn.convert(model, **options)
    except ValueError as error:
        text = str(error)
        assert "no layer can be converted" in text or "budget" in text or "terms" in text, text
        raise RefusedError(text) from None
    assert torch.equal(model(x), before), "convert changed the model"
    small.eval()
    y = small(x)
    done = ["convert"]
    if options == {"n": 2, "terms": 4}:
        stays = [entry.name for entry in small.phnn_report.left_alone]
        assert_same(y, before, f"as many terms as a weight needs, {stays} stay")
    assert_same(phnn.to_dense(small)(x), y, "folded")
    assert_same(phnn.to_dense(small, fuse=True, example_input=x)(x), y, "folded and fused")
    done.append("fold")
    if any(isinstance(module, PHLayer) for module in small.modules()):
        fast = phnn.accelerate(small, x, rounds=1, seconds=0.5)  # recurrent layers have no forms
        assert_same(fast(x), y, "accelerated")
        done.append("accelerate")
    path = phnn.save(small, folder / "model.safetensors")
    loaded = phnn.load(path, model=lambda: rebuild(draw, build_seed, model))
    assert torch.equal(loaded(x), y), "loaded differs"
    assert phnn.save(loaded, folder / "again.safetensors").read_bytes() == path.read_bytes()
    flipped = bytearray(path.read_bytes())
    flipped[-draw.randint(1, 64)] ^= 1 << draw.randrange(8)
    path.write_bytes(flipped)
    try:
        phnn.load(path, model=lambda: rebuild(draw, build_seed, model))
        raise AssertionError("a flipped bit was loaded")
    except ModelFileError:
        done.append("load")
    if not any(isinstance(module, Turns) for module in model.modules()):
        format = draw.choice(["onnx", "torch", "torch"])
        suffix = {"onnx": "onnx", "torch": "pt2"}[format]
        written = phnn.export(small, folder / f"m.{suffix}", x, format=format, dynamic_batch=False)
        assert written.relative_difference <= 2e-3
        assert_same(run_program(folder / f"m.{suffix}", x), y, f"the program of {format}")
        done.append(f"export {format}")
    return f"{options}: {', '.join(done)}"


def run_program(path, x):
    """Return what an exported program computes, in its own runtime."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(x)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (argument,) = session.get_inputs()
    return torch.from_numpy(session.run(None, {argument.name: x.numpy()})[0])


def rebuild(draw, state, model):
    """Return a fresh model of the same shape, with other weights."""
    import copy

    fresh = copy.deepcopy(model)
    for parameter in fresh.parameters():
        nn.init.normal_(parameter)
    return fresh
