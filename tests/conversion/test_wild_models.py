"""Models that people have: torch's, torchvision's, timm's and transformers', where installed.

None of these packages is a dependency. To run all of it, put them on the path and

    pytest tests/test_wild_models.py -m "slow or not slow"
"""

import importlib
import importlib.util

import pytest
import torch
from torch import nn

from phnn.conversion import convert, to_dense
from phnn.nn import PHLayer
from phnn.testing import assert_close


def import_or_skip(name):
    """A package that may be missing, or that needs operators which its wheel failed to load."""
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    try:
        importlib.import_module("torchvision")  # the others import it too, where it is installed
    except ImportError:
        pass
    except RuntimeError:
        # its wheels are built for one release of torch; beside another one the compiled operators
        # are missing, and their mere schemas are enough for the models
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)
    return importlib.import_module(name)


def first(output):
    """The tensor of interest: of a transformers output, the first that is no loss."""
    return output if isinstance(output, torch.Tensor) else output[0]


def randomize(model):
    """Draws what starts as a constant, so that no signal and no gradient is zero from the start."""
    for name, parameter in model.named_parameters():
        if (parameter == parameter.flatten()[0]).all():
            nn.init.normal_(parameter, mean=float("norm" in name or "weight" in name), std=0.1)
    return model


def assert_converts_learns_and_folds(model, *inputs, fuse=False, **options):
    """The life of a converted model; returns its report."""
    randomize(model).eval()
    with torch.no_grad():
        expected = first(model(*inputs))
        # n² terms are enough for every weight: the same numbers must come out
        assert_close(first(convert(model, n=2, terms=4, **options)(*inputs)), expected, 1e-3)
    small = convert(model, n=4, **options)
    assert small.phnn_report.parameters_after < model_size(model)
    first(small.train()(*inputs)).square().mean().backward()
    assert_finite_gradients(small)
    small.eval().zero_grad()  # no layer is dropped at random, so that each one must learn
    first(small(*inputs)).square().mean().backward()
    assert_finite_gradients(small)
    for name, layer in ph_layers(small):
        assert layer.A.grad.any(), name
        assert layer.F.grad.any(), name
    folded = to_dense(small)
    assert not ph_layers(folded)
    assert folded.state_dict().keys() == model.state_dict().keys()
    assert model_size(folded) == model_size(model)
    with torch.no_grad():
        output = first(small(*inputs))
        assert_close(first(folded(*inputs)), output)
        if fuse:
            fused = to_dense(small, fuse=True)
            assert any(entry.after == "Identity" for entry in fused.phnn_report.entries)
            assert_close(first(fused(*inputs)), output, 1e-3)
    return small.phnn_report


def ph_layers(model):
    return [(name, m) for name, m in model.named_modules() if isinstance(m, PHLayer)]


def model_size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def assert_finite_gradients(model):
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def reasons(report):
    return {entry.name: entry.note for entry in report.left_alone}


# --- torch alone ----------------------------------------------------------------------------------


class UNet(nn.Module):
    """Down, up, and a connection across: what segmentation networks and diffusion models share."""

    def __init__(self, width=16):
        super().__init__()
        self.inside = self.block(4, width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = self.block(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 3, stride=2, padding=1, output_padding=1)
        self.outside = self.block(2 * width, width)
        self.head = nn.Conv2d(width, 4, 1)

    @staticmethod
    def block(inputs, outputs):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="reflect", bias=False),
            nn.BatchNorm2d(outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, groups=2),
            nn.GroupNorm(4, outputs),
        )

    def forward(self, x):
        across = self.inside(x)
        up = self.up(self.middle(self.down(across)))
        return self.head(self.outside(torch.cat([across, up], dim=1)))


def test_a_unet():
    report = assert_converts_learns_and_folds(UNet(), torch.randn(2, 4, 12, 12), fuse=True)
    assert len(report.changed) == 8
    assert [entry.note for entry in report.left_alone] == ["n=4 would make it larger"]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_the_transformer_of_torch(norm_first):
    model = nn.Transformer(32, 4, 1, 1, 64, batch_first=True, norm_first=norm_first)
    inputs = torch.randn(2, 7, 32), torch.randn(2, 5, 32)
    report = assert_converts_learns_and_folds(model, *inputs)
    assert not reasons(report)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 8)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


