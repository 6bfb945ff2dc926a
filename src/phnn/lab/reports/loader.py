"""The loader that gives the report of a task its networks and data."""

from __future__ import annotations

import hashlib
import json

from torch import nn

from phnn.lab.recipe import Recipe, Tree, build_recipe, merge
from phnn.lab.runs import MODEL, Run
from phnn.lab.tasks import Data
from phnn.lab.tasks.report import DataMissingError
from phnn.lab.trained import Trained, fit_data, load_trained
from phnn.lab.training.build import build_data


class CachingRunLoader:
    """Load networks and data from run folders; read data that runs share once.

    Args:
        overrides: Parts of the recipes to replace, such as the folder of the data.
    """

    def __init__(self, overrides: Tree | None = None) -> None:
        self.overrides = overrides or {}
        self._data: dict[str, Data | DataMissingError] = {}

    def load(self, run: Run) -> tuple[nn.Module, Data]:
        """Return the network of a run and its data; see `phnn.lab.tasks.report.RunLoader`."""
        trained = load_trained(run.folder)
        data = self._read(self._build_recipe(trained))
        try:
            fit_data(data, trained)
        except ValueError as error:
            raise DataMissingError(str(error)) from error
        return trained.model, data

    def digest(self, run: Run) -> str:
        """Return a hash of the network of a run and the options of its data."""
        key = _describe_data(self._build_recipe(load_trained(run.folder)))
        return hashlib.sha256((run.folder / MODEL).read_bytes() + key.encode()).hexdigest()

    def _build_recipe(self, trained: Trained) -> Recipe:
        return build_recipe(merge(trained.recipe.to_dict(), self.overrides))

    def _read(self, recipe: Recipe) -> Data:
        key = _describe_data(recipe)
        if key not in self._data:
            try:
                self._data[key] = build_data(recipe)
            except (OSError, ValueError) as error:
                self._data[key] = DataMissingError(
                    f"the data of the runs cannot be read: {error}. Give their folder with "
                    "--data.root FOLDER"
                )
        found = self._data[key]
        if isinstance(found, DataMissingError):
            raise found
        return found


def _describe_data(recipe: Recipe) -> str:
    return json.dumps([recipe.data, recipe.seed], sort_keys=True)
