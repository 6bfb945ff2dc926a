"""What a figure shows, for assertions."""

import xml.etree.ElementTree as ET

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from phnn.lab.drawing import render_figure


def texts(figure):
    """Return the texts of a figure as its SVG has them."""
    root = ET.fromstring(render_figure(figure, "svg", "test"))
    found = root.iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()).strip() for text in found]


def overlaps(figure):
    """Return the pairs of texts that overlap in a figure."""
    FigureCanvasAgg(figure).draw()
    shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    boxes = [(t.get_text(), t.get_window_extent()) for t in shown]
    return [
        (a, b)
        for i, (a, box) in enumerate(boxes)
        for b, other in boxes[i + 1 :]
        if box.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9))
    ]
