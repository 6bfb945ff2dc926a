"""What an HTML page refers to, for assertions."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects links, ids, images and headings, and checks that elements are closed."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.ids, self.images, self.titles = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)
        self.links += [values[key] for key in ("href", "src") if key in values]
        self.ids += [values["id"]] if "id" in values else []
        self.images += [values] if tag == "img" else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)


def read_page(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader
