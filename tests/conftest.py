import pytest
import torch

# pytest-xdist gives every core a worker; more threads than cores only wait for each other
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    """Every test draws the same numbers, whichever ran before it."""
    torch.manual_seed(0)


collect_ignore = ["attack"]  # which is no test: `make test-attack` runs it
