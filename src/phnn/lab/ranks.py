"""The processes of a run: which of them writes files, and how many there are."""

import os

_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # in Lightning's order


def is_first_process() -> bool:
    """Return whether this process is the one of a run that writes files."""
    return int(next((os.environ[name] for name in _RANKS if name in os.environ), 0)) == 0


def check_world(devices: int, nodes: int) -> None:
    """Raise a ValueError when torchrun has started another number of processes than will train.

    Each of them would train alone, in the same folder.

    Args:
        devices: The devices of each machine.
        nodes: The machines.
    """
    started = int(os.environ.get("WORLD_SIZE", devices * nodes))
    if started != devices * nodes:
        raise ValueError(
            f"{started} processes were started (WORLD_SIZE), but --trainer.devices {devices} and "
            f"--trainer.num_nodes {nodes} make {devices * nodes}; give torchrun and phnn the same"
        )
