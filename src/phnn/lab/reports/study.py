"""The report of a study: its trials as tables and figures, from study.json alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phnn.io.header import check_fields, check_strings
from phnn.lab import pages
from phnn.lab.drawing import COLOURS, Picture
from phnn.lab.files import read_json
from phnn.lab.pages import Section
from phnn.lab.tasks.task import Score
from phnn.lab.tuning import STUDY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#999999"
SIZE = (5.2, 4.0)  # of a figure, in inches
LARGEST = 1e30  # of any number that is drawn
OPTION = bool | int | float | str | None
FIELDS: dict[str, Any] = {
    "study": str,
    "title": str,
    "command": str,
    "environment": dict,
    "seed": int,
    "space": dict,
    "logarithmic": list,
    "objectives": list,
    "best": list,
    "importance": dict,
    "trials": list,
}
ENVIRONMENT: dict[str, Any] = {"machine": str, "commit": str | None, "versions": dict}
SCORE: dict[str, Any] = {
    "name": str,
    "label": str,
    "unit": str,
    "scale": int | float,
    "digits": int,
    "higher": bool,
}
TRIAL: dict[str, Any] = {
    "number": int,
    "state": str,
    "options": dict,
    "values": dict | None,
    "parameters": int | None,
    "reason": str | None,
    "began": str | None,
}


@dataclass(frozen=True)
class StudyResults:
    """A study, read from its folder.

    Attributes:
        content: The contents of study.json.
        objectives: What was optimized.
        ended: The trials that finished, by number.
        best: The numbers of the best trial, or of the Pareto front.
    """

    content: Mapping[str, Any]
    objectives: tuple[Score, ...]
    ended: Mapping[int, Mapping[str, Any]]
    best: tuple[int, ...]

    @property
    def options(self) -> list[str]:
        """The options that were searched."""
        return list(self.content["space"])

    def value(self, number: int, score: Score) -> float:
        """Return an objective of a trial, in its unit."""
        return float(score.scale * self.ended[number]["values"][score.name])


def read_study(folder: Path) -> StudyResults:
    """Read a study.

    Args:
        folder: The folder that phnn tune has written.

    Raises:
        ValueError: Its summary is damaged.
    """
    try:
        return _parse(read_json(folder / STUDY))
    except ValueError as error:
        raise ValueError(
            f"{folder / STUDY} is damaged or from another version of phnn ({error}); give the "
            "command phnn tune again, which rewrites it"
        ) from error


def _parse(values: object) -> StudyResults:
    """Return a study, with every type checked that a report relies on."""
    content = check_fields(values, FIELDS)
    environment = check_fields(content["environment"], ENVIRONMENT)
    check_strings("versions", environment["versions"].values())
    check_strings("space", content["space"].values())
    objectives = tuple(_parse_score(each) for each in content["objectives"])
    trials = [check_fields(each, TRIAL) for each in content["trials"]]
    ended = {trial["number"]: trial for trial in trials if trial["state"] == "finished"}
    names: dict[str, Any] = {score.name: int | float for score in objectives}
    for trial in trials:
        if trial["state"] == "finished" or trial["values"] is not None:
            found = check_fields(trial["values"], names)
            _check_finite(f"trial {trial['number']}", found.values())
    for number, trial in ended.items():
        check_fields(trial["options"], dict.fromkeys(content["space"], OPTION))
        for key, shown in content["space"].items():
            _check_option(f"trial {number}: {key}", trial["options"][key], shown)
    if not objectives or not all(type(each) is int and each in ended for each in content["best"]):
        raise ValueError("it has no objectives, or its best trials have not finished")
    check_fields(content["importance"], dict.fromkeys(content["importance"], dict))
    for name, shares in content["importance"].items():
        if name not in {score.name for score in objectives}:
            raise ValueError(f"importance has {name!r}, which is no objective")
        _check_finite(
            "importance", check_fields(shares, dict.fromkeys(shares, int | float)).values()
        )
    return StudyResults({**content, "trials": trials}, objectives, ended, tuple(content["best"]))


def _parse_score(values: object) -> Score:
    fields = check_fields(values, SCORE)
    if not 0 <= fields["digits"] <= 20:
        raise ValueError(f"digits is {fields['digits']}")
    _check_finite("scale", [fields["scale"]])
    return Score(**fields)


def _check_option(name: str, value: object, space: str) -> None:
    """Raise a ValueError for a value that does not lie in its space, where figures show it."""
    if space.startswith("["):
        if _name_choice(value) not in _list_choices(space):
            raise ValueError(f"{name} is {value!r}, which is not one of {space}")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}, which is not a number")
    else:
        _check_finite(name, [value])


def _check_finite(name: str, values: Iterable[float]) -> None:
    if not all(abs(value) < LARGEST for value in values):
        raise ValueError(f"{name} has a number that is infinite, or not one")


def show_study(study: StudyResults) -> Iterator[Section]:
    """Yield the sections of a study."""
    yield _show_best(study)
    pictures = list(draw_study(study))
    missing = pages.note("No two trials have finished yet.")
    figures = pages.gallery(pictures) if pictures else missing
    yield Section("search", "The search", [figures])
    yield _show_trials(study)
    yield _show_provenance(study)


def _show_best(study: StudyResults) -> Section:
    several = len(study.objectives) > 1
    about = (
        "No trial is better in one objective than one of these without being worse in another."
        if several
        else "The best trial. Its recipe is in the folder best."
    )
    rows = [_make_row(study, study.ended[number]) for number in study.best]
    elements = [
        pages.paragraph(f"{about} Scores are of the validation split: a test is still to come."),
        pages.table(["trial", *_name_columns(study)], rows),
    ]
    return Section("best", "The Pareto front" if several else "The best trial", elements)


def _show_trials(study: StudyResults) -> Section:
    trials = [trial for trial in study.content["trials"] if trial["state"] != "skipped"]
    rows = [
        [*_make_row(study, trial), trial["state"], trial["reason"] or "", trial["began"] or ""]
        for trial in trials
    ]
    head = ["trial", *_name_columns(study), "state", "reason", "began"]
    elements = [pages.table(head, rows)]
    skipped = [trial for trial in study.content["trials"] if trial["state"] == "skipped"]
    if skipped:
        listed = [[*_make_row(study, trial), trial["reason"] or ""] for trial in skipped]
        table = pages.table(["trial", *_name_columns(study), "reason"], listed)
        elements.append(pages.fold(f"{len(skipped)} combinations were skipped", table))
    return Section("trials", "Trials", elements)


def _show_provenance(study: StudyResults) -> Section:
    content = study.content
    environment = content["environment"]
    known = [
        ("machine", environment["machine"]),
        ("commit", environment["commit"]),
        *environment["versions"].items(),
        ("seed", str(content["seed"])),
        *((f"space of {key}", values) for key, values in content["space"].items()),
    ]
    elements = [pages.facts(known)]
    if content["command"]:
        about = pages.paragraph("The command that continues or repeats the study:")
        elements += [about, pages.code(content["command"])]
    return Section("provenance", "How to repeat it", elements)


def _name_columns(study: StudyResults) -> list[str]:
    scores = [f"{score.label} {score.unit}".strip() for score in study.objectives]
    extra = [] if any(s.name == "parameters" for s in study.objectives) else ["parameters"]
    return [*scores, *extra, *study.options]


def _make_row(study: StudyResults, trial: Mapping[str, Any]) -> list[str]:
    values = trial["values"] or {}
    scores = [
        f"{score.scale * values[score.name]:,.{score.digits}f}" if score.name in values else ""
        for score in study.objectives
    ]
    extra = [] if any(s.name == "parameters" for s in study.objectives) else [trial["parameters"]]
    options = [_show_option(trial["options"].get(key, "")) for key in study.options]
    sizes = ["" if size is None else f"{size:,}" for size in extra]
    return [str(trial["number"]), *scores, *sizes, *options]


def _show_option(value: Any) -> str:
    return "none" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _list_choices(space: str) -> list[str]:
    return [name.replace("null", "none") for name in space.strip("[]").split(",")]


def _name_choice(value: Any) -> str:
    return "none" if value is None else str(value)


def draw_study(study: StudyResults) -> Iterator[Picture]:
    """Yield the figures of a study; none before two trials have finished."""
    if len(study.ended) < 2:
        return
    for score in study.objectives:
        yield Picture(
            f"history-{score.name}",
            draw_history(study, score),
            f"The {score.label} of each trial, and the best so far.",
        )
    first, *others = study.objectives
    for score in others:
        yield Picture(
            f"pareto-{first.name}-{score.name}",
            draw_pareto(study, score, first),
            f"The {first.label} of each trial against its {score.label}; the Pareto front in "
            "colour, with the numbers of its trials.",
        )
    for name, shares in study.content["importance"].items():
        label = next(score.label for score in study.objectives if score.name == name)
        yield Picture(
            f"importance-{name}",
            draw_importance(shares, label),
            f"How much of the variance of the {label} each option explains (fANOVA).",
        )
    for option in study.options:
        yield Picture(
            f"slice-{option}",
            draw_slice(study, option),
            f"The {first.label} of each trial against {option}.",
        )


def _begin() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    panel = figure.subplots()
    panel.grid(alpha=0.3)
    return figure, panel


def _label(score: Score) -> str:
    split = "" if score.name in ("parameters", "time") else "validation "
    return f"{split}{score.label}" + (f" ({score.unit})" if score.unit else "")


def draw_history(study: StudyResults, score: Score) -> Figure:
    """Draw an objective of all trials in their order, and the best so far.

    Args:
        study: The study.
        score: The objective.
    """
    from matplotlib.ticker import MaxNLocator

    figure, panel = _begin()
    numbers = sorted(study.ended)
    values = [study.value(number, score) for number in numbers]
    choose = max if score.higher else min
    best = [choose(values[: end + 1]) for end in range(len(values))]
    panel.scatter(numbers, values, color=COLOURS[2], zorder=3)
    panel.step(numbers, best, where="post", color=COLOURS[1])
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel("trial")
    panel.set_ylabel(_label(score))
    return figure


def draw_pareto(study: StudyResults, x: Score, y: Score) -> Figure:
    """Draw one objective against another, with the Pareto front.

    Args:
        study: The study.
        x: The horizontal objective.
        y: The vertical objective.
    """
    from matplotlib.ticker import EngFormatter

    figure, panel = _begin()
    others = [number for number in study.ended if number not in study.best]
    points = {number: (study.value(number, x), study.value(number, y)) for number in study.ended}
    panel.scatter(*_columns([points[n] for n in others]), color=GREY, zorder=2)
    front = sorted(points[number] for number in study.best)
    panel.plot(*_columns(front), ":", color=COLOURS[1], zorder=2)
    panel.scatter(*_columns(front), color=COLOURS[1], zorder=3)
    for number in study.best:
        panel.annotate(
            str(number), points[number], xytext=(4, 5), textcoords="offset points", fontsize="small"
        )
    panel.xaxis.set_major_formatter(EngFormatter())
    panel.set_xlabel(_label(x))
    panel.set_ylabel(_label(y))
    return figure


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def draw_importance(shares: Mapping[str, float], label: str) -> Figure:
    """Draw how much each option explains, as bars.

    Args:
        shares: The share of each option.
        label: What is explained.
    """
    figure, panel = _begin()
    ordered = sorted(shares.items(), key=lambda pair: pair[1])
    panel.barh([name for name, _ in ordered], [share for _, share in ordered], color=COLOURS[2])
    panel.set_xlim(0, 1)
    panel.set_xlabel(f"share of the variance of the {label}")
    return figure


def draw_slice(study: StudyResults, option: str) -> Figure:
    """Draw the first objective against an option.

    Args:
        study: The study.
        option: The option.
    """
    figure, panel = _begin()
    score = study.objectives[0]
    numbers = sorted(study.ended)
    values = [study.ended[number]["options"][option] for number in numbers]
    if study.content["space"][option].startswith("["):
        choices = _list_choices(study.content["space"][option])
        panel.set_xticks(range(len(choices)), labels=choices)
        values = [choices.index(_name_choice(value)) for value in values]
    elif option in study.content["logarithmic"]:
        panel.set_xscale("log")
    panel.scatter(values, [study.value(n, score) for n in numbers], color=COLOURS[2], zorder=3)
    panel.set_xlabel(option)
    panel.set_ylabel(_label(score))
    return figure
