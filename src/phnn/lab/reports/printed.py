"""The paper's own numbers as tables and figures, to lay beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phnn.lab.comparison import Comparison, Variant, load_comparison
from phnn.lab.drawing import Picture
from phnn.lab.packaged import read_recipe
from phnn.lab.paper.printed import PRINTED
from phnn.lab.paper.sizes import parse_numbers
from phnn.lab.recipe import merge
from phnn.lab.reports.bubbles import draw_bubbles
from phnn.lab.reports.deviations import draw_deviations, find_datasets
from phnn.lab.reports.sizes import draw_sizes
from phnn.lab.reports.successes import draw_successes
from phnn.lab.reports.summaries import Spread, Summary
from phnn.lab.tasks.sound.report.radar import draw_radar

TABLES = (
    "vgg",
    "resnet",
    "ablation-smallest",
    "ablation-depth",
    "ablation-reduced",
    "imagenet",
    "sednet",
)
# options of a network that tell the rows of the paper's tables apart
_TELLING = {"classifier": "ph", "width_multiplier": 1.0}
_CHANNELS = {"sednet-4": 4, "sednet-8": 8, "sednet-16": 16}


def parse_spread(text: str) -> Spread:
    """Return a printed number with its deviation.

    Example:
        >>> parse_spread("85.067 ± 0.765"), parse_spread("67.990")
        (Spread(mean=85.067, std=0.765), Spread(mean=67.99, std=None))
    """
    mean, _, std = text.partition("±")
    return Spread(float(mean), float(std) if std else None)


def summarize_paper(comparison: Comparison) -> list[Summary]:
    """Return what the paper prints about a comparison, as if it were a result."""
    return [_summarize(comparison, variant) for variant in comparison.variants]


def _summarize(comparison: Comparison, variant: Variant) -> Summary:
    scores = {
        score.name: parse_spread(variant.paper[score.name])
        for score in comparison.task.scores
        if score.name in variant.paper
    }
    times = {
        key: parse_spread(variant.paper[key])
        for key in ("train", "val", "test")
        if key in variant.paper
    }
    sizes = _find_sizes(variant)
    share = 100 / comparison.task.timed
    train = times.get("train")
    return Summary(
        variant.family,
        variant.name,
        comparison.task,
        seeds=(),
        failed=0,
        waiting=0,
        scores=scores,
        paper=variant.paper,
        train_seconds_per_100=train and share * train.mean,
        train_seconds_per_100_std=share * train.std if train and train.std else None,
        val_seconds=times["val"].mean if "val" in times else None,
        test_seconds=times["test"].mean if "test" in times else None,
        **sizes,
    )


def _find_sizes(variant: Variant) -> dict[str, Any]:
    """Return the printed parameters and storage of a variant."""
    model = merge(read_recipe(variant.recipe), {"model": variant.options})["model"]
    telling = {key: model.get(key, usual) for key, usual in _TELLING.items()}
    version = variant.name
    if model.get("width_multiplier", 1.0) != 1.0:
        version = "real"
    elif version == "real":  # its classifier is real in any case
        telling["classifier"] = "ph" if model["name"] == "vgg16" else telling["classifier"]
    for printed in PRINTED:
        known = {key: printed.options.get(key, usual) for key, usual in _TELLING.items()}
        classes = 1000 if variant.family.endswith("imagenet") else None
        channels = _CHANNELS.get(variant.family)
        if (
            printed.model == model["name"]
            and version in printed.numbers
            and known == telling
            and printed.options.get("num_classes") == classes
            and printed.options.get("in_channels") == channels
        ):
            numbers = parse_numbers(printed.numbers[version])
            count = round(1e6 * float(numbers.params))
            key = "conv_parameters" if channels else "parameters"
            storage = float(numbers.storage) if numbers.storage else None
            return {key: count, "storage_mib": storage}
    return {}


def draw_paper() -> Iterator[Picture]:
    """Yield the figures of the paper that show results, from the numbers it prints."""
    known = {name: summarize_paper(load_comparison(name)) for name in TABLES}
    images = [*known["vgg"], *known["resnet"]]
    for dataset, members in find_datasets(images).items():
        yield Picture(
            f"paper-deviation-{dataset}",
            draw_deviations(f"The paper: {dataset}, VGG and ResNet", members),
            "Accuracy against parameters as the paper prints them; the area of a bubble is "
            "proportional to the standard deviation.",
        )
    for name in ("vgg", "resnet", "sednet"):
        caption = "What the paper prints; the area of a bubble is proportional to the parameters."
        title = f"The paper: {load_comparison(name).title}"
        yield Picture(f"paper-bubble-{name}", draw_bubbles(title, known[name]), caption)
    contests = [
        {s.variant: s.score.mean for s in known["resnet"] if s.family == family and s.score}
        for family in dict.fromkeys(summary.family for summary in known["resnet"])
    ]
    yield Picture(
        "paper-successes",
        draw_successes(contests, "The paper: how often each variant has the best mean"),
        "The paper counts single runs, which it does not print; these are the means of its table.",
    )
    family = "resnet50-cifar10"
    members = [summary for summary in known["resnet"] if summary.family == family]
    yield Picture(f"paper-sizes-{family}", draw_sizes(members, f"The paper: {family}"), "")
    yield Picture(
        "paper-radar",
        draw_radar(
            {s.variant: [_as_result(s)] for s in known["sednet"] if s.family == "sednet-8"},
            known["sednet"][0].task.scores,
            "The paper: SEDnets with 8 channels",
        ),
        "Scores, parameters of the convolutions and times as the paper prints them.",
    )


def _as_result(summary: Summary) -> dict[str, Any]:
    """Return a summary as the result of one run, as the radar takes it."""
    scores = {f"test_{name}": spread.mean for name, spread in summary.scores.items()}
    return {
        **scores,
        "parameters": summary.conv_parameters,
        "train_seconds_per_100": summary.train_seconds_per_100,
        "test_seconds": summary.val_seconds,
    }
