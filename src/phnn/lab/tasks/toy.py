r"""The learning tests of the paper: can a PH layer find the rule behind its data?

A hypercomplex convolution :math:`y = \sum_i A^*_i \otimes F^*_i * x` of random inputs with random
filters makes the data, and a `PHConv2d` that learns its algebra is trained on them.

- With the true filters given, the data determine each entry of A: it must become :math:`A^*`.
- With learned filters, A and F can exchange a change of basis. So H must become :math:`H^*`, and
  `phnn.analysis` must recognise the algebra.
- With pure quaternions, the real parts of the inputs and of the true filters are zero. The layer
  has a real part that is not zero: it must learn :math:`A_0 = 0`. As the real part of the inputs is
  always zero, the data do not determine the first column of any :math:`A_i`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from phnn import algebra, analysis
from phnn.algebra import Algebra
from phnn.analysis import Neighbour
from phnn.decompose.threads import one_thread
from phnn.lab.seeds import derive_seed
from phnn.nn import PHConv2d

__all__ = ["PROBLEMS", "STEPS", "TOLERANCE", "Problem", "Result", "solve"]

STEPS = 400  # the losses reach the precision of float32 after about 300
TOLERANCE = 1e-3
RATE = 0.05  # of Adam, falling to zero
WIDTH = 2  # hypercomplex channels in and out
KERNEL, SIZE, BATCH = 3, 6, 16


@dataclass(frozen=True)
class Problem:
    """A rule to be found.

    Attributes:
        algebra: The rule.
        learns_filters: Whether the layer also learns the filters, or is given the true ones.
        pure: Whether the real parts of the inputs and of the true filters are zero.
    """

    algebra: Algebra
    learns_filters: bool = False
    pure: bool = False

    @property
    def name(self) -> str:
        """The rule in words."""
        return f"pure {self.algebra.name}" if self.pure else self.algebra.name

    @property
    def learned(self) -> str:
        """What the layer has to find: A, or A and the filters."""
        return "A, F" if self.learns_filters else "A"

    @property
    def determined(self) -> Tensor:
        """Whether the data determine the entries of A in each column, (n,)."""
        columns = torch.ones(self.algebra.n, dtype=torch.bool)
        columns[0] = not self.pure
        return columns

    @property
    def truth(self) -> Tensor:
        """The algebra behind the data, (n, n, n), zero where it is not determined."""
        A = self.algebra.structure.float() * self.determined
        if self.pure:
            A[0] = 0
        return A


_RULES = (algebra.quaternion, algebra.complex, algebra.tessarine, algebra.octonion, analysis.cross)
PROBLEMS = (
    Problem(algebra.quaternion),
    Problem(algebra.quaternion, pure=True),
    *(Problem(rule) for rule in _RULES[1:]),
    *(Problem(rule, learns_filters=True) for rule in _RULES),
)


@dataclass(frozen=True, eq=False)
class Result:
    r"""What a layer learned.

    Attributes:
        problem: What it had to learn.
        losses: The mean squared error over the mean square of the targets, at every step.
        A: The learned algebra, (n, n, n).
        distance: With given filters :math:`\lVert A - A^* \rVert_F` over the determined columns,
            with learned ones :math:`\lVert H - H^* \rVert_F / \lVert H^* \rVert_F`.
        nearest: The known algebra with the nearest span; None where A is not fully determined.
    """

    problem: Problem
    losses: tuple[float, ...]
    A: Tensor
    distance: float
    nearest: Neighbour | None

    @property
    def passed(self) -> bool:
        """Whether the rule was found: the distance is small, and the algebra is recognised."""
        recognised = self.nearest is None or (
            self.nearest.is_match and self.nearest.algebra == self.problem.algebra
        )
        return self.distance < TOLERANCE and recognised


@one_thread()  # the convolutions are too small to share
def solve(problem: Problem, steps: int = STEPS, seed: int = 0) -> Result:
    """Train a layer on one problem; the same arguments give the same result.

    Args:
        problem: What to learn.
        steps: The steps of Adam, each with new data.
        seed: The seed of filters, starting values and data.

    Example:
        >>> solve(Problem(algebra.complex), steps=3).passed
        False
    """
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    n = problem.algebra.n
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, n, problem.learns_filters, problem.pure))
        teacher, student = _make_layers(problem)
        losses = _train(student, teacher, problem.pure, steps)
    A = student.A.detach().clone()
    if problem.learns_filters:
        distance = (student.weight - teacher.weight).norm() / teacher.weight.norm()
    else:
        distance = ((A - problem.truth) * problem.determined).norm()
    return Result(
        problem=problem,
        losses=losses,
        A=A,
        distance=distance.item(),
        nearest=None if problem.pure else analysis.neighbours(A, analysis.known(n))[0],
    )


def _make_layers(problem: Problem) -> tuple[PHConv2d, PHConv2d]:
    """Return the layer that makes the data, and the one that learns from them."""
    channels = WIDTH * problem.algebra.n
    teacher = PHConv2d(channels, channels, KERNEL, bias=False, algebra=problem.algebra)
    student = PHConv2d(channels, channels, KERNEL, bias=False, n=problem.algebra.n)
    teacher.requires_grad_(False)
    if not problem.learns_filters:
        student.F.requires_grad_(False).copy_(teacher.F)
    if problem.pure:
        teacher.F[:WIDTH] = 0
    return teacher, student


def _train(student: PHConv2d, teacher: PHConv2d, pure: bool, steps: int) -> tuple[float, ...]:
    learned = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    losses = []
    for _ in range(steps):
        x = torch.randn(BATCH, teacher.in_channels, SIZE, SIZE)
        if pure:
            x[:, :WIDTH] = 0
        y = teacher(x)
        loss = (student(x) - y).square().mean() / y.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return tuple(losses)
