"""One run in its own process: python -m phnn.lab.training FOLDER DESCRIPTION.

`phnn.lab.comparison` starts it. It is a module and not a function of a forked process because
Lightning starts the same command again for each further device.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from phnn.lab.recipe import build_recipe
from phnn.lab.training import Stopped, train
from phnn.lab.training.status import StatusFile

WAIT_SECONDS = 30.0  # for a process that still holds the folder, and for this one to end


def main(folder: str, description: str) -> int:
    """Train a run.

    Args:
        folder: The folder of the run.
        description: The recipe, the names and the command of the run, and whether its progress is
            visible, as JSON.

    Returns:
        The exit code.
    """
    given = json.loads(description)
    recipe = build_recipe(given.pop("recipe"))
    progress = given.pop("visible") or StatusFile(Path(folder))
    try:
        train(recipe, Path(folder), wait=WAIT_SECONDS, progress=progress, **given)
    except Stopped as stopped:
        print(f"stopped by {stopped.name}", file=sys.stderr)
        return stopped.exit_code
    return 0


def end_with_parent() -> None:
    """End this process when its parent has ended, even by SIGKILL: the pipe from it is closed."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(WAIT_SECONDS)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.basicConfig(format="%(message)s")
    sys.exit(main(sys.argv[1], sys.argv[2]))
