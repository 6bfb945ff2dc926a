"""What a report shows of networks that classify images."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from phnn.lab import pages
from phnn.lab.drawing import Picture
from phnn.lab.pages import Element, Section
from phnn.lab.runs import Run
from phnn.lab.tasks.images.report.answers import Answers, choose_cases, find_answers, take_images
from phnn.lab.tasks.images.report.confusion import (
    ClassScore,
    count_confusions,
    draw_confusions,
    score_classes,
)
from phnn.lab.tasks.images.report.gradcam import Look, draw_looks, look
from phnn.lab.tasks.report import RunLoader, Say, find_trained, group_families

SHOWN = 20  # classes in a table; of more classes, the worst and the best
CASES = 5  # images in a Grad-CAM figure

Answered = tuple[Run, Answers]
logger = logging.getLogger(__name__)


def sections(runs: Sequence[Run], loader: RunLoader, say: Say) -> Iterator[Section]:
    """Yield the scores of each class, and Grad-CAM.

    Args:
        runs: The runs of the report.
        loader: Loads the networks and data of the runs.
        say: Called with a message before each slow step.

    Raises:
        DataMissingError: The data cannot be read.
    """
    families = _answer(runs, loader, say)
    if not families:
        return
    yield Section("classes", "Classes", list(_show_classes(families)))
    say("computing Grad-CAM")
    about = pages.paragraph(
        "Grad-CAM: the brighter a position, the more it supports the answer above the image. These "
        "are the test images about which the last network is most certain, one of each class as "
        "far as possible: some of its right answers, and some of its wrong ones."
    )
    pictures = pages.gallery(_draw_looks(families.values(), loader))
    yield Section("attention", "Where the networks look", [about, pictures])


def figures(runs: Sequence[Run], loader: RunLoader, say: Say) -> Iterator[Picture]:
    """Yield the confusion matrices, and Grad-CAM.

    Args:
        runs: The runs of the report.
        loader: Loads the networks and data of the runs.
        say: Called with a message before each slow step.

    Raises:
        DataMissingError: The data cannot be read.
    """
    families = _answer(runs, loader, say)
    for members in families.values():
        yield from _draw_confusions(members)
    yield from _draw_looks(families.values(), loader)


def _answer(runs: Sequence[Run], loader: RunLoader, say: Say) -> dict[str, list[Answered]]:
    """Return the answers of one network of each variant, by family."""
    return {
        family: [(run, find_answers(run, loader, say)) for run in members]
        for family, members in group_families(find_trained(runs)).items()
    }


def _show_classes(families: Mapping[str, Sequence[Answered]]) -> Iterator[Element]:
    yield pages.paragraph(
        "The percentage of the test images of each class that were recognized. In brackets: the "
        "class that most of the others were taken for."
    )
    for family, members in families.items():
        if len(families) > 1:
            yield pages.heading(family)
        yield _tabulate(members)
        yield pages.gallery(_draw_confusions(members))


def _tabulate(members: Sequence[Answered]) -> Element:
    """Return a table with a row for each class and a column for each variant."""
    scores = [score_classes(count_confusions(found), found.classes) for _, found in members]
    rows = list(zip(*scores, strict=True))
    head = "class"
    if len(rows) > SHOWN:
        half = SHOWN // 2
        rows.sort(key=lambda row: sum(score.recall or 0.0 for score in row))
        rows = [*rows[:half], *rows[-half:]]
        head = f"class (the {half} worst and the {half} best)"
    return pages.table(
        [head, "images", *(run.variant for run, _ in members)],
        [[row[0].name, f"{row[0].images:,}", *map(_show_score, row)] for row in rows],
    )


def _show_score(score: ClassScore) -> str:
    if score.recall is None:
        return ""
    return f"{score.recall:.1f}" + (f" ({score.mistaken})" if score.mistaken else "")


def _draw_confusions(members: Iterable[Answered]) -> Iterator[Picture]:
    for run, answers in members:
        title = f"{run.variant}: {100 * answers.accuracy:.2f} % right"
        yield Picture(
            f"confusion-{run.folder.name}",
            draw_confusions(count_confusions(answers), answers.classes, title),
            f"{run.name}: what each class was taken for, in percent of its images.",
        )


def _draw_looks(families: Iterable[Sequence[Answered]], loader: RunLoader) -> Iterator[Picture]:
    for members in families:
        pair = choose_pair(members)
        _, answers = pair[-1]
        for right in (True, False):
            indices = choose_cases(answers, right, CASES)
            if indices:
                yield _draw_cases(pair, indices, loader, "right" if right else "wrong")


def choose_pair(members: Sequence[Answered]) -> list[Answered]:
    """Return the real network, if there is one, then the best of the others, if there are any.

    Args:
        members: Runs of one family with their answers.
    """
    real = [member for member in members if member[0].is_real]
    others = [member for member in members if not member[0].is_real]
    best = sorted(others, key=lambda member: member[1].accuracy)
    return [*real[:1], *best[-1:]]


def _draw_cases(
    pair: Sequence[Answered], indices: Sequence[int], loader: RunLoader, kind: str
) -> Picture:
    focus, answers = pair[-1]
    looks: list[Look] = []
    images: Tensor | None = None
    for run, _ in reversed(pair):  # the focus first: its images are shown
        model, data = loader.load(run)
        own, inputs = take_images(data, indices)
        images = own if images is None else images
        if not torch.equal(own, images):  # another seed may have drawn another test split
            logger.info("%s was tested on other images: its maps are left out", run.folder)
            continue
        looks.insert(0, look(run.variant, model, inputs, answers.classes))
    assert images is not None
    labels = [answers.classes[answers.labels[index]] for index in indices]
    title = f"Most certain {kind} answers of {focus.variant}"
    return Picture(
        f"gradcam-{focus.folder.name}-{kind}",
        draw_looks(images, labels, looks, title),
        f"{focus.family}: where {' and '.join(each.name for each in looks)} look. {title}.",
        "png",
    )
