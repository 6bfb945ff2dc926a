"""What a report says first, the colours of its figures, and the files beside the results."""

import csv
import shutil
from dataclasses import replace

import phnn
from helpers.pages import read_page
from phnn.lab.drawing import VARIANTS, assign_colours
from phnn.lab.reports.conclusions import conclude
from phnn.lab.reports.report import write_report
from phnn.lab.reports.results import read_results
from phnn.lab.reports.summaries import Spread


def test_two_sentences_about_a_comparison(results):
    found = read_results(results)
    text = conclude(found)
    assert text.startswith("The best network is ")
    assert "2 of 4 runs have no result." in text
    real, two, *_ = found.summaries
    better = replace(real, scores={"accuracy": Spread(93.5, None)}, parameters=100)
    smaller = replace(
        two, scores={"accuracy": Spread(91.0, None)}, parameters=51, parameters_percent=51.0
    )
    ended = replace(found, summaries=[better, smaller], runs=found.runs[:2])
    assert conclude(ended) == (
        "The best network is real, with an accuracy of 93.50 % on the test split. The smallest, "
        "n=2, comes to an accuracy of 91.00 %, with 51 parameters, 51 % of the real network's."
    )
    winner = replace(smaller, scores={"accuracy": Spread(95.0, None)})
    assert "It is also the smallest, with 51 parameters" in conclude(
        replace(ended, summaries=[better, winner])
    )
    other = replace(better, family="other")
    assert conclude(replace(ended, summaries=[better, smaller, other])).startswith(
        "The best network of each of 2 recipes is real in 2. The best of all is real of "
    )


def test_two_sentences_about_a_run(results):
    folder = results / "runs" / "tiny-n=2-seed0"
    assert conclude(read_results(folder)) == (
        "resnet20 n=2 reaches an accuracy of 75.00 % on the test split of mine. It has 10 "
        "parameters, its file takes 0.00 MiB, and training took 1 s."
    )
    (folder / "result.json").unlink()
    assert conclude(read_results(folder)) == "No run has ended yet. 1 are waiting, 0 failed."


def test_a_variant_keeps_its_colour():
    names = ["real", "quaternion", "n=4", "my own", "resnet20 n=4"]
    together, backwards = assign_colours(names), assign_colours(reversed(names))
    assert together == backwards
    assert together["my own"] == assign_colours(["my own"])["my own"]
    assert together["resnet20 n=4"] == together["n=4"] == VARIANTS["n=4"]
    assert len(set(VARIANTS.values())) == len(VARIANTS)
    assert together["my own"] not in VARIANTS.values()


def test_a_report_shows_the_files_beside_the_results(results):
    shutil.copy(
        results / "runs" / "tiny-n=2-seed0" / "model.safetensors", results / "a.safetensors"
    )
    phnn.save(phnn.create_model("resnet20"), results / "b.safetensors")  # knows no classes
    (results / "net.onnx").write_bytes(b"x" * 2000)
    fields = ["runtime", "form", "bytes", "inference_seconds", "inference_ratio"]
    with (results / "bench.csv").open("w", newline="") as file:
        csv.writer(file).writerows([fields, ["torch", "folded", 2e6, 0.004, 0.5]])
    text = write_report(results).read_text()
    assert "Shrunk and shipped" in read_page(text).titles
    for cell in ("a.safetensors", "net.onnx", "0.002", "folded", "4.00"):
        assert f">{cell}</td>" in text
    assert "was saved without classes" in text
    assert "undefined" not in text.partition("</style>")[2]
