"""Files and programs of recurrent layers, attention, embeddings and norms."""

import importlib.util

import pytest
import torch
from torch import nn

import phnn
from phnn.testing import assert_close

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason='ONNX comes with pip install "phnn[export]"',
)


class Reader(nn.Module):
    """A network for sequences of words with one of each layer."""

    def __init__(self, recurrent=phnn.PHGRU):
        super().__init__()
        self.table = phnn.PHEmbedding(20, 8, n=4)
        self.recurrent = recurrent(8, 8, batch_first=True, n=4)
        self.attention = phnn.PHTransformerEncoderLayer(8, 2, 16, batch_first=True, n=2)
        self.norm = phnn.WhiteningBatchNorm(8, n=4)
        self.last = phnn.ComponentLayerNorm(8, n=4)
        self.drop = phnn.ComponentDropout(n=4, dim=-1)
        self.residual = phnn.ZeroResidual(phnn.PHLinear(8, 8, algebra="quaternion"))

    def forward(self, x):
        frames, _ = self.recurrent(self.table(x))
        y = self.norm(self.attention(frames).mT).mT
        return self.residual(self.drop(self.last(y)))


@pytest.fixture
def words():
    return torch.randint(20, (2, 5))


@pytest.mark.parametrize("recurrent", [phnn.PHRNN, phnn.PHGRU], ids=lambda cls: cls.__name__)
def test_a_model_of_somebody_is_saved_and_loaded(tmp_path, words, recurrent):
    model = Reader(recurrent)
    model(words)  # the norm has seen something
    path = phnn.save(model.eval(), tmp_path / "model.safetensors")
    loaded = phnn.load(path, model=lambda: Reader(recurrent))
    assert torch.equal(loaded(words), model(words))
    with pytest.raises(phnn.io.ModelFileError, match="does not fit"):
        phnn.load(path, model=lambda: Reader(phnn.PHLSTM))


@needs_onnx
def test_the_family_runs_in_onnxruntime(tmp_path, words):
    import onnxruntime

    model = Reader()
    model(words)
    model.eval()
    exported = phnn.export(model, tmp_path / "model.onnx", words)
    assert exported.max_difference < 1e-5
    session = onnxruntime.InferenceSession(exported.path)
    other = torch.randint(20, (3, 5))
    (output,) = session.run(None, {session.get_inputs()[0].name: other.numpy()})
    assert_close(torch.from_numpy(output), model(other).detach(), tolerance=1e-4)
