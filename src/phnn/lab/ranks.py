"""Which process of a run speaks for the others."""

import os

_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # in Lightning's order


def is_first_process() -> bool:
    """Return whether this process speaks for the others of a run."""
    return int(next((os.environ[name] for name in _RANKS if name in os.environ), 0)) == 0
