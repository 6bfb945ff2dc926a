"""Write the trained networks that come with the package, their cards and their table.

    python benchmarks/pretrained.py --runs runs/worth --root FOLDER [--out src/phnn/models/weights]
        [--table results/pretrained.csv]

Takes the networks of the first seed that `worth.py` trained, stores their filters in float16, and
tests what is in the file. A file that is there is not written again.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import phnn
from phnn.lab.runs import Run
from phnn.lab.trained import evaluate, load_trained
from phnn.models import pretrained
from worth import name_folder

SEED = 0
SETTINGS = {
    "cifarnet-cifar10-real": "real",
    "cifarnet-cifar10-n2": "n=2",
    "cifarnet-cifar10-n4": "n=4",
    "cifarnet-cifar10-quaternion": "quaternion",
    "cifarnet-cifar10_shrunk-real": "shrunk n=4",
}
FIELDS = ("network", "parameters", "file_bytes", "accuracy", "commit", "ended", "command")
LICENCE = (
    "The network was trained on CIFAR-10 (A. Krizhevsky, 2009), whose authors ask to cite their "
    "report and name no licence. The weights are under the licence of this package, as far as "
    "rights in them are ours."
)
CARD = """# {stem}

{what} for the ten classes of CIFAR-10, images of 32 × 32 pixels: {classes}.

| parameters | file | test accuracy |
|---:|---:|---:|
| {parameters:,} | {kilobytes:,.0f} kB | {accuracy:.2f} % |

```python
model = phnn.create_model({call}).eval()
model.phnn_metadata  # mean and std of the channels, for pixels between 0 and 1; class names
```

- **Training**: the recipe `cifar10-fast`{recipe}: `{command}`,
  seed {seed}, commit {commit}, {ended}, {precision}.
- **Score**: of this file, on all 10,000 test images and their mirror images, one seed:
  `phnn test {stem}.safetensors --learner.test_flips true --data.root FOLDER`.
- **Storage**: filters in float16, everything else in float32.
- **Data and licence**: {licence}
"""


def describe(label: str) -> tuple[str, str]:
    """Return what a network is, and how its training differs from the recipe."""
    if label.endswith("shrunk-real"):
        what = "The real network, shrunk by `phnn.convert` and trained for two more epochs,"
        return what, ", then `benchmarks/worth_starts.py`"
    return "A small convolutional network (`cifarnet`)", ""


def write(stem: str, run: Run, folder: Path, root: Path) -> dict[str, Any]:
    """Write a file and its card; return its row of the table."""
    file = folder / f"{stem}.safetensors"
    result = run.result
    assert result is not None  # main takes runs that have ended
    trained = load_trained(run.folder)
    metadata: dict[str, Any] = {
        key: trained.metadata[key]
        for key in ("classes", "mean", "std", "image_size", "crop", "task", "data", "seed")
        if key in trained.metadata
    }
    phnn.save(trained.model, file, metadata=metadata, storage="float16")
    overrides = {"data": {"root": str(root)}, "learner": {"test_flips": True}}
    accuracy = evaluate(load_trained(file), overrides)["test_accuracy"]
    found = pretrained.Pretrained.read(file)
    what, recipe = describe(stem)
    name, *rest = found.arguments.items()
    text = CARD.format(
        stem=stem,
        what=what,
        recipe=recipe,
        classes=", ".join(metadata["classes"]),
        parameters=result["parameters"],
        kilobytes=file.stat().st_size / 1000,
        accuracy=100 * accuracy,
        call=", ".join(
            [json.dumps(name[1]), *(f"{key}={json.dumps(value)}" for key, value in rest)]
        ),
        command=result["command"],
        seed=SEED,
        commit=result["commit"],
        ended=result["ended"][:10],
        precision=result["precision"],
        licence=LICENCE,
    )
    file.with_suffix(".md").write_text(text, encoding="utf-8")
    return {
        "network": stem,
        "parameters": result["parameters"],
        "file_bytes": file.stat().st_size,
        "accuracy": f"{accuracy:.4f}",
        **{key: result[key] for key in ("commit", "ended", "command")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=Path, default=Path("runs/worth"))
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=pretrained.FOLDER)
    parser.add_argument("--table", type=Path, default=Path("results/pretrained.csv"))
    options = parser.parse_args()
    for stem, setting in SETTINGS.items():
        folder = name_folder(options.runs, setting, SEED)
        if (options.out / f"{stem}.safetensors").exists() or not (folder / "result.json").exists():
            continue
        row = write(stem, Run.open(folder), options.out, options.root)
        is_new = not options.table.exists()
        with options.table.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        print(row)


if __name__ == "__main__":
    main()
