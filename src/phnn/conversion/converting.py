"""Dense layers to PH layers, from scratch, from their weights, or fitted to data."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import nn

from phnn.algebra import Algebra
from phnn.conversion import refining
from phnn.conversion.calibration import Calibration, Forward, evaluating
from phnn.conversion.candidates import KINDS, Family
from phnn.conversion.decisions import (
    Decision,
    Patterns,
    PerLayer,
    check_allowed,
    check_patterns,
    decide,
    require_layers,
    require_numbers,
    select,
)
from phnn.conversion.fitting import Progress, has_room
from phnn.conversion.making import Made, close_layers, make_layers
from phnn.conversion.opening import opened
from phnn.conversion.pretrained import guard
from phnn.conversion.report import Entry, Report, find_untouched, measure_size
from phnn.conversion.scoring import shrink_by_score
from phnn.conversion.shrinking import SILENT, Shrunk, fit_given, shrink
from phnn.conversion.sites import Site, check_model, find_sites, hooks, replace_modules
from phnn.nn import PHLayer
from phnn.structure import Structure, find_algebra

Model = TypeVar("Model", bound=nn.Module)


@torch.inference_mode(False)
def convert(
    model: Model,
    n: PerLayer | None = None,
    *,
    terms: int | None = None,
    algebra: Algebra | str | None = None,
    learn_algebra: bool | None = None,
    budget: float | None = None,
    compute: float | None = None,
    calibration: Any = None,
    forward: Forward | None = None,
    kinds: Sequence[str] = KINDS,
    evaluate: Callable[[nn.Module], float] | None = None,
    tolerance: float | None = None,
    relative: bool = False,
    lower_is_better: bool = False,
    refine: int = 4,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    allow: str | Sequence[str] = (),
    indivisible: str = "skip",
    start: str = "nearest",
    share_algebra: bool = False,
    inplace: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Replace the layers of any model by smaller PH layers.

    Linear layers, convolutions, recurrent layers and their cells, attention, and embeddings have a
    PH twin. Each matrix of a recurrent layer and each projection of attention is a layer of its
    own here, named as in `lstm.weight_ih_l0` and `attention.q_proj`. Embeddings are converted by a
    budget, or if they are named: the rows of a table are no components.

    Three ways to say how small: `n=` (and `terms=`, `algebra=`) gives every layer the same
    structure; `budget=` and `compute=` choose a structure for each layer, so that the whole model
    stays within a share of its parameters and multiplications; `evaluate=` and `tolerance=` find
    the smallest model whose score you accept. With `calibration=` the layers are fitted to data,
    which is far better than a fit to their weights; some hundred samples without labels are enough.

    Args:
        model: Any model. Layers of exactly torch's types (and transformers' `Conv1D`) are replaced;
            subclasses are left alone unless `allow` names them.
        n: Dimension of the algebras: a number or a pair (n_out, n_in), a mapping of name patterns
            to these (`{"layer4.*": 8}`; the first that matches counts, other layers stay), or a
            function of name and module (None: stays).
        terms: Number of Kronecker terms, n by default; required for pairs.
        algebra: A known algebra for all layers, or its name; it implies n.
        learn_algebra: Whether the algebras are learned; by default exactly when none is given.
        budget: The share of its parameters that the whole model may keep.
        compute: The share of its multiplications that the model may keep, for one sample of the
            calibration data. Convolutions and matrix products count, each layer in its cheapest
            computation.
        calibration: Data that the model is used on, without labels: one call (a tensor, a tuple of
            arguments, or a dict of named ones), or an iterable of calls.
        forward: How a batch of the calibration data is fed: a function of model and batch, such as
            `lambda model, batch: model(batch[0])` for a loader with labels.
        kinds: Which structures a budget may choose: "square" (the paper's), "rectangular", and
            "low rank".
        evaluate: A function of a model that returns its score.
        tolerance: By how much the score may fall.
        relative: Whether the tolerance is a share of the score.
        lower_is_better: Whether a lower score is better, as of a loss.
        refine: Passes over the calibration data in which all layers learn together to follow the
            original, if that brings its outputs nearer on held-out data; 0 for none.
        seed: Of what is drawn from the calibration data; the same seed gives the same model.
        cache: A folder that keeps what was measured, so that an interrupted search goes on.
        include: Names to replace, all by default: a pattern, several, or a function of name and
            module.
        exclude: Names to leave alone, in the same forms.
        allow: Class names of subclasses that compute what their torch class does.
        indivisible: What to do with a layer that n does not divide: "skip" it, "raise" an error, or
            "shrink" n to the largest number that does.
        start: "nearest" to the trained weights, or "random".
        share_algebra: One A for all layers of the same n and terms.
        inplace: Change the model itself instead of a copy.
        progress: Called with what is done, how far, and of how much.

    Returns:
        The model. Its `phnn_report` says what was won and what became of each layer; it prints as a
        table.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        >>> small = convert(model, budget=0.5, calibration=torch.randn(256, 64))
        >>> small.phnn_report.parameters_after <= 0.5 * small.phnn_report.parameters_before
        True
    """
    check_model(model, "convert")
    known = find_algebra(algebra)
    if n is None and known is None and budget is None and compute is None and evaluate is None:
        raise TypeError("give n=, algebra=, budget=, compute= or evaluate=")
    _check_options(n, terms, known, budget, compute, start, indivisible, calibration, share_algebra)
    _check_search(evaluate, tolerance, calibration, budget, compute, n)
    if not isinstance(refine, int) or refine < 0:
        raise ValueError(f"refine must be 0 or more passes over the calibration data, got {refine}")
    family = Family.of(kinds)
    allow = [allow] if isinstance(allow, str) else allow
    sites = find_sites(model, allow)
    check_allowed(sites, allow)
    check_patterns(sites, include=include, exclude=exclude, n=n)
    decisions = select(model, sites, include, exclude)
    require_layers(model, decisions)
    chooses = budget is not None or compute is not None or evaluate is not None
    if chooses or start == "nearest":
        require_numbers(decisions)
    if not chooses:
        structure = None
        if known is not None or learn_algebra is False:
            structure = Structure.of(algebra=known, learn_algebra=learn_algebra)
        is_named = include is not None
        decisions = decide(decisions, n, terms, structure, indivisible, is_named)
        require_layers(model, decisions)
    shrunk: Shrunk | None = None
    parts = [d.site for d in decisions if d.is_open and d.site.is_part]
    wholes = dict.fromkeys(site.whole for site in parts if site.whole is not None)
    data = None if calibration is None else Calibration(model, calibration, forward, seed=seed)
    options: dict[str, Any] = {"family": family, "cache": cache, "progress": progress}
    with opened(model, list(wholes) if data is not None else []) as open_model:
        if evaluate is not None:
            assert tolerance is not None
            assert data is not None
            shrunk = shrink_by_score(
                open_model,
                decisions,
                data,
                evaluate,
                tolerance,
                relative=relative,
                lower_is_better=lower_is_better,
                **options,
            )
        elif chooses:
            shrunk = shrink(open_model, decisions, budget, compute, data, **options)
        elif data is not None:
            shrunk = fit_given(open_model, decisions, data, progress)
    if shrunk is not None:
        decisions = shrunk.decisions
    before = measure_size(model)
    made = make_layers(decisions, None if shrunk is None else shrunk.fits, start, share_algebra)
    reasons = {} if data is None else _explain_weights(decisions)
    entries = tuple(_entry(d, made.get(d.name), reasons.get(d.name, "")) for d in decisions)
    ph_layers = {name for name, m in made.items() if isinstance(m.layer, PHLayer)}
    kept = find_untouched(model, [_owner(d.site) for d in decisions if d.name in ph_layers])
    changed, layers = close_layers(sites, {name: m.layer for name, m in made.items()}, start)
    is_better = None if evaluate is None else _judge(evaluate, lower_is_better)
    shrunk = _refine(model, changed, layers, shrunk, data, refine, is_better, progress)
    replaced = cast("Model", replace_modules(model, changed, layers, inplace))
    if shrunk is not None and shrunk.norms:
        replaced.load_state_dict(shrunk.norms, strict=False)
    guard(replaced)
    after = measure_size(replaced)
    replaced.phnn_report = Report(  # type: ignore[assignment]
        entries,
        parameters_before=before.parameters,
        parameters_after=after.parameters,
        bytes_before=before.bytes,
        bytes_after=after.bytes,
        untouched=kept,
        **({} if shrunk is None else shrunk.summary),
    )
    return replaced


