"""The best small network: a structure for each layer, fitted to data, within limits."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from phnn.conversion.budget import Limits, choose
from phnn.conversion.cache import Cache
from phnn.conversion.calibration import Calibration, evaluating
from phnn.conversion.candidates import (
    Candidate,
    Family,
    by_activations,
    by_weights,
    count_multiplications,
)
from phnn.conversion.decisions import Decision
from phnn.conversion.fitting import (
    Fit,
    Fitted,
    Progress,
    Targets,
    fit_in_order,
    measure,
    retake_norms,
)
from phnn.conversion.patches import Geometry
from phnn.conversion.refining import norm_state
from phnn.conversion.sensitivity import Sensitivity, measure_sensitivities
from phnn.conversion.sites import Site

__all__ = ["Shrinker", "Shrunk", "fit_given", "shrink", "summarize"]

EVERY = Family()
SILENT = "not reached by the calibration data: fitted to its weight"
HOPELESS = 1.5  # a rival whose expected error is this much larger is not raced


@dataclass(frozen=True)
class Shrunk:
    """What a search found.

    Attributes:
        decisions: What becomes of each layer.
        fits: The fitted layers by name; None where they are fitted to weights.
        norms: Batch norm statistics that were taken again, by key.
        summary: Further fields of the report.
    """

    decisions: list[Decision]
    fits: Mapping[str, Fit] | None = None
    norms: Mapping[str, Tensor] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)


def shrink(
    model: nn.Module,
    decisions: Sequence[Decision],
    budget: float | None,
    compute: float | None,
    calibration: Calibration | None,
    *,
    family: Family = EVERY,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Shrunk:
    """Choose a structure for each open layer and fit it.

    Args:
        model: The model.
        decisions: Which layers are open.
        budget: Share of the parameters that the model may keep.
        compute: Share of the multiplications that it may keep.
        calibration: The data; without it the errors are those of the weights.
        family: Which structures to consider.
        cache: A folder that keeps what was measured.
        progress: Told what is done, how far, and of how much.
    """
    shrinker = Shrinker(model, decisions, calibration, family, cache, progress)
    return shrinker.shrink(budget, compute)


def fit_given(
    model: nn.Module,
    decisions: Sequence[Decision],
    calibration: Calibration,
    progress: Progress | None = None,
) -> Shrunk:
    """Fit the structures that the user gave to the data."""
    order, positions, silent = _survey(model, [d.site for d in decisions if d.is_open], calibration)
    structures = {d.name: d.structure for d in decisions if d.structure is not None}
    shared = {d.tied_to.name for d in decisions if d.tied_to is not None}
    sites = [site for site in order if site.name in structures]
    sensitivities = measure_sensitivities(model, sites, calibration)
    wanted = Targets(model, calibration)
    fitted = fit_in_order(model, sites, structures, wanted, sensitivities, progress, shared)
    whole = _count_model(model, calibration)
    saved = sum(
        count_multiplications(site, None, positions[site.name])
        - count_multiplications(site, structures[site.name], positions[site.name])
        for site in sites
    )
    work = {"multiplications_before": whole, "multiplications_after": whole - saved}
    summary = {**summarize(fitted), **work, "done": ["layers fitted in order"]}
    return Shrunk(_note_silent(decisions, silent), fitted.fits, summary=summary)


class Shrinker:
    """What is known of a model and its layers: measured once, used for every budget.

    Args:
        model: The model.
        decisions: Which layers are open.
        calibration: The data, or None.
        family: Which structures to consider.
        cache: A folder that keeps what was measured, or None.
        progress: Told what is done.
    """

    def __init__(
        self,
        model: nn.Module,
        decisions: Sequence[Decision],
        calibration: Calibration | None,
        family: Family = EVERY,
        cache: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.calibration, self.family = model, calibration, family
        self.progress = progress or (lambda what, done, total: None)
        self.sites = [d.site for d in decisions if d.is_open]
        self.silent: set[str] = set()
        self.sensitivities: dict[str, Sensitivity] = {}
        self.shared = {d.tied_to.name for d in decisions if d.tied_to is not None}
        self.positions = dict.fromkeys((site.name for site in self.sites), 0.0)
        if calibration is not None:
            self.targets = Targets(model, calibration)
            self.sites, self.positions, self.silent = _survey(model, self.sites, calibration)
            self.sensitivities = measure_sensitivities(model, self.sites, calibration)
        self.decisions = _note_silent(decisions, self.silent)
        self.total = sum(parameter.numel() for parameter in model.parameters())
        self.fixed = self.total - sum(site.weight.numel() for site in self.sites)
        self.cache = None if cache is None else Cache(Path(cache), self.sites, calibration, family)
        self.candidates = self._measure()

    def _measure(self) -> dict[str, list[Candidate]]:
        found: dict[str, list[Candidate]] = {}
        known = {} if self.cache is None else self.cache.read()
        missing = [site for site in self.sites if site.name not in known]
        if self.calibration is None:
            pairs = ((site, None) for site in missing)
        else:
            pairs = measure(self.model, missing, self.calibration, self.sensitivities)  # type: ignore[assignment]
        for site, moments in pairs:
            self.progress("measuring layers", len(known), len(self.sites))
            positions = self.positions[site.name]
            if moments is None or site.name in self.shared:
                known[site.name] = by_weights(site, self.family, positions)
            else:
                known[site.name] = by_activations(site, moments, self.family, positions)
            if site.name in self.sensitivities:
                weight = self.sensitivities[site.name].weight
                known[site.name] = [replace(c, weight=weight) for c in known[site.name]]
            if self.cache is not None:
                self.cache.write(known)
        for site in self.sites:
            found[site.name] = known[site.name]
        return found

    def limits(self, budget: float | None, compute: float | None) -> Limits:
        """Return what the converted layers may have together."""
        parameters = multiplications = math.inf
        if budget is not None:
            parameters = int(budget * self.total) - self.fixed
        if compute is not None:
            whole = self.multiplications
            dense = sum(
                count_multiplications(site, None, self.positions[site.name]) for site in self.sites
            )
            multiplications = compute * whole - max(0.0, whole - dense)
        return Limits(parameters, multiplications)

    def choose(
        self, budget: float | None, compute: float | None, only: Callable[[Candidate], bool]
    ) -> dict[str, Candidate] | None:
        """Choose among the candidates that a condition admits."""
        admitted = {
            name: [c for c in options if c.structure is None or only(c)]
            for name, options in self.candidates.items()
        }
        return choose(admitted, self.limits(budget, compute))

    def shrink(self, budget: float | None, compute: float | None) -> Shrunk:
        """Return the best network within limits."""
        chosen = self.choose(budget, compute, lambda candidate: True)
        if chosen is None:
            raise ValueError(self._explain(budget, compute))
        if self.calibration is None:
            return Shrunk(self.decide(chosen), summary={"done": ["fitted to the weights"]})
        rivals = [chosen]
        low_rank = self.choose(budget, compute, _is_low_rank)
        if low_rank is not None and low_rank != chosen:
            costs = [sum(c.cost for c in rival.values()) for rival in (chosen, low_rank)]
            if costs[1] < HOPELESS * costs[0]:
                rivals.append(low_rank)
        fitted = [self.fit(rival) for rival in rivals]
        best = min(range(len(fitted)), key=lambda i: fitted[i].distance)
        network = retake_norms(fitted[best], self.model, self.calibration)
        done = ["layers fitted in order"]
        norms: dict[str, Tensor] = {}
        if network is not fitted[best]:
            done.append("batch norm statistics taken again")
            norms = norm_state(network.model)
        return Shrunk(
            self.decide(rivals[best]),
            network.fits,
            norms,
            {**summarize(network), **self.count_work(rivals[best]), "done": done},
        )

    def count_work(self, chosen: Mapping[str, Candidate]) -> dict[str, float]:
        """Return the multiplications of a sample before and after."""
        dense = (count_multiplications(s, None, self.positions[s.name]) for s in self.sites)
        saved = sum(dense) - sum(candidate.multiplications for candidate in chosen.values())
        return {
            "multiplications_before": self.multiplications,
            "multiplications_after": self.multiplications - saved,
        }

    @cached_property
    def multiplications(self) -> float:
        """Multiplications of the whole model for one sample."""
        assert self.calibration is not None
        return _count_model(self.model, self.calibration)

    def fit(self, chosen: Mapping[str, Candidate]) -> Fitted:
        """Fit the chosen structures, layer after layer."""
        structures = {name: candidate.structure for name, candidate in chosen.items()}
        return fit_in_order(
            self.model,
            self.sites,
            structures,
            self.targets,
            self.sensitivities,
            self.progress,
            self.shared,
        )

    def decide(self, chosen: Mapping[str, Candidate]) -> list[Decision]:
        """Return what becomes of each layer."""
        return [
            replace(d, structure=chosen[d.name].structure) if d.name in chosen else d
            for d in self.decisions
        ]

    def _explain(self, budget: float | None, compute: float | None) -> str:
        least = {name: min(c.parameters for c in cs) for name, cs in self.candidates.items()}
        smallest = self.fixed + sum(least.values())
        work = {name: min(c.multiplications for c in cs) for name, cs in self.candidates.items()}
        texts = []
        if budget is not None and smallest > budget * self.total:
            texts.append(
                f"budget={budget} of {self.total:,} parameters cannot be met: the smallest layers "
                f"leave {smallest:,}, {smallest / self.total:.1%}"
            )
            held = self._held()
            if held:
                texts.append(f"most of it is held by {held}")
        else:
            texts.append(
                f"compute={compute} cannot be met: the cheapest layers together take "
                f"{sum(work.values()):,.0f} multiplications for a sample"
            )
        return "; ".join(texts)

    def _held(self) -> str:
        """Name the largest parameters that cannot be converted."""
        converted = {id(site.module.get_parameter("weight")) for site in self.sites}
        wholes = {site.whole.module for site in self.sites if site.whole is not None}
        converted |= {id(p) for module in wholes for p in module.parameters(recurse=False)}
        kept = [
            (parameter.numel(), name)
            for name, parameter in self.model.named_parameters()
            if id(parameter) not in converted
        ]
        return ", ".join(f"{name} ({size:,})" for size, name in sorted(kept, reverse=True)[:3])


def _is_low_rank(candidate: Candidate) -> bool:
    structure = candidate.structure
    return structure is not None and 1 in (structure.n_out, structure.n_in)


def summarize(fitted: Fitted) -> dict[str, Any]:
    """Return what the report says of a fitted network."""
    return {"distance": fitted.distance}


def _survey(
    model: nn.Module, sites: Sequence[Site], calibration: Calibration
) -> tuple[list[Site], dict[str, float], set[str]]:
    """Look where the data get to.

    Returns:
        The sites in the order of their first call, then those that are never called; the output
        positions of each for one sample; the names of those that are never called.
    """
    counts: dict[str, int] = {}
    called: list[Site] = []

    def see(site: Site, call: int, x: Tensor) -> None:
        if site.name not in counts:
            called.append(site)
        counts[site.name] = counts.get(site.name, 0) + Geometry.of(site).count_positions(x)

    calibration.observe(model, sites, see)
    silent = [site for site in sites if site.name not in counts]
    samples = max(1, calibration.count(calibration.fitting))
    positions = {site.name: counts.get(site.name, 0) / samples for site in sites}
    return [*called, *silent], positions, {site.name for site in silent}


def _count_model(model: nn.Module, calibration: Calibration) -> float:
    """Return the multiplications of the whole model for one sample."""
    call = calibration.calls[0]
    with evaluating(model), FlopCounterMode(display=False) as counter:
        calibration.run(model, call)
    return float(counter.get_total_flops() / 2 / max(1, calibration.count([call])))


def _note_silent(decisions: Sequence[Decision], silent: set[str]) -> list[Decision]:
    return [replace(d, reason=SILENT) if d.name in silent else d for d in decisions]
