import html
import json
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

import phnn
from phnn import cli
from phnn.lab import reports
from phnn.lab.comparison import load_comparison, plan
from phnn.lab.recipe import build_recipe
from phnn.lab.reports import page
from phnn.lab.reports.evaluation import (
    EVALUATION,
    DataMissingError,
    Evaluation,
    Shelf,
    choose_cases,
    evaluate_run,
    take_images,
)
from phnn.lab.reports.report import write_report
from phnn.lab.reports.results import read_results
from phnn.lab.reports.sections.attention import choose_pair
from phnn.lab.runs import write_json
from phnn.lab.training.build import build_data

CLASSES = ["<a>", "b & c"]
METRICS = "epoch,step,lr,train_loss,train_accuracy,val_loss,val_accuracy,seconds\n" + "".join(
    f"{i},{i},0.1,{1 / (i + 1)},{0.5 + i / 10},{1.2 / (i + 1)},{0.4 + i / 10},1\n" for i in range(3)
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PHNN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def make_images(root, seed=0):
    rng = np.random.default_rng(seed)
    for part in ("train", "test"):
        for name in CLASSES:
            folder = root / part / name
            folder.mkdir(parents=True)
            for i in range(4):
                pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")


def make_run(run, accuracy=0.75):
    """Writes the folder of a run that has ended, without the training."""
    recipe = build_recipe(run.recipe)
    torch.manual_seed(run.seed)
    model = phnn.create_model(**{"num_classes": 2, "in_channels": 3, **recipe.model})
    run.folder.mkdir(parents=True)
    metadata = {"classes": CLASSES, "mean": [0.5] * 3, "std": [0.25] * 3}
    phnn.save(model, run.folder / "model.safetensors", metadata=metadata)
    (run.folder / "config.yaml").write_text(json.dumps(recipe.to_dict()))  # JSON is YAML
    (run.folder / "metrics.csv").write_text(METRICS)
    result = {
        "model": model.config, "seed": run.seed, "parameters": 10, "storage_bytes": 4,
        "test_accuracy": accuracy, "test_seconds": 1.0, "train_seconds": 1.0,
        "train_seconds_per_100": 1.0, "train_seconds_per_100_std": 0.1, "energy_kwh": None,
        "co2_kg": None, "ended": "2026-01-01T00:00:00+00:00", "device": "cpu", "devices": 1,
        "precision": "32-true", "threads": 1, "machine": "a machine", "selected": "last",
        "versions": {"torch": "2.13"}, "command": "phnn train tiny.yaml",
    }  # fmt: skip
    write_json(run.folder / "result.json", result)
    return result


@pytest.fixture
def results(tmp_path):
    """The results of a comparison: real and n=2 have ended, quaternion failed, n=4 waits."""
    make_images(tmp_path / "images")
    (tmp_path / "tiny.yaml").write_text(
        f"""
        model: {{name: resnet20, widths: [4, 4, 4]}}
        data: {{name: mine, root: {tmp_path / "images"}, batch_size: 4, validation: 0}}
        """
    )
    (tmp_path / "mine.yaml").write_text(
        "{title: A <b>title</b>, families: {tiny.yaml: {real: , n=2: , quaternion: , n=4: }}}"
    )
    comparison = load_comparison(tmp_path / "mine.yaml")
    out = tmp_path / "out"
    runs = plan(comparison, out, {})
    runs[:2] = [replace(run, result=make_run(run)) for run in runs[:2]]
    runs[2] = replace(runs[2], error="ValueError: <script>alert(1)</script>")
    reports.write_tables(comparison, runs, out, 300.0, "phnn compare mine.yaml --out 'a b'")
    return out


class Reader(HTMLParser):
    """Gathers what a page refers to, and that its elements are closed."""

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


def read(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader


def test_report_of_a_comparison(results, capsys):
    assert cli.main(["report", str(results)]) == 0
    printed = capsys.readouterr().out
    assert "tests tiny-n=2-seed0" in printed
    path = results / "report.html"
    assert str(path) in printed
    text, reader = path.read_text(), read(path)
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
    assert "tests" not in capsys.readouterr().out
    assert (results / "more" / "again.html").exists()


def test_report_without_the_data(results, tmp_path, capsys):
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
    reader = read(write_report(results))
    assert "Results" in reader.titles
    assert "Classes" not in reader.titles
    assert "What needs the networks" in reader.titles
    assert len(reader.images) == 2


def test_a_run_that_started_from_another_network_is_not_called_real(results):
    folder = results / "runs" / "tiny-real-seed0"
    assert read_results(folder).runs[0].is_real
    recipe = json.loads((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(json.dumps({**recipe, "start": "a/small.safetensors"}))
    read = read_results(folder)
    assert read.title == "resnet20 real from small on mine"
    assert not read.runs[0].is_real


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


def test_folder_that_is_none(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == cli.USER_ERROR
    assert "neither results.json nor config.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", '{"comparison": "mine", "runs": []}'])
def test_results_that_cannot_be_read(tmp_path, capsys, content):
    (tmp_path / "results.json").write_text(content)
    assert cli.main(["report", str(tmp_path)]) == cli.USER_ERROR
    assert "phnn compare writes it anew" in capsys.readouterr().err


def test_lines_survive_the_file(results):
    read_back = read_results(results)
    (row, *_) = json.loads((results / "results.json").read_text())["table"]
    line = read_back.lines[0]
    assert line.to_row() == {**row, "seeds": tuple(row["seeds"])}
    assert line.score is not None
    assert line.score.mean == 75
    assert read_back.lines[3].score is None
    assert [run.variant for run in read_back.representatives()] == ["real", "n=2"]


# --- what networks answer ------------------------------------------------------------------------


def test_answers_are_the_networks(results):
    folder = results / "runs" / "tiny-real-seed0"
    answers = evaluate_run(folder, Shelf())
    model = phnn.load(folder)
    data = build_data(build_recipe(read_results(results).runs[0].recipe))
    data.standardize_as(model.phnn_metadata)
    images, inputs = take_images(data, range(8))
    with torch.no_grad():
        probabilities, predictions = model(inputs).softmax(1).max(1)
    assert answers.predictions.tolist() == predictions.tolist()
    np.testing.assert_allclose(answers.probabilities, probabilities.numpy(), rtol=1e-5)
    assert answers.labels.tolist() == [0] * 4 + [1] * 4
    assert images.dtype == torch.uint8
    swapped, _ = take_images(data, [5, 2])
    assert torch.equal(swapped, images[[5, 2]])


def test_kept_answers_are_those_of_this_network(results, tmp_path):
    folder = results / "runs" / "tiny-real-seed0"
    first = evaluate_run(folder, Shelf())
    kept = (folder / EVALUATION).read_bytes()
    shutil.rmtree(tmp_path / "images")
    again = evaluate_run(folder, Shelf())  # needs no data
    np.testing.assert_array_equal(first.probabilities, again.probabilities)
    assert again.classes == tuple(CLASSES)
    # another network in the same folder is asked anew
    shutil.copy(results / "runs" / "tiny-n=2-seed0" / "model.safetensors", folder)
    with pytest.raises(DataMissingError, match="cannot be read"):
        evaluate_run(folder, Shelf())
    assert (folder / EVALUATION).read_bytes() == kept


def test_kept_answers_are_those_for_these_data(results, tmp_path):
    folder = results / "runs" / "tiny-real-seed0"
    mine = evaluate_run(folder, Shelf())
    make_images(tmp_path / "others", seed=1)
    others = evaluate_run(folder, Shelf({"data": {"root": str(tmp_path / "others")}}))
    assert not np.array_equal(mine.probabilities, others.probabilities)
    np.testing.assert_array_equal(mine.probabilities, evaluate_run(folder, Shelf()).probabilities)


def test_cases_are_the_most_certain_of_each_class():
    labels = np.array([0, 0, 1, 1, 2, 2])
    answers = Evaluation(
        ("a", "b", "c"),
        labels,
        np.array([0, 0, 1, 0, 2, 1]),
        np.array([0.8, 0.9, 0.6, 0.7, 0.5, 0.99], dtype=np.float32),
    )
    assert choose_cases(answers, right=True, count=3) == [1, 2, 4]
    assert choose_cases(answers, right=True, count=9) == [1, 2, 4, 0]
    assert choose_cases(answers, right=False, count=9) == [5, 3]


def test_the_real_network_and_the_best_other_are_shown(results):
    real, two = read_results(results).representatives()
    good, bad = (
        Evaluation(("a",), np.zeros(2, int), np.array([0, wrong]), np.ones(2, np.float32))
        for wrong in (0, 1)
    )
    assert choose_pair([(two, good), (real, bad)]) == [(real, bad), (two, good)]
    assert choose_pair([(two, bad), (two, good)]) == [(two, good)]
    assert choose_pair([(real, bad)]) == [(real, bad)]


# --- pages ---------------------------------------------------------------------------------------


def test_text_is_escaped():
    assert page.paragraph("1 < 2") == "<p>1 &lt; 2</p>"
    assert page.element("a", "x", href='"><script>') == '<a href="&quot;&gt;&lt;script&gt;">x</a>'
    assert "&lt;td&gt;" in page.table(["<td>"], [["<td>"]])
    assert page.code("a & b") == '<pre tabindex="0"><code>a &amp; b</code></pre>'


NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for path in map(shutil.which, NAMES) if path), None)
PROBE = """<script>addEventListener("load", () => {
  const images = [...document.images];
  const missing = images.filter((image) => !image.complete || image.naturalWidth === 0);
  const wide = document.documentElement.scrollWidth > innerWidth;
  document.title = `images ${images.length} missing ${missing.length} wide ${wide}`;
  console.log("probe");
})</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome here")
def test_report_in_a_browser(results, tmp_path):
    text = write_report(results).read_text()
    assert page.POLICY in html.unescape(text)
    probed = tmp_path / "probed.html"
    allowed = text.replace("default-src 'none'", "script-src 'unsafe-inline'")
    probed.write_text(allowed.replace("</head>", PROBE + "</head>"))
    images = len(read(results / "report.html").images)
    for width in (390, 1280):  # a phone, a desk
        command = [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900",
            "--virtual-time-budget=5000", "--dump-dom", probed.as_uri(),
        ]  # fmt: skip
        shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        console = [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
        assert len(console) == 1, console  # the probe's own word
        assert "probe" in console[0]
        # no image is missing, and nothing sticks out of the window
        assert f"<title>images {images} missing 0 wide false</title>" in shown.stdout
