"""What a run reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phnn.lab.tasks.batches import Plan


class Data(ABC):
    """The splits of a data set, in batches.

    The methods are those of Lightning's data module, without Lightning: it takes seconds to import,
    and a mistake in an option is found in the constructor, which takes `seed`, the seed of the
    run.

    Loaders that derive from `EpochBatches` make a run that was stopped resume within an epoch.

    Attributes:
        rank: The number of this process among those that train together.
        world_size: How many processes train together.
    """

    rank = 0
    world_size = 1

    @abstractmethod
    def setup(self) -> None:
        """Read the data, once."""

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """Return what a user of the network has to know, as JSON can hold it."""

    @abstractmethod
    def train_dataloader(self) -> Any:
        """Return the training batches."""

    def val_dataloader(self) -> Any:
        """Return the validation batches; an empty list where there is no validation split."""
        return []

    @abstractmethod
    def test_dataloader(self) -> Any:
        """Return the test batches."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return the inputs and targets of a batch, on the device where the network is.

        Args:
            batch: The batch as its loader gave it.
            dataloader_idx: Always 0.
        """
        return batch

    def standardize_as(self, metadata: Mapping[str, Any]) -> None:  # noqa: B027
        """Prepare the inputs as those of other data, on which a network was trained.

        Args:
            metadata: The metadata of the other data, or of the network.

        Raises:
            ValueError: The network cannot be used for these data.
        """

    def share(self, plan: Plan) -> Plan:
        """Return a plan for the share of this process."""
        return replace(plan, rank=self.rank, world_size=self.world_size)
