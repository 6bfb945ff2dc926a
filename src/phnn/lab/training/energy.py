"""The energy of a run, measured by codecarbon."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

logger = logging.getLogger(__name__)


class EnergyMeter:
    """Measure energy and CO2 from `start` to `stop`.

    Args:
        wanted: True needs codecarbon, None uses it when it is installed, False measures nothing.
        country: Three-letter code of the country, for the CO2 of its electricity.
    """

    def __init__(self, wanted: bool | None, country: str) -> None:
        installed = importlib.util.find_spec("codecarbon") is not None
        if wanted and not installed:
            raise ModuleNotFoundError(
                'energy is measured by codecarbon; install it with pip install "phnn[energy]"',
                name="codecarbon",
            )
        self._tracker = _make_tracker(country) if installed and wanted is not False else None

    def start(self) -> None:
        """Begin to measure."""
        if self._tracker is not None:
            self._tracker.start()

    def stop(self) -> dict[str, float | None]:
        """Return kWh and kg of CO2 since `start`; None where nothing was measured."""
        if self._tracker is None:
            return {"energy_kwh": None, "co2_kg": None}
        self._tracker.stop()
        # codecarbon catches its own errors, and then has no data
        data = getattr(self._tracker, "final_emissions_data", None)
        if data is None:
            logger.warning("codecarbon could not measure the energy; its log says why")
            return {"energy_kwh": None, "co2_kg": None}
        return {"energy_kwh": float(data.energy_consumed), "co2_kg": float(data.emissions)}


def _make_tracker(country: str) -> Any:
    from codecarbon import OfflineEmissionsTracker

    logging.getLogger("codecarbon").setLevel(logging.ERROR)
    return OfflineEmissionsTracker(
        country_iso_code=country,
        output_methods=[],
        log_level="error",
        allow_multiple_runs=True,
        measure_power_secs=15,
    )
