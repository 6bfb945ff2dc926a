"""Training on Lightning: one recipe in, one run folder out."""

from phnn.lab.runs import RunFolderError
from phnn.lab.stopping import Stopped
from phnn.lab.tasks.optimization import NonFiniteLossError
from phnn.lab.training.build import check_recipe
from phnn.lab.training.run import train

__all__ = ["NonFiniteLossError", "RunFolderError", "Stopped", "check_recipe", "train"]