def test_a_tagger_with_an_lstm():
    report = assert_converts_learns_and_folds(Tagger(), torch.randint(20, (2, 6)))
    assert list(reasons(report)) == ["embedding"]
    assert len(report.changed) == 4 + 1


# --- torchvision ----------------------------------------------------------------------------------


def resnet(models):
    return models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=12)


def resnext(models):
    blocks = [1, 1, 1, 1]
    return models.ResNet(
        models.resnet.Bottleneck, blocks, num_classes=12, groups=4, width_per_group=16
    )


def mobilenet(models):
    return models.mobilenet_v3_small(num_classes=12, width_mult=0.5)


def efficientnet(models):
    return models.efficientnet_b0(num_classes=12)


def convnext(models):
    block = models.convnext.CNBlockConfig
    return models.ConvNeXt([block(16, 32, 1), block(32, None, 1)], num_classes=12)


def vgg(models):
    layers = [64, "M", 64, "M", 128, "M", 128, "M", 512, "M"]
    model = models.VGG(models.vgg.make_layers(layers, batch_norm=True), init_weights=False)
    model.avgpool = nn.AdaptiveAvgPool2d(1)
    model.classifier = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 12))
    return model


@pytest.mark.parametrize(
    "make",
    [
        resnet,
        pytest.param(resnext, marks=pytest.mark.slow),
        pytest.param(vgg, marks=pytest.mark.slow),
        mobilenet,
        pytest.param(efficientnet, marks=pytest.mark.slow),
        convnext,
    ],
)
def test_convolutional_networks_of_torchvision(make):
    model = make(import_or_skip("torchvision.models"))
    x = torch.randn(2, 3, 64, 64)
    report = assert_converts_learns_and_folds(model, x, fuse=make is not convnext)
    # indivisible are the three colours and depthwise convolutions; others are too small to gain
    notes = reasons(report).values()
    assert all("does not divide" in note or "make it larger" in note for note in notes)


def test_the_vision_transformer_of_torchvision():
    models = import_or_skip("torchvision.models")
    model = models.VisionTransformer(
        image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64
    )
    report = assert_converts_learns_and_folds(model, torch.randn(2, 3, 16, 16))
    assert "conv_proj" in reasons(report)
    assert {
        f"encoder.layers.encoder_layer_0.self_attention.{part}_proj" for part in ("q", "v", "out")
    } <= {entry.name for entry in report.changed}


# --- timm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fuse"),
    [
        ("test_resnet", True),
        ("test_vit", False),
        ("test_convnext", False),
        # its norms also apply the activation, so they must not be fused
        ("test_efficientnet", False),
        pytest.param("mobilenetv3_small_050", False, marks=pytest.mark.slow),
    ],
)
def test_models_of_timm(name, fuse):
    timm = import_or_skip("timm")
    if not timm.is_model(name):
        pytest.skip(f"this timm has no {name}")
    model = timm.create_model(name, num_classes=12)
    x = torch.randn(2, 3, 160, 160)
    assert_converts_learns_and_folds(model, x, fuse=fuse)


def test_norms_of_timm_that_apply_an_activation_are_not_fused():
    timm = import_or_skip("timm")
    model = randomize(timm.create_model("test_efficientnet", num_classes=12)).eval()
    small = convert(model, n=4)
    x = torch.randn(1, 3, 160, 160)
    fused = to_dense(small, fuse=True)
    assert not any(entry.after == "Identity" for entry in fused.phnn_report.entries)
    assert_close(fused(x), small(x))


# --- transformers ---------------------------------------------------------------------------------

TOKENS = torch.arange(10).view(2, 5)


def test_bert():
    transformers = import_or_skip("transformers")
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=8,
    )
    model = transformers.BertModel(config)
    # the pooler does not reach the states that are compared
    report = assert_converts_learns_and_folds(model, TOKENS, exclude="pooler*")
    assert len(report.changed) == 2 * 6


