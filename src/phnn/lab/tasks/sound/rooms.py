"""The acoustics of an office with two ambisonics microphones, as that of L3DAS21.

The room is a box of 6 × 5 × 3 m. Positions are (x, y, z) in metres from microphone A, in the middle
of the room. Microphone B is 20 cm from it along the width, at y = 0.2. Each microphone has four
capsules in one point: W hears all directions alike, Y, Z and X are figures of eight along their
axes. Their order and gains are those of AmbiX: ACN (W, Y, Z, X) and SN3D, so that a plane wave from
the unit vector (x, y, z) is heard as (1, y, z, x).
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Position = tuple[float, float, float]

ROOM = (6.0, 5.0, 3.0)
MICROPHONES: tuple[Position, ...] = ((0.0, 0.0, 0.0), (0.0, 0.2, 0.0))
AXES = ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0))  # of Y, Z and X
CHANNELS = len(MICROPHONES) * (1 + len(AXES))
GRID = (
    tuple(step / 4 for step in range(-8, 9)),
    tuple(step / 4 for step in range(-6, 7)),
    (-1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 1.0),
)
NEAREST = 0.5  # metres; the grid goes through the microphones, where 1/r has no bound
SPEED = 343.0  # of sound, in metres per second
INAUDIBLE = 35.0  # decibels that walls have taken from a sound that may be left out
CACHED = 256  # responses of about 0.3 MB


def draw_position(rng: np.random.Generator) -> Position:
    """Draw a position of the data set's grid that is not too close to a microphone.

    Args:
        rng: The source of the randomness.
    """
    while True:
        x, y, z = (float(rng.choice(steps)) for steps in GRID)
        if all(np.hypot(np.hypot(x - a, y - b), z - c) >= NEAREST for a, b, c in MICROPHONES):
            return x, y, z


def check_reverberation(rt60: float, reflections: int) -> None:
    """Raise a ValueError for a reverberation that the room cannot have.

    Args:
        rt60: Seconds until a sound has fallen by 60 dB; 0 for a room without walls.
        reflections: The most walls on the path of a sound.
    """
    if rt60 != 0 and not 0 < _absorb(rt60) < 1:
        shortest = _absorb(1.0)  # _absorb is this over rt60
        raise ValueError(
            f"rt60={rt60} must be 0, for no reverberation, or above {shortest:.2f} s, at which the "
            "walls of the room absorb everything"
        )
    if reflections < 0:
        raise ValueError(f"reflections={reflections} must not be negative")


def count_reflections(rt60: float) -> int:
    """Return the number of walls that take 35 dB from a sound.

    Args:
        rt60: Seconds until a sound has fallen by 60 dB; 0 for a room without walls.

    Example:
        >>> count_reflections(0.3), count_reflections(0.5), count_reflections(0)
        (17, 31, 0)
    """
    check_reverberation(rt60, 0)
    return math.ceil(INAUDIBLE / (-10 * math.log10(1 - _absorb(rt60)))) if rt60 else 0


def _absorb(rt60: float) -> float:
    """Return the share of a sound's energy that a wall absorbs, by Sabine's formula."""
    x, y, z = ROOM
    surface = 2 * (x * y + y * z + z * x)
    return 24 * math.log(10) * x * y * z / (SPEED * surface * rt60)


@lru_cache(CACHED)
def impulse_response(
    position: Position, rate: int = 32000, rt60: float = 0.3, reflections: int = 17
) -> Array:
    """Return what the microphones hear of an impulse, (8, samples): A's W, Y, Z, X, then B's.

    The image sources are those of pyroomacoustics.

    Args:
        position: The position of the source.
        rate: Samples per second.
        rt60: Seconds until a sound has fallen by 60 dB; 0 for a room without walls.
        reflections: The most walls on the path of a sound; see `count_reflections`.
    """
    import pyroomacoustics as pra

    check_reverberation(rt60, reflections)
    absorption = _absorb(rt60) if rt60 else 1.0
    room = pra.ShoeBox(
        ROOM,
        fs=rate,
        materials=pra.Material(absorption),
        max_order=reflections if rt60 else 0,
    )
    middle = np.array(ROOM) / 2
    room.add_source(middle + position)
    eights = [pra.directivities.CardioidFamily(np.array(axis), p=0) for axis in AXES]
    for microphone in MICROPHONES:
        capsules = np.repeat((middle + microphone)[:, None], 1 + len(eights), axis=1)
        room.add_microphone_array(capsules, directivity=[None, *eights])
    # one thread, whatever the machine: how the sums are cut would change their rounding
    pra.constants.set("num_threads", 1)
    room.compute_rir()
    # pyroomacoustics delays everything by half of the filter that shifts by parts of a sample
    delay = pra.constants.get("frac_delay_length") // 2
    responses = [capsule[0][delay:] for capsule in room.rir]
    longest = max(map(len, responses))
    heard = np.stack([np.pad(response, (0, longest - len(response))) for response in responses])
    heard = heard.astype(np.float32)
    heard.flags.writeable = False  # the cache gives one array to all callers
    return heard
