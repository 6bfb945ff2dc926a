"""Web pages that need nothing but themselves: HTML with its style and pictures inside."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from phnn.lab.reports.drawing import Picture, render_figure

TYPES = {"png": "image/png", "svg": "image/svg+xml"}
# nothing is fetched and nothing runs, whatever the page may hold
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


LONG = 50  # characters of a cell that is broken into lines


class Html(str):
    """Text that is HTML already; all other text is escaped."""

    __slots__ = ()


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        key: What links to it say.
        title: Its head.
        parts: Its content.
    """

    key: str
    title: str
    parts: Sequence[Html]


def element(tag: str, *children: str, **attributes: str) -> Html:
    """Returns an HTML element.

    Args:
        tag: Its name.
        children: Html stays as it is, other text is escaped.
        attributes: A trailing underscore of a name is left out.

    Example:
        >>> element("p", "1 < 2", element("br"), class_="note")
        '<p class="note">1 &lt; 2<br></p>'
    """
    written = "".join(
        f' {name.rstrip("_")}="{html.escape(value)}"' for name, value in attributes.items()
    )
    inside = "".join(child if isinstance(child, Html) else html.escape(child) for child in children)
    closed = "" if tag in ("br", "img", "meta", "link") else f"</{tag}>"
    return Html(f"<{tag}{written}>{inside}{closed}")


def paragraph(*children: str) -> Html:
    """Returns a paragraph."""
    return element("p", *children)


def note(text: str) -> Html:
    """Returns a paragraph that says why something is not there."""
    return element("p", text, class_="note")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """Returns a table that scrolls by itself where it is too wide.

    Args:
        head: Of its columns.
        rows: Their cells.
    """
    top = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = [element("tr", *map(_cell, row)) for row in rows]
    whole = element("table", element("thead", top), element("tbody", *body))
    return element("div", whole, class_="scroll", tabindex="0")


def _cell(text: str) -> Html:
    return element("td", text, class_="long") if len(text) > LONG else element("td", text)


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Returns a list of names with what they are."""
    return element(
        "dl", *(part for name, text in pairs for part in (element("dt", name), element("dd", text)))
    )


def code(text: str) -> Html:
    """Returns text as a computer wrote or reads it."""
    return element("pre", element("code", text), tabindex="0")


def fold(summary: str, *children: Html) -> Html:
    """Returns content that shows when its summary is pressed."""
    return element("details", element("summary", summary), *children)


def show(picture: Picture) -> Html:
    """Returns a picture with its caption, embedded."""
    content = render_figure(picture.figure, picture.format, picture.name)
    source = f"data:{TYPES[picture.format]};base64,{base64.b64encode(content).decode()}"
    image = element("img", src=source, alt=picture.caption)
    return element("figure", image, element("figcaption", picture.caption))


def gallery(pictures: Iterable[Picture]) -> Html:
    """Returns pictures beside each other, as many as fit."""
    return element("div", *map(show, pictures), class_="gallery")


def render_page(title: str, about: str, sections: Sequence[Section]) -> str:
    """Returns a whole page.

    Args:
        title: Of the page.
        about: A line below the title.
        sections: What follows, with links to each.
    """
    style = files("phnn.lab.reports").joinpath("style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Html(style)),
    )
    links = [element("a", section.title, href=f"#{section.key}") for section in sections]
    body = element(
        "body",
        element("header", element("h1", title), paragraph(about), element("nav", *links)),
        element(
            "main",
            *(
                element("section", element("h2", section.title), *section.parts, id=section.key)
                for section in sections
            ),
        ),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'
