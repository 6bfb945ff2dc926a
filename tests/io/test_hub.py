"""Models on a stand-in of the hub: pushed, loaded, found in the cache, refused with a reason."""

import sys

import pytest
import torch
from torch import nn

import phnn
from helpers.hub_server import serve_hub
from phnn.io import HubError, ModelFileError, hub

huggingface_hub = pytest.importorskip("huggingface_hub")


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture
def server(monkeypatch):
    with serve_hub() as running:
        monkeypatch.setattr(
            hub, "make_api", lambda token: huggingface_hub.HfApi(running.url, token or "hf_x")
        )
        yield running


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def outputs_agree(one, other, *shape):
    x = torch.randn(2, *shape)
    with torch.no_grad():
        return torch.equal(one.eval()(x), other.eval()(x))


def test_a_network_of_the_zoo_goes_there_and_back(server, cache):
    network = phnn.create_model("resnet20", n=4, num_classes=2, widths=[4, 8, 8])
    address = phnn.push_to_hub(
        network,
        "me/small",
        scores={"test accuracy": 0.91234},
        recipe={"trainer": {"max_epochs": 3}},
        metadata={"classes": ["cat", "dog"]},
    )
    assert address.startswith(f"{server.url}/me/small/commit/")
    assert set(server.repos["me/small"]["main"]) == {
        "README.md", "config.json", "model.safetensors"
    }  # fmt: skip
    loaded = phnn.from_pretrained("me/small", cache=cache)
    assert outputs_agree(loaded, network, 3, 32, 32)
    assert loaded.phnn_metadata["classes"] == ["cat", "dog"]
    assert loaded.phnn_metadata["scores"] == {"test accuracy": 0.91234}
    card = server.repos["me/small"]["main"]["README.md"].decode()
    total = sum(p.numel() for p in network.parameters())
    dense = sum(p.numel() for p in phnn.to_dense(network).parameters())
    assert f"{total:,} parameters; with plain layers of the same sizes, {dense:,}." in card
    assert "| test accuracy | 0.9123 |" in card
    assert '"max_epochs": 3' in card
    assert 'phnn.from_pretrained("user/model")' in card


def test_a_converted_model_needs_its_constructor(server, cache):
    small = phnn.convert(make_model(), n=4)
    phnn.push_to_hub(small, "me/mine", recipe="three epochs of distillation", message="first")
    card = server.repos["me/mine"]["main"]["README.md"].decode()
    assert "three epochs of distillation" in card
    assert 'phnn.from_pretrained("user/model", model=make_model)' in card
    loaded = phnn.from_pretrained("me/mine", model=make_model, cache=cache)
    assert isinstance(loaded[0], phnn.PHLinear)
    assert outputs_agree(loaded, small, 8)
    with pytest.raises(ModelFileError, match="pass model="):
        phnn.from_pretrained("me/mine", cache=cache)


def test_what_was_downloaded_works_offline(server, cache):
    phnn.push_to_hub(make_model(), "me/mine")
    first = phnn.from_pretrained("me/mine", model=make_model, cache=cache)
    assert (cache / "models--me--mine" / "refs" / "main").exists()
    server.refused = 503
    again = phnn.from_pretrained("me/mine", model=make_model, cache=cache, offline=True)
    assert outputs_agree(first, again, 8)


def test_a_cache_that_somebody_copied_here(cache):
    """The layout of huggingface_hub's cache, written by hand."""
    folder = cache / "models--me--copied"
    commit = "a" * 40
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    network = phnn.create_model("resnet20", n=2, widths=[2, 4, 4])
    phnn.save(network, folder / "snapshots" / commit)
    loaded = phnn.from_pretrained("me/copied", cache=cache, offline=True)
    assert outputs_agree(loaded, network, 3, 32, 32)
    by_commit = phnn.from_pretrained("me/copied", revision=commit, cache=cache, offline=True)
    assert outputs_agree(by_commit, network, 3, 32, 32)


def test_a_branch(server, cache):
    model = make_model()
    phnn.push_to_hub(model, "me/mine", revision="small")
    loaded = phnn.from_pretrained("me/mine", revision="small", model=make_model, cache=cache)
    assert outputs_agree(loaded, model, 8)
    with pytest.raises(HubError, match="me/mine at 'large': the repository has no branch"):
        phnn.from_pretrained("me/mine", revision="large", model=make_model, cache=cache)


@pytest.mark.parametrize(
    ("theirs", "kept"), [(b"mine", True), (b"<!-- written by phnn.save -->", False)]
)
def test_a_card_of_somebody_else_is_kept(server, theirs, kept):
    server.add("me/mine", {"README.md": theirs})
    phnn.push_to_hub(make_model(), "me/mine")
    assert (server.repos["me/mine"]["main"]["README.md"] == theirs) is kept
    assert "model.safetensors" in server.repos["me/mine"]["main"]


class TestErrors:
    def test_offline_without_a_copy(self, cache):
        with pytest.raises(HubError, match=r"not in the cache of this machine.*use phnn\.load"):
            phnn.from_pretrained("me/absent", cache=cache, offline=True)

    def test_no_connection(self, server, cache, monkeypatch):
        # not by a closed port: huggingface_hub tries that for 20 seconds
        api = huggingface_hub.HfApi(server.url, "hf_x")
        monkeypatch.setattr(hub, "make_api", lambda token: api)

        def refuse(*_, **__):
            raise ConnectionError("refused")

        monkeypatch.setattr(api, "create_repo", refuse)
        with pytest.raises(HubError, match=r"was not reached \(refused\).*phnn\.save writes"):
            phnn.push_to_hub(make_model(), "me/mine")

    def test_no_such_model(self, server, cache):
        with pytest.raises(HubError, match="me/absent: the hub has no model of this name"):
            phnn.from_pretrained("me/absent", cache=cache)

    def test_another_library(self, server, cache):
        server.add("me/other", {"pytorch_model.bin": b"x"})
        with pytest.raises(HubError, match=r"it has no model\.safetensors"):
            phnn.from_pretrained("me/other", cache=cache)

    def test_a_file_of_another_library(self, server, cache):
        server.add("me/other", {"model.safetensors": b"x"})
        with pytest.raises(ModelFileError):
            phnn.from_pretrained("me/other", cache=cache)

    def test_a_token_that_may_not_write(self, server):
        server.refused = 403
        with pytest.raises(HubError, match="the hub answered 403; log in with `hf auth login`"):
            phnn.push_to_hub(make_model(), "me/mine")

    @pytest.mark.parametrize("name", ["a/b/c", "me/with space", ""])
    def test_names(self, server, name):
        with pytest.raises(ValueError, match="must be like 'user/model'"):
            phnn.from_pretrained(name)

    @pytest.mark.parametrize("name", ["small.safetensors", "/tmp/small"])
    def test_paths(self, server, name):
        with pytest.raises(ValueError, match=r"is a path; phnn\.load"):
            phnn.from_pretrained(name)

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(ImportError, match=r'pip install "phnn\[hub\]"'):
            phnn.from_pretrained("me/mine")
