"""Adapters: what they compute, learn and cost."""

import copy
import pickle

import pytest
import torch
from torch import nn

import phnn
from phnn import adapt, list_adapters, merge, remove_adapter, use_adapter
from phnn.testing import assert_close


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=2, stride=2),
        nn.ConvTranspose2d(8, 4, 2),
        nn.Flatten(),
        nn.Linear(64, 8),
    ).eval()


X = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(1))


def learn(model, steps=3):
    """A few steps, so that the delta is not zero."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(X) - 1).square().mean().backward()
        optimizer.step()
    return model


def count(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


CHOICES = [
    {"n": 2},
    {"n": 4, "terms": 1},
    {"n": (4, 2), "terms": 3},
    {"n": 2, "filter_rank": 1},
    {"n": 2, "share_algebra": True},
    {"algebra": "cyclic(4)"},
    {"algebra": "complex", "learn_algebra": True},
    {"n": (1, 1), "terms": 1, "filter_rank": 2},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_delta_starts_at_zero_learns_and_merges(choice):
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    adapted = adapt(model, **choice)
    assert torch.equal(adapted(X), model(X))
    learn(adapted)
    output = adapted(X)
    assert not torch.allclose(output, model(X), atol=1e-3)
    for key, value in before.items():
        assert torch.equal(model.state_dict()[key], value)  # the original, and the frozen copy
    assert torch.equal(adapted.get_submodule("0").base.weight, model[0].weight)
    merged = merge(adapted)
    assert_close(merged(X), output, 1e-4)
    assert merged.state_dict().keys() == before.keys()
    assert [type(m) for m in merged.modules()] == [type(m) for m in model.modules()]
    assert all(p.requires_grad for p in merged.parameters())
    assert torch.equal(adapted(X), output)  # a copy was merged
    assert torch.equal(pickle.loads(pickle.dumps(adapted))(X), output)


def test_a_delta_is_the_sum_of_kronecker_products():
    adapted = adapt(nn.Sequential(nn.Linear(6, 4)), n=(2, 3), terms=2)
    delta = adapted[0].deltas["default"]
    nn.init.normal_(delta.F)
    blocks = delta.F.unflatten(0, (2, -1))
    expected = sum(torch.kron(A, F) for A, F in zip(delta.A, blocks, strict=True))
    assert_close(adapted[0].weight - adapted[0].base.weight, expected)
    assert count(adapted) == 2 * 6 + 2 * 2 * 2


def test_a_cyclic_algebra_is_block_circulant():
    adapted = adapt(nn.Sequential(nn.Linear(8, 8)), algebra="cyclic(4)")
    delta = adapted[0].deltas["default"]
    nn.init.normal_(delta.F)
    H = delta.weight.unflatten(0, (4, 2)).unflatten(2, (4, 2))  # component, position, …
    assert_close(H.roll((1, 1), (0, 2)), H)
    assert count(adapted) == 64 // 4


def test_one_term_of_factored_filters_is_lora():
    adapted = adapt(nn.Sequential(nn.Linear(12, 8)), n=(1, 1), terms=1, filter_rank=2)
    delta = adapted[0].deltas["default"]
    nn.init.normal_(delta.R)
    assert torch.linalg.matrix_rank(delta.weight) == 2
    assert count(adapted) == 2 * (12 + 8) + 1


def test_a_shared_algebra_is_one_parameter():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    shared = adapt(model, n=2, share_algebra=True)
    assert shared[0].deltas["default"].A is shared[1].deltas["default"].A
    assert count(adapt(model, n=2)) - count(shared) == 8


def test_only_the_delta_learns():
    adapted = adapt(make_model(), n=2, include=["0", "5"])
    names = [name for name, p in adapted.named_parameters() if p.requires_grad]
    expected = [f"{layer}.deltas.default.{key}" for layer in "05" for key in "AF"]
    assert names == expected
    adapter = list_adapters(adapted)["default"]
    assert adapter.parameters == count(adapted)
    assert adapter.model_parameters == sum(p.numel() for p in make_model().parameters())
    assert "parameters learn" in str(adapter)


def test_dropout_is_for_training():
    adapted = learn(adapt(make_model(), n=2, dropout=0.5))
    assert torch.equal(adapted(X), adapted(X))
    adapted.train()
    assert not torch.equal(adapted(X), adapted(X))


def test_several_adapters():
    model = make_model()
    both = learn(adapt(learn(adapt(model, n=2, name="a")), n=4, name="b", include="5"))
    output = both(X)
    assert list(list_adapters(both)) == ["a", "b"]
    a = use_adapter(both, "a")(X)
    assert not torch.allclose(a, output)
    assert torch.equal(use_adapter(both, None)(X), model(X))
    assert torch.equal(use_adapter(both, "b")(X), output)
    learned = {name.split(".")[2] for name, p in both.named_parameters() if p.requires_grad}
    assert learned == {"b"}
    remove_adapter(both, "b")
    assert torch.equal(both(X), model(X))  # the one in use is gone
    assert torch.equal(use_adapter(both, "a")(X), a)
    plain = remove_adapter(both, "a")
    assert [type(m) for m in plain.modules()] == [type(m) for m in model.modules()]
    assert all(p.requires_grad for p in plain.parameters())
    assert not hasattr(plain, "phnn_adapters")


def test_what_was_frozen_before_is_frozen_after():
    model = make_model()
    model[0].requires_grad_(False)
    assert [p.requires_grad for p in merge(adapt(model, n=2)).parameters()] == [
        p.requires_grad for p in model.parameters()
    ]


def test_in_place():
    model = make_model()
    layer = model[5]
    assert adapt(model, n=2, inplace=True) is model
    assert model[5].base is layer
    assert merge(model, inplace=True) is model
    assert model[5] is layer


def test_layers_that_others_read():
    """torch's attention and its fast path read weights instead of calling layers."""
    model = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True).eval()
    adapted = adapt(model, n=4)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.1)
    x = torch.randn(2, 5, 16)
    slow = adapted(x)
    merged = merge(adapted)
    with torch.no_grad():
        assert_close(adapted(x), slow, 1e-4)
        assert_close(merged(x), slow, 1e-4)
        assert not torch.allclose(model(x), slow, atol=1e-3)


