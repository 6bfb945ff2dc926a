"""The CO2 of a training, estimated as in the paper."""

from __future__ import annotations

INTENSITY = 0.445  # kg of CO2 per kWh, where the authors trained
POWER = 300.0  # watts, the TDP of their Tesla V100


def estimate_co2(seconds: float, power: float = POWER) -> float:
    """Return the paper's estimate in kg: hours × power × 0.445 kg/kWh.

    Args:
        seconds: The seconds of computation.
        power: The power of the hardware in watts; by default that of the authors' Tesla V100.

    Example:
        >>> round(estimate_co2(2000 * 3600))
        267
    """
    return seconds / 3600 * power / 1000 * INTENSITY
