import pytest

from helpers.files import METADATA, Tied
from phnn.io import save


@pytest.fixture
def file(tmp_path):
    return save(Tied(), tmp_path / "model.safetensors", metadata=METADATA)
