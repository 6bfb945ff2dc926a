"""HTML pages that stand alone: their style and pictures are inside."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from phnn.lab.drawing import Picture, render_figure

if TYPE_CHECKING:
    from jinja2 import Template

TYPES = {"png": "image/png", "svg": "image/svg+xml"}


class Element(NamedTuple):
    """One element of a section.

    Attributes:
        kind: The macro of page.html that renders it.
        content: The argument of the macro. All text is escaped.
    """

    kind: str
    content: Any


class Section(NamedTuple):
    """A section of a page.

    Attributes:
        key: The target of links to it.
        title: Its heading.
        elements: Its content.
    """

    key: str
    title: str
    elements: Sequence[Element]


class Image(NamedTuple):
    """An embedded picture.

    Attributes:
        source: The picture as a data URL.
        caption: What it shows.
    """

    source: str
    caption: str


def heading(text: str) -> Element:
    """Return a heading below that of the section."""
    return Element("heading", text)


def paragraph(text: str) -> Element:
    """Return a paragraph."""
    return Element("paragraph", text)


def note(text: str) -> Element:
    """Return a paragraph that says why something is missing."""
    return Element("note", text)


def code(text: str) -> Element:
    """Return a command, or the contents of a file."""
    return Element("code", text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Element:
    """Return a table, which scrolls where it is too wide.

    Args:
        head: The names of the columns.
        rows: The cells.
    """
    return Element("table", (head, list(rows)))


def facts(pairs: Iterable[tuple[str, str]]) -> Element:
    """Return a list of names and values."""
    return Element("facts", list(pairs))


def fold(summary: str, *elements: Element) -> Element:
    """Return elements that show when the reader clicks on their summary."""
    return Element("fold", (summary, elements))


def gallery(pictures: Iterable[Picture]) -> Element:
    """Return pictures side by side, as many as fit.

    Pictures are rendered here, so that their figures need not stay in memory.
    """
    return Element("gallery", [_embed(picture) for picture in pictures])


def _embed(picture: Picture) -> Image:
    content = render_figure(picture.figure, picture.format, picture.name)
    encoded = base64.b64encode(content).decode()
    return Image(f"data:{TYPES[picture.format]};base64,{encoded}", picture.caption)


def render_page(title: str, about: str, sections: Sequence[Section]) -> str:
    """Return a whole page.

    Args:
        title: The title of the page.
        about: One line below the title.
        sections: The content. The page begins with a link to each section.
    """
    return _load_template().render(title=title, about=about, sections=sections)


@cache
def _load_template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("phnn.lab.pages", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