def _refine(
    model: nn.Module,
    sites: Sequence[Site],
    layers: Mapping[str, nn.Module],
    shrunk: Shrunk | None,
    data: Calibration | None,
    epochs: int,
    is_better: Callable[[nn.Module, nn.Module], bool] | None,
    progress: Progress | None,
) -> Shrunk | None:
    """Let the new layers learn together, in a copy of the model that holds them.

    The user's score, where there is one, must not fall.
    """
    if shrunk is None or shrunk.fits is None or data is None or not epochs:
        return shrunk
    student = replace_modules(model, sites, layers, inplace=False)
    if shrunk.norms:
        student.load_state_dict(shrunk.norms, strict=False)
    before = None if is_better is None else copy.deepcopy(student)
    distance = refining.refine(student, model, list(layers), data, epochs, progress)
    if distance is None:
        return shrunk
    if is_better is not None and before is not None and not is_better(student, before):
        student.load_state_dict(before.state_dict())
        return shrunk
    done = [*shrunk.summary.get("done", ()), f"all layers refined together, {epochs} passes"]
    summary = {**shrunk.summary, "distance": distance, "done": done}
    return replace(shrunk, norms=refining.norm_state(student), summary=summary)


def _judge(
    evaluate: Callable[[nn.Module], float], lower_is_better: bool
) -> Callable[[nn.Module, nn.Module], bool]:
    """Return a function that says whether a model scores at least as well as another."""

    def is_better(model: nn.Module, other: nn.Module) -> bool:
        scores = []
        for network in (model, other):
            with evaluating(network):
                scores.append(float(evaluate(network)))
        return scores[0] <= scores[1] if lower_is_better else scores[0] >= scores[1]

    return is_better


