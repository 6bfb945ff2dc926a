"""The acoustics of an office with two ambisonics microphones, as that of L3DAS21.

The room is a box of 6 × 5 × 3 m. Places are (x, y, z) in metres from microphone A, which stands in
the middle; microphone B stands 20 cm from it along the width, at y = 0.2. Each microphone has four
capsules in one point: W hears all directions alike, Y, Z and X are figures of eight along their
axes. Their order and gains are those of AmbiX: ACN (W, Y, Z, X) and SN3D, so that a plane wave from
the unit vector (x, y, z) is heard as (1, y, z, x).
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Place = tuple[float, float, float]

ROOM = (6.0, 5.0, 3.0)
MICROPHONES: tuple[Place, ...] = ((0.0, 0.0, 0.0), (0.0, 0.2, 0.0))
AXES = ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0))  # of Y, Z and X
CHANNELS = len(MICROPHONES) * (1 + len(AXES))
GRID = (
    tuple(step / 4 for step in range(-8, 9)),
    tuple(step / 4 for step in range(-6, 7)),
    (-1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 1.0),
)
NEAREST = 0.5  # metres; the grid goes through the microphones, where 1/r has no bound
CACHED = 256  # responses of about 0.3 MB


def draw_place(rng: np.random.Generator) -> Place:
    """Draws a place of the data set's grid that is not too close to a microphone.

    Args:
        rng: where the randomness comes from.
    """
    while True:
        x, y, z = (float(rng.choice(steps)) for steps in GRID)
        if all(np.hypot(np.hypot(x - a, y - b), z - c) >= NEAREST for a, b, c in MICROPHONES):
            return x, y, z


def check_reverberation(rt60: float, reflections: int) -> None:
    """Raises a ValueError for a reverberation that the room cannot have.

    Args:
        rt60: seconds until the sound has fallen by 60 dB; 0 for a room without walls.
        reflections: the most walls on the way of a sound.
    """
    width, depth, height = ROOM
    surface = 2 * (width * depth + depth * height + height * width)
    shortest = 24 * np.log(10) * width * depth * height / (343 * surface)  # Sabine, all absorbed
    if rt60 != 0 and not shortest < rt60 < 10:
        raise ValueError(
            f"rt60={rt60} must be 0, for no reverberation, or between {shortest:.2f} and 10 s"
        )
    if reflections < 0:
        raise ValueError(f"reflections={reflections} must not be negative")


@lru_cache(CACHED)
def impulse_response(
    place: Place, rate: int = 32000, rt60: float = 0.3, reflections: int = 17
) -> Array:
    """Returns what the microphones hear of an impulse, (8, samples): A's W, Y, Z, X, then B's.

    The image sources are those of pyroomacoustics. Sound that met more than `reflections` walls is
    left out: at the default, with the absorption that gives 0.3 s, it is more than 36 dB below the
    direct sound.

    Args:
        place: of the source.
        rate: samples per second.
        rt60: seconds until the sound has fallen by 60 dB; 0 for a room without walls.
        reflections: the most walls on the way of a sound.
    """
    import pyroomacoustics as pra

    check_reverberation(rt60, reflections)
    absorption = pra.inverse_sabine(rt60, ROOM)[0] if rt60 else 1.0
    room = pra.ShoeBox(
        ROOM,
        fs=rate,
        materials=pra.Material(absorption),
        max_order=reflections if rt60 else 0,
    )
    middle = np.array(ROOM) / 2
    room.add_source(middle + place)
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
    return np.stack(
        [np.pad(response, (0, longest - len(response))) for response in responses]
    ).astype(np.float32)