def gpt2(transformers):
    config = transformers.GPT2Config(
        vocab_size=32, n_embd=32, n_layer=2, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def test_gpt2_with_its_own_linear_layer_and_its_tied_head():
    model = gpt2(import_or_skip("transformers"))
    block = model.transformer.h[0].attn
    assert type(block.c_attn).__name__ == "Conv1D"
    report = assert_converts_learns_and_folds(model, TOKENS)
    assert len(report.changed) == 2 * 4
    assert set(reasons(report)) == {"transformer.wte", "transformer.wpe", "lm_head"}
    small = convert(model, n=4)
    assert small.lm_head.weight is small.transformer.wte.weight
    tied = convert(model, n=2, include=["transformer.wte", "lm_head"])
    assert tied.lm_head.F is tied.transformer.wte.F
    assert first(tied(TOKENS)).shape == first(model(TOKENS)).shape
    output = small.generate(TOKENS, max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert output.shape == (2, 7)


def test_folding_gpt2_leaves_linear_layers_in_the_layout_of_torch():
    """The keys are those of before, the weight is transposed: `nn.Linear` holds (out, in)."""
    model = gpt2(import_or_skip("transformers"))
    folded = to_dense(convert(model, n=2, terms=4))
    before, after = (m.transformer.h[0].attn.c_attn for m in (model, folded))
    assert type(after) is nn.Linear
    assert_close(after.weight, before.weight.mT)


def test_the_vision_transformer_of_transformers():
    transformers = import_or_skip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=8,
        num_labels=12,
    )
    model = transformers.ViTForImageClassification(config)
    report = assert_converts_learns_and_folds(model, torch.randn(2, 3, 16, 16))
    assert len(report.left_alone) == 1  # the three colours


def test_whisper():
    transformers = import_or_skip("transformers")
    config = transformers.WhisperConfig(
        vocab_size=32,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=8,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = transformers.WhisperForConditionalGeneration(config)

    class OfSound(nn.Module):
        """The call with positional arguments."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, sound, tokens):
            return self.model(input_features=sound, decoder_input_ids=tokens).logits

    report = assert_converts_learns_and_folds(OfSound(), torch.randn(2, 8, 16), TOKENS)
    assert reasons(report)["model.proj_out"] == (
        "tied to model.model.decoder.embed_tokens, which masks its padding row"
    )
    assert all("embed" in name or name == "model.proj_out" for name in reasons(report))
    assert {"model.model.encoder.conv1", "model.model.encoder.conv2"} <= {
        entry.name for entry in report.changed
    }


# --- peft -----------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.head(self.hidden(x).relu())


def adapted(peft, model, **targets):
    """The model with a LoRA adapter that is not zero."""
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, **targets))
    for name, parameter in model.named_parameters():
        if "lora" in name:
            nn.init.normal_(parameter)
    return model.eval()


def test_peft_adapts_the_filters_and_merges_into_them():
    peft = import_or_skip("peft")
    x = torch.randn(4, 16)
    small = convert(Perceptron(), n=4)
    before = small(x)
    with_adapter = adapted(peft, small, target_modules=[], target_parameters=["hidden.F"])
    expected = with_adapter(x)
    assert (expected - before).abs().max() > 0.1
    merged = with_adapter.merge_and_unload()
    assert_close(merged(x), expected)
    assert_close(to_dense(merged)(x), expected)


def test_peft_refuses_a_ph_layer_as_target_module():
    peft = import_or_skip("peft")
    with pytest.raises(ValueError, match=r"PHLinear.* is not supported"):
        adapted(peft, convert(Perceptron(), n=4), target_modules=["hidden"])


def test_a_merged_adapter_is_converted_with_its_layer():
    peft = import_or_skip("peft")
    x = torch.randn(4, 16)
    with_adapter = adapted(peft, Perceptron(), target_modules=["hidden"])
    expected = with_adapter(x)
    assert_close(convert(with_adapter.merge_and_unload(), n=2, terms=4)(x), expected, 1e-4)
