"""The study: what its trials have in common, kept in a file or a database."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from phnn.lab.files import check_regular
from phnn.lab.recipe import Recipe, differences
from phnn.lab.runs import public
from phnn.lab.seeds import derive_seed
from phnn.lab.tuning.objectives import Objective
from phnn.lab.tuning.space import Dimension

Pruner = Literal["asha", "median", "none"]
STORAGE = "PHNN_STUDY"  # the variable with the storage, for the processes of the trials
ABOUT = "phnn"  # the attribute of a study that says what it is
TRIES = 5  # to open a database in which another machine is making tables
PRUNERS: dict[str, type[BasePruner]] = {
    "asha": SuccessiveHalvingPruner,
    "median": MedianPruner,
    "none": NopPruner,
}


class SeededSampler(BaseSampler):
    """TPE for one objective, NSGA-II for several, with a seed that follows from the trial.

    So a study that was stopped continues as if it had not been, and workers never draw alike.

    Args:
        seed: The seed of the study.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._inner: BaseSampler = TPESampler(seed=seed)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Make the sampler of a trial."""
        seed = derive_seed(self.seed, trial.number) % 2**32
        kind = NSGAIISampler if len(study.directions) > 1 else TPESampler
        self._inner = kind(seed=seed)
        self._inner.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return what is sampled together."""
        return self._inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Sample what is sampled together."""
        return self._inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Sample one option."""
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Take note of an outcome."""
        self._inner.after_trial(study, trial, state, values)


def open_storage(where: str) -> BaseStorage:
    """Return a storage: a database for a URL, and else a journal in a file.

    Args:
        where: A URL that Optuna takes, such as postgresql+psycopg://HOST/NAME, or a path.

    Raises:
        ValueError: The database cannot be opened.
    """
    if "://" not in where:
        check_regular(Path(where))
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(where))
    from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

    for left in reversed(range(TRIES)):
        try:
            # connections are tested before use: a trial may take hours
            return RDBStorage(where, engine_kwargs={"pool_pre_ping": True})
        except ModuleNotFoundError as error:
            raise ValueError(f"{hide(where)} needs a driver: pip install {error.name}") from error
        except (ArgumentError, DBAPIError) as error:
            # another machine may be making the tables at this moment
            if not left or isinstance(error, ArgumentError | OperationalError):
                raise ValueError(
                    f"the study in {hide(where)} cannot be opened: {str(error).splitlines()[0]}"
                ) from error
            time.sleep(1)
    raise AssertionError  # the last try returns or raises


def hide(text: str) -> str:
    """Return a text without the passwords of its URLs.

    Example:
        >>> hide("postgresql://me:secret@host/studies")
        'postgresql://me:***@host/studies'
    """
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", text)


def open_study(
    where: str,
    name: str,
    recipe: Recipe,
    space: Sequence[Dimension],
    objectives: Sequence[Objective],
    pruner: Pruner,
) -> optuna.Study:
    """Return a study, which may have trials already.

    Args:
        where: The storage, see `open_storage`.
        name: The name of the study in its storage.
        recipe: The recipe whose options are searched.
        space: The options that are open, with their values.
        objectives: What to optimize.
        pruner: Which trials are given up.

    Raises:
        ValueError: The storage has a study of this name with another recipe, space or objectives.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = [objective.direction for objective in objectives]
    storage = open_storage(where)
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        directions=directions,
        sampler=SeededSampler(recipe.seed),
        pruner=PRUNERS[pruner](),
        load_if_exists=True,
    )
    about: dict[str, Any] = {
        "recipe": public(recipe),
        "space": {dimension.key: dimension.show() for dimension in space},
        "objectives": [objective.name for objective in objectives],
    }
    known = study.user_attrs.get(ABOUT)
    if known is None:
        study.set_user_attr(ABOUT, about)
        return study
    changed = differences(known["recipe"], about["recipe"], ended=False)
    changed += [
        f"{key}: {known[key]} → {about[key]}"
        for key in ("space", "objectives")
        if known[key] != about[key]
    ]
    if changed:
        raise ValueError(
            f"the study {name} in {hide(where)} searches something else ({'; '.join(changed)}); "
            "give another --out or --name"
        )
    return study


def load_study(where: str, name: str, pruner: Pruner) -> optuna.Study:
    """Return a study that exists, for a process that carries out one of its trials."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.load_study(
        study_name=name,
        storage=open_storage(where),
        sampler=SeededSampler(0),
        pruner=PRUNERS[pruner](),
    )


def is_counted(trial: FrozenTrial) -> bool:
    """Return whether a trial counts: it was not skipped, and does not wait."""
    return "skipped" not in trial.user_attrs and trial.state != TrialState.WAITING


def find_best(study: optuna.Study) -> list[FrozenTrial]:
    """Return the best trial, or those of the Pareto front in the order of the first objective."""
    ended = [
        trial
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if is_counted(trial)
    ]
    signs = [-1 if d == StudyDirection.MAXIMIZE else 1 for d in study.directions]
    costs = {t.number: [s * v for s, v in zip(signs, t.values, strict=True)] for t in ended}
    best = [
        trial
        for trial in ended
        if not any(_beats(other, costs[trial.number]) for other in costs.values())
    ]
    best.sort(key=lambda trial: (costs[trial.number], trial.number))
    # of trials that are equally good, the first
    return list({tuple(trial.values): trial for trial in reversed(best)}.values())[::-1]


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and list(one) != list(other)
