"""What the networks know of each class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from phnn.lab.reports import page
from phnn.lab.reports.confusion import (
    ClassScore,
    Counts,
    count_confusions,
    draw_confusions,
    score_classes,
)
from phnn.lab.reports.drawing import Picture
from phnn.lab.reports.evaluation import Evaluated, Evaluation
from phnn.lab.reports.page import Html, Section

SHOWN = 20  # classes in a table; of more, the worst and the best


def show_classes(evaluated: Sequence[Evaluated]) -> Section:
    """Returns the section with the scores of each class, and which are taken for which.

    Args:
        evaluated: Runs with the answers of their networks.
    """
    parts = [
        page.paragraph(
            "Of each class, the part of its test images that was recognized, in percent; in "
            "brackets the class that it was taken for most often instead."
        )
    ]
    families = list(dict.fromkeys(run.family for run, _ in evaluated))
    for family in families:
        members = [(run, answers) for run, answers in evaluated if run.family == family]
        scores = {
            run.variant: score_classes(_count(answers), answers.classes) for run, answers in members
        }
        if len(families) > 1:
            parts.append(page.element("h3", family))
        parts += [_tabulate(scores), page.gallery(draw_classes(members))]
    return Section("classes", "Classes", parts)


def draw_classes(evaluated: Sequence[Evaluated]) -> Iterator[Picture]:
    """Yields the confusion matrix of each network.

    Args:
        evaluated: Runs with the answers of their networks.
    """
    for run, answers in evaluated:
        title = f"{run.variant}: {100 * answers.right.mean():.2f} % right"
        yield Picture(
            f"confusion-{run.folder.name}",
            draw_confusions(_count(answers), answers.classes, title),
            f"{run.name}: what each class was taken for, in percent of its images.",
        )


def _count(answers: Evaluation) -> Counts:
    return count_confusions(answers.labels, answers.predictions, len(answers.classes))


def _tabulate(scores: Mapping[str, Sequence[ClassScore]]) -> Html:
    """Returns a table with a row for each class and a column for each variant."""
    rows = list(zip(*scores.values(), strict=True))
    head = "class"
    if len(rows) > SHOWN:
        half = SHOWN // 2
        rows.sort(key=lambda row: sum(score.recall or 0.0 for score in row))
        rows = [*rows[:half], *rows[-half:]]
        head = f"class (the {half} worst and the {half} best)"
    return page.table(
        [head, "images", *scores],
        [[row[0].name, f"{row[0].images:,}", *map(_show_score, row)] for row in rows],
    )


def _show_score(score: ClassScore) -> str:
    if score.recall is None:
        return ""
    return f"{score.recall:.1f}" + (f" ({score.mistaken})" if score.mistaken else "")
