"""The command line with training steps that take a while, so that a test can interrupt them.

Usage: slow_cli.py ARGUMENTS OF phnn
"""

import sys
import time

from phnn import cli
from phnn.lab.tasks.learner import Learner

STEP_SECONDS = 0.3
original = Learner.training_step


def training_step(self, batch, batch_idx):
    time.sleep(STEP_SECONDS)
    return original(self, batch, batch_idx)


if __name__ == "__main__":
    Learner.training_step = training_step
    sys.exit(cli.main(sys.argv[1:]))
