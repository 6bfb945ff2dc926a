"""Independent random streams, each named by a few numbers."""

import numpy as np
import torch


def derive_seed(*key: int) -> int:
    """Return one seed for a key such as (seed, epoch, batch).

    Similar keys give unrelated seeds. `seed + epoch` would not: epoch 1 of seed 0 would repeat
    epoch 0 of seed 1.

    Args:
        key: The non-negative integers that name the stream.

    Example:
        >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
        (True, False)
    """
    state = np.random.SeedSequence(list(key)).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))  # torch takes 63 bits


def generator_of(*key: int) -> torch.Generator:
    """Return a CPU generator for the stream that `key` names."""
    return torch.Generator("cpu").manual_seed(derive_seed(*key))


def permutation_of(size: int, *key: int) -> torch.Tensor:
    """Return the order of `size` things that `key` names."""
    return torch.randperm(size, generator=generator_of(*key), device="cpu")
