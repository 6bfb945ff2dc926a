"""Where data that were decoded or made are kept."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns `$PHNN_CACHE`, or `~/.cache/phnn`."""
    return Path(os.environ.get("PHNN_CACHE") or "~/.cache/phnn").expanduser()
