"""The navigation of the site: `navigation.yaml`, and whatever pages it does not name.

The lists are put behind their pages when these are read, so that the pages themselves stay readable
in a plain view of the repository.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from sphinx.application import Sphinx
from sphinx.errors import ConfigError

FILE = Path(__file__).with_name("navigation.yaml")
REST = "More"

Lists = dict[str, list[str]]


class Navigation:
    """Pages in sections, and pages below pages.

    Args:
        found: All pages, by their path without a suffix.
        sections: By caption, names or patterns of pages; a pattern may match nothing, and takes
            what nothing else names. A mapping of one page to a list puts pages below it.

    Raises:
        ValueError: A page does not exist, or has two places.
    """

    def __init__(self, found: set[str], sections: dict[str, list[Any]]) -> None:
        self.found, self.placed = found, set[str]()
        self.named = {name for entries in sections.values() for name in _names(entries)}
        self.below: Lists = {}
        self.sections = {caption: self._place(entries) for caption, entries in sections.items()}
        # pages in folders of their own belong below some page
        rest = {page for page in found - self.placed if page.startswith("docs/")}
        rest = {page for page in rest if page.count("/") == 1}
        if rest:
            self.sections[REST] = sorted(rest)

    def _place(self, entries: list[Any]) -> list[str]:
        pages: list[str] = []
        for entry in entries:
            if isinstance(entry, dict):
                ((parent, children),) = entry.items()
                pages += self._match(parent)
                self.below[parent] = self._place(children)
            else:
                pages += self._match(entry)
        return pages

    def _match(self, name: str) -> list[str]:
        if "*" in name:
            free = self.found - self.placed - self.named
            matches = sorted(page for page in free if fnmatchcase(page, name))
        elif name not in self.found:
            raise ValueError(f"{FILE.name} names {name}, which is no page")
        elif name in self.placed:
            raise ValueError(f"{FILE.name} names {name} twice")
        else:
            matches = [name]
        self.placed |= set(matches)
        return matches


def _names(entries: list[Any]) -> list[str]:
    """Return the names in a list and below it."""
    names: list[str] = []
    for entry in entries:
        if isinstance(entry, dict):
            for parent, children in entry.items():
                names += [parent, *_names(children)]
        else:
            names.append(entry)
    return names


def render(pages: list[str], *options: str) -> str:
    """Return a list of pages as Sphinx reads it."""
    entries = "\n".join(f"/{page}" for page in pages)
    return "\n".join(["```{toctree}", *options, "", entries, "```", ""])


def append_lists(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the lists behind the pages they belong to."""
    root = app.config.root_doc
    sections = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    try:
        navigation = Navigation(set(app.env.found_docs) - {root}, sections)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if name == root:
        for caption, pages in navigation.sections.items():
            source[0] += "\n" + render(pages, ":hidden:", f":caption: {caption}")
    elif name in navigation.below:
        source[0] += "\n" + render(navigation.below[name], ":hidden:")


def reread_lists(app: Sphinx, *_: object) -> list[str]:
    """Read the pages with lists again: a page that came or went changes them."""
    sections = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    parents = [
        parent
        for entries in sections.values()
        for entry in entries
        if isinstance(entry, dict)
        for parent in entry
    ]
    return [app.config.root_doc, *parents]


def write_entrance(app: Sphinx, error: Exception | None) -> None:
    """Lead from the root of the site to its first page."""
    if error is None and app.builder.format == "html":
        target = app.builder.get_target_uri(app.config.root_doc)
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>phnn</title>'
            f'<meta http-equiv="refresh" content="0; url={target}"></head>'
            f'<body><a href="{target}">phnn</a></body></html>\n'
        )
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to the build."""
    app.connect("source-read", append_lists)
    app.connect("env-get-outdated", reread_lists)
    app.connect("build-finished", write_entrance)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
