"""The links between pages of a built site, followed without a network."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and the names that links may point to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.names = set(), {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value and tag != "base":
                self.links.add(value)
            elif name == "id" or (name == "name" and tag == "a"):
                self.names.add(value)


def find_broken_links(site: Path) -> list[str]:
    """Return the links that lead to no file of the site, or to no place on its page."""
    paths = sorted(site.rglob("*.html"))
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in paths}
    broken = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue  # of other servers: `make docs-links` asks them
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = pages.get(target)
            if not target.is_file():
                broken.append(f"{path.relative_to(site)} → {link}: no such file")
            elif goal is not None and unquote(parts.fragment) not in goal.names:
                broken.append(f"{path.relative_to(site)} → {link}: no such place on the page")
    return broken
