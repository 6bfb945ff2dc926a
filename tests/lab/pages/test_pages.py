import base64

import pytest
from matplotlib.figure import Figure

from helpers.pages import read_page
from phnn.lab import pages
from phnn.lab.drawing import Picture
from phnn.lab.pages import Section, render_page


def render(*elements):
    return render_page("title", "about", [Section("key", "Section", elements)])


@pytest.mark.parametrize(
    ("element", "html"),
    [
        (pages.paragraph("1 < 2"), "<p>1 &lt; 2</p>"),
        (pages.note("a & b"), '<p class="note">a &amp; b</p>'),
        (pages.heading("<h1>"), "<h3>&lt;h1&gt;</h3>"),
        (pages.code("a & b"), '<pre tabindex="0"><code>a &amp; b</code></pre>'),
        (pages.facts([("<n>", "<v>")]), "<dt>&lt;n&gt;</dt><dd>&lt;v&gt;</dd>"),
        (pages.table(["<th>"], [["<td>"]]), '<th scope="col">&lt;th&gt;</th>'),
        (pages.table(["<th>"], [["<td>"]]), '<tr><td data-label="&lt;th&gt;">&lt;td&gt;</td></tr>'),
        (pages.table(["a"], [["long " * 20]]), '<td data-label="a" class="long">long long'),
        (pages.fold("<s>", pages.paragraph("<p>")), "<summary>&lt;s&gt;</summary>\n<p>&lt;p&gt;"),
    ],
)
def test_text_is_escaped(element, html):
    page = render(element)
    assert html in page
    read_page(page)


def test_titles_and_links_are_escaped():
    page = render_page("<title>", "<p>", [Section('"><script>', "<h2>", [])])
    assert "<script" not in page
    assert read_page(page).titles == ["<h2>"]
    assert "<title>&lt;title&gt;</title>" in page
    assert "<p>&lt;p&gt;</p>" in page


def test_code_keeps_its_lines():
    assert "<code>a:\n  b: 1\n</code>" in render(pages.code("a:\n  b: 1\n"))


def test_pictures_are_inside_the_page():
    figure = Figure(figsize=(1, 1))
    pictures = (Picture(name, figure, f'"{name}" <b>', name) for name in ("png", "svg"))
    reader = read_page(render(pages.gallery(pictures)))
    first, second = reader.images
    assert first["alt"] == '"png" <b>'
    assert second["src"].startswith("data:image/svg+xml;base64,")
    start, _, content = first["src"].partition(",")
    assert start == "data:image/png;base64"
    assert base64.b64decode(content).startswith(b"\x89PNG")


def test_page_fetches_and_runs_nothing():
    page = render(pages.paragraph("text"))
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in page
    assert all(link.startswith(("data:", "#")) for link in read_page(page).links)
    assert "prefers-color-scheme: dark" in page  # the style is there


def test_unknown_elements_are_an_error():
    with pytest.raises(Exception, match="heding"):
        render(pages.Element("heding", "text"))