def test_a_shared_module_has_one_delta():
    layer = nn.Linear(8, 8)
    adapted = adapt(nn.Sequential(layer, nn.ReLU(), layer), n=2)
    assert adapted[0] is adapted[2]
    merged = merge(adapted)
    assert merged[0] is merged[2]
    assert type(merged[0]) is nn.Linear


def test_what_is_left_alone():
    model = nn.ModuleDict(
        {
            "table": nn.Embedding(8, 8),
            "body": nn.Linear(8, 8),
            "head": nn.Linear(8, 8, bias=False),
            "odd": nn.Linear(8, 7),
            "lstm": nn.LSTM(8, 8),
        }
    )
    model.head.weight = model.table.weight
    adapter = list_adapters(adapt(model, n=4))["default"]
    assert list(adapter.layers) == ["body"]
    assert adapter.left_alone == {
        "table": "Embedding is neither a linear layer nor a convolution",
        "head": "its weight is tied to table.weight",
        "odd": "n=4 does not divide its 7 outputs and 8 inputs",
    }


class TestRefusals:
    def test_already_adapted(self):
        adapted = adapt(make_model(), n=2)
        with pytest.raises(ValueError, match=r"already adapted by 'default'; give another name="):
            adapt(adapted, n=2)

    @pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
    def test_quantized(self):
        if not torch.backends.quantized.supported_engines[1:]:
            pytest.skip("this build of torch quantizes nothing")
        model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)))
        model.append(nn.Linear(8, 8))
        with pytest.raises(ValueError, match=r"0 cannot be adapted: quantized; adapt first"):
            adapt(model, n=2)
        adapt(model, n=2, exclude="0")

    def test_merging_twice(self):
        merged = merge(adapt(make_model(), n=2))
        with pytest.raises(ValueError, match="no adapter: it was merged or removed"):
            merge(merged)

    def test_merging_none_or_one_of_several(self):
        adapted = adapt(adapt(make_model(), n=2, name="a"), n=2, name="b")
        with pytest.raises(ValueError, match=r"merging 'b' changes the weights that 'a'"):
            merge(adapted)
        with pytest.raises(ValueError, match=r"no adapter is in use.*'a', 'b'"):
            merge(use_adapter(adapted, None))

    def test_unknown_names(self):
        adapted = adapt(make_model(), n=2)
        for call in (use_adapter, remove_adapter):
            with pytest.raises(ValueError, match=r"no adapter 'b', it has 'default'"):
                call(adapted, "b")
        with pytest.raises(ValueError, match="no adapter: it was merged"):
            use_adapter(make_model(), "a")
        with pytest.raises(ValueError, match="no dot"):
            adapt(make_model(), n=2, name="a.b")

    @pytest.mark.parametrize(
        ("choice", "message"),
        [
            ({"n": 3, "include": "0"}, "0 cannot be adapted: n=3 does not divide its 8 outputs"),
            ({"n": 2, "include": "nope"}, "'nope' matches none of the layers"),
            ({"n": 3}, "no layer can be adapted: 0: n=3 does not divide"),
            ({"n": 2, "filter_rank": 99}, "0: filter_rank=99 must be between 1 and 4"),
            ({"n": 2, "dropout": 1.0}, r"dropout must be in \[0, 1\), got dropout=1.0"),
            ({"n": 2, "terms": 9}, "terms must be between 1 and"),
        ],
    )
    def test_bad_arguments(self, choice, message):
        model = make_model()
        with pytest.raises(ValueError, match=message):
            adapt(model, **choice, inplace=True)
        assert not hasattr(model, "phnn_adapters")
        assert all(p.requires_grad for p in model.parameters())

    def test_not_a_model_and_a_model_that_is_the_layer(self):
        with pytest.raises(TypeError, match=r"adapt takes a torch.nn.Module, got an object"):
            adapt(3, n=2)
        with pytest.raises(
            ValueError, match="Linear is itself the layer; put it into a Sequential"
        ):
            adapt(nn.Linear(4, 4), n=2)

    def test_a_model_of_ph_layers_alone(self):
        with pytest.raises(ValueError, match=r"phnn.to_dense\(model\) makes them of its PH layers"):
            adapt(nn.Sequential(phnn.PHLinear(4, 4, n=2)), n=2)

    def test_other_functions_say_what_to_do(self, tmp_path):
        adapted = adapt(nn.Sequential(nn.Linear(4, 4)), n=2)
        with pytest.raises(ValueError, match=r"phnn.save_adapter writes it alone, and phnn.merge"):
            phnn.save(adapted, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=r"0: adapted; phnn.merge folds the adapter in"):
            phnn.convert(adapted, n=2)
