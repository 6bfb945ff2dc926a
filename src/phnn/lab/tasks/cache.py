"""The folder for data that were decoded or made."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `$PHNN_CACHE`, or `~/.cache/phnn`."""
    return Path(os.environ.get("PHNN_CACHE") or "~/.cache/phnn").expanduser()
