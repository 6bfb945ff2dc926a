"""The page that sets each number of the paper beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from phnn.io.atomic import write_text
from phnn.lab import pages
from phnn.lab.comparison import Comparison
from phnn.lab.drawing import Picture
from phnn.lab.pages import Section, render_page
from phnn.lab.reports.deviations import draw_deviations, find_datasets
from phnn.lab.reports.printed import draw_paper
from phnn.lab.reports.summaries import Summary
from phnn.lab.reproduction.verdicts import AGREES, DIFFERS, NOT_RUN, RAN, RULE, Verdict

PAGE = "paper.html"
HEAD = ["table", "network", "what", "paper", "ours", "difference", "verdict"]
TINY = (
    "This is a dry run with made data, tiny networks and a few steps. It shows that everything "
    "runs. Its scores and times mean nothing and are left out; sizes are those of real networks."
)


def write_page(
    out: Path,
    sizes: Sequence[Verdict],
    scores: Mapping[str, Sequence[Verdict]],
    tables: Mapping[str, tuple[Comparison, Sequence[Summary]]],
    *,
    command: str,
    missing: Sequence[str],
    tiny: bool,
) -> Path:
    """Write the page.

    Args:
        out: The folder.
        sizes: The verdicts on sizes.
        scores: The verdicts on scores and times, by comparison.
        tables: Each comparison with our table of it.
        command: The command that repeats all of it.
        missing: The data sets that were not there.
        tiny: Whether the runs were tiny.

    Returns:
        The path of the file.
    """
    verdicts = [*sizes, *(each for found in scores.values() for each in found)]
    sections = [
        Section("summary", "What came out", _sum_up(verdicts, command, missing, tiny)),
        Section("sizes", "Sizes and percentages", [pages.table(HEAD, sizes)]),
        *(
            Section(
                name, tables[name][0].title, [_describe(tables[name][1]), pages.table(HEAD, found)]
            )
            for name, found in scores.items()
        ),
        Section("figures", "Figures", [pages.gallery(_draw(tables, tiny))]),
    ]
    about = _count(verdicts)
    path = out / PAGE
    write_text(path, render_page("The paper's numbers beside ours", about, sections))
    return path


def _count(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.verdict for verdict in verdicts)
    words = {AGREES: "agree", DIFFERS: "differ", RAN: "ran in a dry run", NOT_RUN: "not run"}
    parts = [f"{counts[name]} {word}" for name, word in words.items() if counts[name]]
    return f"{len(verdicts)} numbers of the paper: {', '.join(parts)}."


def _sum_up(
    verdicts: Sequence[Verdict], command: str, missing: Sequence[str], tiny: bool
) -> list[pages.Element]:
    elements = [pages.paragraph(_count(verdicts)), pages.paragraph(RULE)]
    if tiny:
        elements.insert(0, pages.note(TINY))
    if missing:
        elements.append(pages.note(f"Not run, because there are no data: {', '.join(missing)}."))
    elements.append(pages.code(command))
    differing = [verdict for verdict in verdicts if verdict.verdict == DIFFERS]
    if differing:
        elements += [pages.heading("What differs"), pages.table(HEAD, differing)]
    return elements


def _describe(summaries: Sequence[Summary]) -> pages.Element:
    ended = sum(len(summary.seeds) for summary in summaries)
    total = ended + sum(summary.failed + summary.waiting for summary in summaries)
    seeds = sorted({seed for summary in summaries for seed in summary.seeds})
    named = f", seeds {', '.join(map(str, seeds))}" if seeds else ""
    counting = sorted({str(s.options["counting"]) for s in summaries if "counting" in s.options})
    how = f"; events are counted as {' and '.join(counting)}" if counting else ""
    return pages.paragraph(f"{ended} of {total} runs have ended{named}{how}.")


def _draw(tables: Mapping[str, tuple[Comparison, Sequence[Summary]]], tiny: bool) -> list[Picture]:
    """Return the paper's figures, and ours of the same kind."""
    pictures = list(draw_paper())
    images = [s for name in ("vgg", "resnet") if name in tables for s in tables[name][1]]
    if not tiny:
        pictures += [
            Picture(
                f"deviation-{dataset}",
                draw_deviations(f"Ours: {dataset}, VGG and ResNet", members),
                "The same figure from our runs.",
            )
            for dataset, members in find_datasets(images).items()
        ]
    return pictures
