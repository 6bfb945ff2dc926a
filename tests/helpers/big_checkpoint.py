"""Convert a synthetic checkpoint of many megabytes; print sizes and the peak of memory as JSON.

Usage: big_checkpoint.py FOLDER MEGABYTES
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

LARGEST = (4096, 8192)  # 134 MB in float32


def write(folder: Path, megabytes: int) -> None:
    """Write tensors of up to 134 MB in files of about 500 MB."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    places, shard, size, number = {}, {}, 0, 0
    shapes = [LARGEST, (4096, 4096), (4096,), (256, 256, 3, 3), (32000, 256)]
    names = ["mlp.weight", "attention.weight", "norm.weight", "conv.weight", "embed_tokens.weight"]
    layer = 0
    torch.manual_seed(0)
    while size < megabytes * 10**6:
        for name, shape in zip(names, shapes, strict=True):
            tensor = torch.randn(shape)
            shard[f"layers.{layer}.{name}"] = tensor
            size += tensor.nbytes
        layer += 1
        done = size >= megabytes * 10**6
        if done or sum(tensor.nbytes for tensor in shard.values()) > 5 * 10**8:
            number += 1
            file = f"model-{number:05}.safetensors"
            save_file(shard, folder / file)
            places |= dict.fromkeys(shard, file)
            shard = {}
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def convert(folder: Path) -> None:
    from phnn.io.checkpoints import Plan, convert_checkpoint

    found = convert_checkpoint(folder / "source", folder / "out", Plan(4))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    largest = 4 * LARGEST[0] * LARGEST[1]
    sizes = {"bytes": found.before, "after": found.after, "largest": largest, "peak": peak}
    print(json.dumps({**sizes, "layers": len(found.layers)}))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if sys.argv[2] == "convert":
        convert(target)
    else:
        write(target / "source", int(sys.argv[2]))
        # another process: the peak of this one is that of writing
        subprocess.run([sys.executable, __file__, str(target), "convert"], check=True)
