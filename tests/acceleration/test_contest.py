"""Models side by side."""

import pytest
import torch
from torch import nn

import phnn
from phnn.acceleration.contest import compete, make_contestants


def test_a_model_that_has_ph_layers_is_the_assembled_one():
    model = nn.Sequential(phnn.PHLinear(8, 8, algebra=phnn.algebra.complex))
    models = make_contestants(model, torch.randn(2, 8), n=2, rounds=1)
    assert models["assembled"] is model
    assert isinstance(models["real"][0], nn.Linear)


def test_training_leaves_the_mode_and_no_gradients():
    model = nn.Linear(2, 2).eval()
    (result,) = compete({"a": model}, torch.randn(3, 2), ["a"], rounds=1)
    assert result.training > 0
    assert (result.parameters, result.multiplications) == (6, 12)
    assert not model.training
    assert model.weight.grad is None


@pytest.mark.slow
def test_compiled_models_compete():
    activations = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU)
    models = {kind.__name__: nn.Sequential(nn.Linear(2, 2), kind()) for kind in activations}
    config = torch._dynamo.config
    if not hasattr(config, "fail_on_recompile_limit_hit"):
        pytest.skip("this torch does not tell that it leaves models uncompiled")
    with config.patch(fail_on_recompile_limit_hit=True):
        results = compete(models, torch.randn(3, 2), models, rounds=1, runtime="compile")
    assert [result.multiplications for result in results] == [12] * 5
    assert all(result.training for result in results)
