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
        first = {"batch_first": True}
        self.table = phnn.PHEmbedding(20, 8, padding_idx=0, n=4)
        self.recurrent = recurrent(8, 8, **first, n=4)
        self.rnn = phnn.PHRNN(8, 8, **first, n=4, rank=7)
        self.lstm = phnn.PHLSTM(8, 4, 2, bidirectional=True, **first, algebra="quaternion")
        self.encoder = phnn.PHTransformerEncoderLayer(8, 2, 16, **first, n=2)
        self.decoder = phnn.PHTransformerDecoderLayer(8, 2, 16, **first, n=4)
        self.attention = phnn.PHMultiheadAttention(8, 2, **first, algebra="complex")
        self.cheap = phnn.ComponentBatchNorm(8, n=2)
        self.norm = phnn.WhiteningBatchNorm(8, n=4)
        self.last = phnn.ComponentLayerNorm(8, n=4)
        self.drop = phnn.ComponentDropout(n=4, dim=-1)
        self.residual = phnn.ZeroResidual(phnn.PHLinear(8, 8, algebra="quaternion"))
        nn.init.ones_(self.residual.alpha)  # at first the branch would not count

    def forward(self, x):
        words, _ = self.recurrent(self.table(x))
        frames, _ = self.lstm(self.rnn(words)[0])
        y = self.decoder(self.encoder(frames), words)
        y, weights = self.attention(y, y, y)
        y = self.norm(self.cheap((weights @ y).mT)).mT
        return self.residual(self.drop(self.last(y)))


@pytest.fixture
def words():
    return torch.randint(20, (2, 5))


@pytest.mark.parametrize("recurrent", [phnn.PHRNN, phnn.PHGRU], ids=lambda cls: cls.__name__)
def test_a_model_with_the_family_is_saved_and_loaded(tmp_path, words, recurrent):
    model = Reader(recurrent)
    model(words)  # the norm has seen something
    path = phnn.save(model.eval(), tmp_path / "model.safetensors")
    loaded = phnn.load(path, model=lambda: Reader(recurrent))
    assert torch.equal(loaded(words), model(words))
    with pytest.raises(phnn.io.ModelFileError, match="does not fit"):
        phnn.load(path, model=lambda: Reader(phnn.PHLSTM))


def test_the_family_is_folded_described_and_accelerated(words):
    model = Reader()
    model(words)
    model.eval()
    expected = model(words)
    dense = phnn.to_dense(model)
    assert_close(dense(words), expected)
    linear = [name for name, part in model.named_modules() if isinstance(part, phnn.PHLinear)]
    fast = phnn.accelerate(model, words, plan={key: {"form": "folded"} for key in linear})
    assert_close(fast(words), expected)
    assert "table, recurrent, rnn, lstm folded" in fast.phnn_report.note
    for folded in (dense, fast):
        kinds = [type(folded.get_submodule(name)) for name in ("table", "recurrent", "rnn", "lstm")]
        assert kinds == [nn.Embedding, nn.GRU, nn.RNN, nn.LSTM]
    for part, algebra in ((model.lstm, "quaternion"), (model.attention, "complex")):
        described = phnn.analysis.describe(part, rank=False)
        assert {found.match.name for found in described} == {algebra}
    learned = {p for group in phnn.param_groups(model) for p in group["params"]}
    assert learned == set(model.parameters())


def test_recurrent_layers_alone_are_for_to_dense():
    with pytest.raises(ValueError, match=r"to_dense\(model, fuse=True\) folds recurrent layers"):
        phnn.accelerate(nn.Sequential(phnn.PHGRU(8, 8, n=4)).eval(), torch.randn(3, 8))


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
