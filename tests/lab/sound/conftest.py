import pytest

from helpers.recordings import write_set


@pytest.fixture
def root(tmp_path):
    return write_set(tmp_path / "set")
