"""Independent random streams, each a function of the numbers that name it."""

import numpy as np
import torch


def derive_seed(*key: int) -> int:
    """Turns a key such as (seed, epoch, batch) into one seed.

    Neighbouring keys give unrelated seeds, which `seed + epoch` would not: epoch 1 of seed 0 would
    repeat epoch 0 of seed 1.

    Args:
        key: the non-negative integers that name the stream.

    Example:
        >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
        (True, False)
    """
    state = np.random.SeedSequence(list(key)).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))  # torch takes 63 bits


def generator_of(*key: int) -> torch.Generator:
    """Returns a CPU generator for the stream that `key` names."""
    return torch.Generator("cpu").manual_seed(derive_seed(*key))


def permutation_of(size: int, *key: int) -> torch.Tensor:
    """Returns the order of `size` things that `key` names."""
    return torch.randperm(size, generator=generator_of(*key), device="cpu")
