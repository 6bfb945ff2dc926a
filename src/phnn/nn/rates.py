r"""Learning rates of A and F that change them as much as the real weight would change.

Take a weight H of a real layer, with independent entries of variance :math:`\sigma^2`, and a
gradient whose entries are independent and of variance :math:`\gamma^2`. A step of SGD with rate
:math:`\eta` changes H by :math:`\eta\gamma/\sigma` of its size. In a PH layer with filters of p
entries, :math:`\partial F_i = \sum_{ab} A[i,a,b]\, G_{ab}` and :math:`\partial A[i,a,b] = \langle
F_i, G_{ab}\rangle`. With the default start, :math:`\lVert A\rVert^2 = n_{out}n_{in}` and F has the
variance of H, so F and A change by

.. math:: \eta_F \frac{\gamma}{\sigma} \sqrt{\frac{n_{out} n_{in}}{terms}}, \qquad
          \eta_A\, \gamma \sigma \sqrt{p \cdot terms}

of their sizes. Equal relative changes ask for

.. math:: \frac{\eta_F}{\eta} = \sqrt{\frac{terms}{n_{out} n_{in}}}, \qquad
          \frac{\eta_A}{\eta} = \frac{1}{\sigma^2 \sqrt{p \cdot terms}}.

For terms = n that is :math:`1/\sqrt n` for F, and :math:`3 k \sqrt{n}` for the A of a k×k
convolution with as many inputs as outputs: 1/2 and 18 for n = 4, k = 3. A step of Adam changes
every entry by :math:`\eta`, whatever its gradient. Then :math:`\eta_F = \eta`, and :math:`\eta_A =
\eta / (\sigma \sqrt{terms})`, the ratio of the sizes of their entries.
"""

from __future__ import annotations

import math
from typing import Literal

from phnn.nn._weight import PHWeight

Kind = Literal["sgd", "adam"]


def balance_rates(layer: PHWeight, optimizer: Kind = "sgd") -> dict[str, float]:
    """Return the factors of the learning rate for F and A, or U, V and W, of a layer.

    With these, and the default start, a step changes each of them by the fraction by which it would
    change the weight of the real layer. They follow from the shapes alone.

    Args:
        layer: The layer.
        optimizer: "sgd", or "adam" for optimizers that normalise every entry's step.

    Example:
        >>> from phnn.nn import PHConv2d
        >>> {name: round(f, 3) for name, f in balance_rates(PHConv2d(96, 96, 3, n=4)).items()}
        {'F': 0.5, 'A': 18.0}
    """
    if optimizer not in ("sgd", "adam"):
        raise ValueError(f'optimizer must be "sgd" or "adam", got {optimizer!r}')
    blocks = layer.n_out * layer.n_in
    variance = layer.default_std**2
    shares = _shares(layer)
    if optimizer == "adam":
        sizes = {name: math.sqrt(share / variance) for name, (share, _) in shares.items()}
        return {"F": 1.0, **sizes}
    entries = layer.F.numel() / layer.terms
    unit = 1 / (variance * math.sqrt(entries))
    steps = {name: unit * math.sqrt(share / gain) for name, (share, gain) in shares.items()}
    return {"F": math.sqrt(layer.terms / blocks), **steps}


def _shares(layer: PHWeight) -> dict[str, tuple[float, float]]:
    """Return, for A or its factors, the mean square of an entry, and of its effect on A.

    The gradient of A has independent entries of equal size. That of V[b, r] is their sum over i
    and a, weighted by U[i, r] W[a, r]: its mean square is theirs times ‖u_r‖² ‖w_r‖².
    """
    if not layer.learns_algebra:
        return {}
    blocks = layer.n_out * layer.n_in
    if layer.rank is None:
        return {"A": (1 / layer.terms, 1.0)}
    # the start gives each of the rank products u_r v_r w_r an equal share of ‖A‖²
    mixes = layer.U is not None
    norm = (blocks / layer.rank) ** (1 / 3 if mixes else 1 / 2)  # squared, of each factor of a term
    lengths = {"U": layer.terms, "V": layer.n_in, "W": layer.n_out}
    gain = norm**2 if mixes else norm  # without U, u_r is a unit vector
    return {name: (norm / lengths[name], gain) for name in layer.algebra_names}
