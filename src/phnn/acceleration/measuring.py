"""Which form of each layer, and which model made of them, is the fastest here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from torch import nn

from phnn._screen import Progress
from phnn.acceleration.candidates import Candidates
from phnn.acceleration.workshop import Choice, Workshop
from phnn.forms import Form
from phnn.runtimes import Runtime
from phnn.runtimes.base import Arguments
from phnn.runtimes.nested import copy_tensors

# least time of a round on average, in which short calls are repeated
LAYER_SECONDS, MODEL_SECONDS = 0.02, 0.1
LARGE = 2**24  # bytes of a folded layer, from which on its forms are not all in memory at once
CLEAR = 0.98  # of the time of the folded model, below which another model is chosen
HOPELESS = 1.5  # times the least sum of the seconds of layers, from which on no model is raced
ASSEMBLED = "assembled"  # the model as it was given, among whole models

# seconds of the forms of each layer, by their names; of a form without rivals 0
Measured = dict[str, Mapping[Form, float]]


@dataclass(frozen=True)
class Clock:
    """How forms are timed.

    Attributes:
        runtime: Where they run.
        rounds: Timed calls of each, more of short ones.
        progress: Called with what is done, how far, and of how much.
    """

    runtime: Runtime
    rounds: int
    progress: Progress | None = None

    def tell(self, what: str, done: int, total: int) -> None:
        """Say how far the work is."""
        if self.progress is not None:
            self.progress(what, done, total)


def measure(
    workshop: Workshop, formats: Sequence[Sequence[Candidates]], clock: Clock
) -> list[Measured]:
    """Return the seconds of the forms of each layer, in each memory format.

    Equal layers are timed once. The modules of all but the fastest form are dropped.
    """
    known: dict[object, Mapping[Form, float]] = {}
    fastest: dict[str, tuple[Form, float]] = {}
    found: list[Measured] = []
    count = sum(map(len, formats))
    for candidates in formats:
        measured: Measured = {}
        for done, candidate in enumerate(candidates, 1):
            name, kind = candidate.layer.name, _kind(candidate)
            if len(candidate.forms) == 1:
                known[kind] = {candidate.forms[0]: 0.0}
            elif kind not in known:
                known[kind] = _time_layer(workshop, candidate, clock)
                best = min(known[kind].items(), key=itemgetter(1))
                fastest[name] = min(fastest.get(name, best), best, key=itemgetter(1))
                workshop.drop(name, besides=fastest[name][:1])
            measured[name] = known[kind]
            clock.tell("timing layers", len(found) * len(candidates) + done, count)
        found.append(measured)
    return found


def _kind(candidate: Candidates) -> object:
    """Return what the time of a layer depends on."""
    source = candidate.layer.source
    layer = source.layer
    arguments = tuple(str(getattr(layer, name)) for name in layer.dense_args)
    traits = (source.sizes, layer.bias is None, source.norm is None, candidate.forms)
    return (type(layer), arguments, traits, frozenset(candidate.calls.items()))


def _time_layer(workshop: Workshop, candidate: Candidates, clock: Clock) -> dict[Form, float]:
    """Return the seconds of each form of a layer.

    The forms of a large layer are timed one by one beside the folded one, which ties the groups
    together, and the slower ones are dropped: all of them would take many times its memory.
    """
    name, (folded, *others) = candidate.layer.name, candidate.forms
    calls: list[Arguments] = [((call.draw(),), {}) for call in candidate.calls.elements()]
    first = workshop.build(name, folded)
    is_large = sum(p.nbytes for p in first.parameters()) > LARGE
    size = 1 if is_large else max(1, len(others))
    times: dict[Form, float] = {}
    for start in range(0, len(others), size):
        group = [folded, *others[start : start + size]]  # folded first, without which nothing runs
        modules = {form: _with_norm(workshop, name, form) for form in group}
        contenders = clock.runtime.prepare_all(modules, calls)
        found = clock.runtime.time(contenders, clock.rounds, seconds=clock.rounds * LAYER_SECONDS)
        scale = times.get(folded, found[folded]) / found[folded]
        times |= {form: scale * seconds for form, seconds in found.items()}
        del modules, contenders
        if is_large:
            workshop.drop(name, besides=(folded, min(times, key=times.__getitem__)))
    return times


def _with_norm(workshop: Workshop, name: str, form: Form) -> nn.Module:
    """Return a layer in a form, with the batch norm that stays behind it."""
    module, norm = workshop.build(name, form), workshop.norm_after(name, form)
    return module if norm is None else nn.Sequential(module, norm)


def find_choices(measured: Sequence[Measured]) -> list[Choice]:
    """Return the choices that may be the fastest, by what is known of each layer alone.

    Args:
        measured: The seconds of all layers, with the example as it is and with channels last.

    Returns:
        The fastest forms with the example as it is, with channels last, and with the better of
        both for each layer; the same without Winograd forms, whose many weights cost more in a
        whole model than alone, and with dense forms alone, which are what the real model has.
        Those whose layers take much longer are left out: they would cost memory for nothing.
    """
    choices: dict[Choice, float] = {}
    for allow in (
        lambda form: True,
        lambda form: not form.is_winograd,
        lambda form: form.is_dense,
    ):
        found = [_fastest(times, allow) for times in measured]
        if len(found) > 1:
            found.append(_merge(*found))
        for timed in found:
            choice = Choice.of({name: form for name, (form, _) in timed.items()})
            choices[choice] = sum(seconds for _, seconds in timed.values())
    least = min(choices.values())
    return [choice for choice, seconds in choices.items() if seconds <= HOPELESS * least]


Timed = dict[str, tuple[Form, float]]


def _fastest(measured: Measured, allow: Callable[[Form], bool]) -> Timed:
    """Return the fastest form of each layer that is allowed; the folded one always is."""
    fastest = {}
    for name, times in measured.items():
        form = min(filter(allow, times), key=times.__getitem__)
        fastest[name] = (form, times[form])
    return fastest


def _merge(one: Timed, other: Timed) -> Timed:
    """Return the faster of two for each layer; what it costs to change formats is left out."""
    return {name: min(one[name], other[name], key=itemgetter(1)) for name in one}


Run = Callable[[], object]


def race(
    workshop: Workshop, choices: Sequence[Choice], clock: Clock
) -> tuple[Choice, dict[str, float]]:
    """Return the choice that makes the fastest whole model.

    Two models race at a time, and the slower one is dropped, so that few are in memory at once.
    Those that do not run, as where a view wants another order in memory, take no part.

    Returns:
        The fastest choice, and the seconds of the model as it was given, folded and accelerated,
        measured side by side.
    """
    folded = choices[0].folded()
    rivals = [choice for choice in choices if choice != folded]
    seconds = clock.rounds * MODEL_SECONDS / (len(rivals) + 1)
    best: dict[Choice, Run] = {}
    for done, choice in enumerate(rivals):
        clock.tell("racing whole models", done, len(rivals) + 1)
        best = _duel(workshop, best, choice, clock, seconds)
        workshop.keep(best)
    clock.tell("racing whole models", len(rivals), len(rivals) + 1)
    return _finish(workshop, {folded: _prepare(workshop, folded, clock), **best}, clock, seconds)


def _duel(
    workshop: Workshop, best: Mapping[Choice, Run], rival: Choice, clock: Clock, seconds: float
) -> dict[Choice, Run]:
    """Return the faster of the best model so far, if there is one, and a rival that may run."""
    try:
        pair = {**best, rival: _prepare(workshop, rival, clock)}
    except RuntimeError:
        return dict(best)
    if not best:
        return pair
    times = clock.runtime.time(pair, clock.rounds, warmup=1, seconds=seconds)
    fastest = min(times, key=times.__getitem__)
    return {fastest: pair[fastest]}


def _prepare(workshop: Workshop, choice: Choice, clock: Clock) -> Run:
    run = clock.runtime.prepare(workshop.assemble(choice), [_copy_example(workshop)])
    run()
    return run


def _copy_example(workshop: Workshop) -> Arguments:
    """Return a copy of the example: some models change theirs."""
    return copy_tensors(workshop.seen.args), copy_tensors(workshop.seen.kwargs)


def _finish(
    workshop: Workshop, finalists: Mapping[Choice, Run], clock: Clock, seconds: float
) -> tuple[Choice, dict[str, float]]:
    """Return the folded model, which comes first, or the best of the others if it is faster.

    It must be so by more than the noise.
    """
    original = clock.runtime.prepare(workshop.seen.model, [_copy_example(workshop)])
    contenders: dict[Choice | str, Run] = {ASSEMBLED: original}
    contenders.update(finalists.items())
    times = clock.runtime.time(contenders, clock.rounds, warmup=1, seconds=seconds)
    folded, *_ = finalists
    fastest = min(finalists, key=lambda choice: times[choice])
    if times[fastest] > CLEAR * times[folded]:
        fastest = folded
    workshop.keep([fastest])
    seconds_of = {"folded": times[folded], "accelerated": times[fastest]}
    return fastest, {ASSEMBLED: times[ASSEMBLED], **seconds_of}
