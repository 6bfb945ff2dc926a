"""Where the networks look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phnn.lab.reports import page
from phnn.lab.reports.drawing import Picture
from phnn.lab.reports.evaluation import Evaluated, Shelf, choose_cases, take_images
from phnn.lab.reports.gradcam import draw_looks, look
from phnn.lab.reports.page import Section
from phnn.lab.trained import load_trained

CASES = 5  # images of each kind


def show_attention(evaluated: Sequence[Evaluated], shelf: Shelf) -> Section:
    """Returns the section with Grad-CAM of the best and the worst cases.

    Args:
        evaluated: Runs with the answers of their networks.
        shelf: Where their images are found.

    Raises:
        DataMissingError: The images are not here.
    """
    about = page.paragraph(
        "Grad-CAM: the brighter a place, the more it speaks for the answer above. The images are "
        "those of the test part about which the last network is the most certain, one of each "
        "class as far as there are: some it is right about, and some it is wrong about."
    )
    parts = [about, page.gallery(draw_attention(evaluated, shelf))]
    return Section("attention", "Where the networks look", parts)


def draw_attention(evaluated: Sequence[Evaluated], shelf: Shelf) -> Iterator[Picture]:
    """Yields, for each family, cases that are right and cases that are wrong.

    Args:
        evaluated: Runs with the answers of their networks.
        shelf: Where their images are found.

    Raises:
        DataMissingError: The images are not here.
    """
    for family in dict.fromkeys(run.family for run, _ in evaluated):
        pair = choose_pair([both for both in evaluated if both[0].family == family])
        _, answers = pair[-1]
        for right in (True, False):
            places = choose_cases(answers, right, CASES)
            if places:
                yield _draw_cases(pair, places, shelf, "right" if right else "wrong")


def choose_pair(evaluated: Sequence[Evaluated]) -> list[Evaluated]:
    """Returns the real network, if there is one, then the best of the others, if there are any.

    Args:
        evaluated: Runs of one family.
    """
    real = [both for both in evaluated if both[0].is_real]
    others = [both for both in evaluated if not both[0].is_real]
    best = sorted(others, key=lambda both: float(both[1].right.mean()))
    return [*real[:1], *best[-1:]]


def _draw_cases(
    pair: Sequence[Evaluated], places: Sequence[int], shelf: Shelf, kind: str
) -> Picture:
    focus, answers = pair[-1]
    looks = []
    for run, _ in pair:
        trained = load_trained(run.folder)
        images, inputs = take_images(shelf.open_images(trained), places)
        looks.append(look(run.variant, trained.model, inputs, answers.classes))
    labels = [answers.classes[answers.labels[place]] for place in places]
    title = f"{focus.variant} is {kind}, and sure of it"
    return Picture(
        f"gradcam-{focus.folder.name}-{kind}",
        draw_looks(images, labels, looks, title),
        f"{focus.family}: where {' and '.join(run.variant for run, _ in pair)} look. {title}.",
        "png",
    )