def _check_options(
    n: PerLayer | None,
    terms: int | None,
    algebra: Algebra | None,
    budget: float | None,
    compute: float | None,
    start: str,
    indivisible: str,
    calibration: object,
    share_algebra: bool,
) -> None:
    for option, share in (("budget", budget), ("compute", compute)):
        if share is None:
            continue
        if n is not None or algebra is not None or terms is not None:
            raise ValueError(
                f"{option}={share} chooses n and terms itself; leave n, terms and algebra out"
            )
        if not 0 < share < 1:
            what = "parameters" if option == "budget" else "multiplications"
            raise ValueError(f"{option} must be a share of the {what} in (0, 1), got {share}")
    if compute is not None and calibration is None:
        raise ValueError(
            "compute counts multiplications for the sizes of the calibration data; give "
            "calibration= as well"
        )
    if algebra is not None:
        if n not in (None, algebra.n):
            raise ValueError(f"{algebra.name} has n={algebra.n}, which contradicts n={n}")
        if terms is not None:
            raise ValueError(f"{algebra.name} has {algebra.n} terms; leave terms={terms} out")
        if indivisible == "shrink":
            raise ValueError(f"{algebra.name} has n={algebra.n}; only a learned algebra can shrink")
    if calibration is not None and (start == "random" or share_algebra):
        option = "start='random'" if start == "random" else "share_algebra=True"
        raise ValueError(f"{option} is not fitted to calibration data; leave one of them out")
    for option, value, choices in (
        ("start", start, ("nearest", "random")),
        ("indivisible", indivisible, ("skip", "raise", "shrink")),
    ):
        if value not in choices:
            raise ValueError(f"{option} must be one of {', '.join(choices)}; got {value!r}")


def _check_search(
    evaluate: object,
    tolerance: float | None,
    calibration: object,
    budget: object,
    compute: object,
    n: object,
) -> None:
    if evaluate is None:
        if tolerance is not None:
            raise ValueError(f"tolerance={tolerance} limits the score of evaluate=; give both")
        return
    if tolerance is None or calibration is None:
        missing = "tolerance" if tolerance is None else "calibration"
        raise ValueError(f"evaluate= searches with tolerance= and calibration=; give {missing}=")
    if any(size is not None for size in (budget, compute, n)):
        raise ValueError("evaluate= finds the size itself; leave n=, budget= and compute= out")
    if tolerance < 0:
        raise ValueError(f"tolerance must be at least 0, got tolerance={tolerance}")


def _owner(site: Site) -> nn.Module:
    return site.whole.module if site.whole is not None and site.is_part else site.module


def _explain_weights(decisions: Sequence[Decision]) -> dict[str, str]:
    """Return why layers were fitted to their weights although there are data."""
    shared = {d.tied_to.name for d in decisions if d.tied_to is not None}
    reasons: dict[str, str] = {}
    for decision in decisions:
        name = decision.name
        if decision.stays:
            continue
        if decision.reason == SILENT:
            reasons[name] = "which did not reach them"
        elif name in shared or decision.tied_to is not None:
            reasons[name] = "because other layers share them"
        elif not has_room(decision.site):
            reasons[name] = "as the second moments of their inputs take too much memory"
    return reasons


def _entry(decision: Decision, made: Made | None, by_weight: str) -> Entry:
    site = decision.site
    before = site.kind
    notes = [decision.reason] if decision.reason else []
    if len(site.names) > 1:
        notes.append(f"also {', '.join(site.names[1:])}")
    if made is None or not isinstance(made.layer, PHLayer):
        if made is not None and made.error:
            notes.append("kept, and fitted to the data")
        note = "; ".join(notes) or "kept: its parameters are worth their room in the budget"
        size = site.parameters
        return Entry(site.name, before, before, size, size, None, note)
    lost = list(hooks(site.module))
    if lost:
        notes.append(f"lost its {', '.join(lost)}")
    size = sum(parameter.numel() for parameter in made.layer.parameters())
    kind: type[nn.Module] = type(made.layer)
    if site.is_part and site.whole is not None:
        kind = site.whole.opened.twin
    after = f"{kind.__name__} {made.layer.structure}".replace(",", "")
    after = after.replace("algebra=", "").replace("learn_True", "learned")
    note = "; ".join(notes)
    return Entry(site.name, before, after, site.parameters, size, made.error, note, by_weight)
