import html
import shutil

import pytest

from helpers.browser import BROWSER, open_all
from helpers.pages import read_page
from phnn import cli
from phnn.lab.reports.report import write_report


def test_report_of_a_comparison(results, capsys):
    assert cli.main(["report", str(results)]) == 0
    printed, steps = capsys.readouterr()
    assert "testing tiny-n=2-seed0" in steps
    path = results / "report.html"
    assert str(path) in printed
    text, reader = path.read_text(), read_page(path.read_text())
    assert reader.titles == [
        "Results", "Scores and sizes", "Learning curves", "Classes", "Where the networks look",
        "Learned algebras", "Runs", "How to repeat it",
    ]  # fmt: skip
    # it stands alone: everything it refers to is inside it
    assert all(link.startswith(("data:", "#")) for link in reader.links)
    assert all(link[1:] in reader.ids for link in reader.links if link.startswith("#"))
    assert all(len(image["src"]) > 1000 and image["alt"] for image in reader.images)
    # whatever was written into titles, errors and classes is text
    assert "<script" not in text
    assert "<b>title</b>" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "&lt;a&gt;" in text
    for word in ("1 failed", "1 waiting", "phnn compare mine.yaml --out", "a machine", "seeds"):
        assert html.escape(word) in text

    # the second report is made from what the first one has kept
    assert cli.main(["report", str(results), "-o", str(results / "more" / "again.html")]) == 0
    assert "testing" not in capsys.readouterr().err
    assert (results / "more" / "again.html").exists()


def test_report_without_the_data(results, tmp_path, make_images):
    shutil.rmtree(tmp_path / "images")
    assert cli.main(["report", str(results)]) == 0
    text = (results / "report.html").read_text()
    assert "the data of the runs cannot be read" in text
    assert "--data.root FOLDER" in text
    assert "Learned algebras" in text
    assert "Grad-CAM" not in text
    make_images(tmp_path / "elsewhere")
    assert cli.main(["report", str(results), "--data.root", str(tmp_path / "elsewhere")]) == 0
    assert "Grad-CAM" in (results / "report.html").read_text()


def test_report_without_the_folders_of_the_runs(results):
    shutil.rmtree(results / "runs")
    reader = read_page(write_report(results).read_text())
    assert "Results" in reader.titles
    assert "Classes" not in reader.titles
    assert "Sections that need the networks" in reader.titles
    assert len(reader.images) == 2


def test_report_of_a_run(results):
    folder = results / "runs" / "tiny-n=2-seed0"
    text = write_report(folder).read_text()
    assert "resnet20 n=2 on mine" in text
    assert "phnn train tiny.yaml" in text
    assert "Where the networks look" in text
    for name in ("result.json", "model.safetensors"):
        (folder / name).unlink()
    text = write_report(folder).read_text()
    assert "1 waiting" in text
    assert "No run has ended yet" in text
    assert "Loss during training" not in text  # pictures are embedded, not spelled out
    assert "loss after each epoch" in text


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome here")
@pytest.mark.parametrize("width", [390, 1280])  # a phone, a desk
def test_report_in_a_browser(results, tmp_path, width):
    path = write_report(results)
    (seen,), console = open_all([path], tmp_path, width=width)
    assert seen["images"] == len(read_page(path.read_text()).images)
    assert not seen["errors"], seen
    assert not seen["missing"], seen
    assert seen["wide"] <= 0, seen  # nothing sticks out of the window
    assert not console
