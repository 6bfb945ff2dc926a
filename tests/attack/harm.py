"""What is done to files, and what a command may say about them."""

import contextlib
import io
import struct

from torch import nn

from attack.sandbox import RefusedError
from phnn import cli

VALUES = [
    None, True, False, 0, -1, 1, 3, 10**9, 10**30, 1.5, -0.0, 1e300, float("inf"), float("nan"), "",
    "x", "quaternion", "cyclic(300)", "\x1b[2J\x07", "$\\frac{$", "../../x", "/etc/passwd", "polar",
    "PHConv2d", [], [1, 2], [10**6] * 3, [[]], {}, {"name": "a"}, {"a": {"b": [1]}}, "0.A", "a\nb",
    "\x00", "n" * 5000, [0] * 3, ["a", "b"],
]  # fmt: skip


def damage(draw, content):
    """Return bytes with some of them changed, cut off, repeated or added."""
    content = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8, 64])):
        how = draw.randrange(6)
        at = draw.randrange(len(content)) if content else 0
        if how == 0 and content:
            content[at] ^= 1 << draw.randrange(8)
        elif how == 1 and content:
            content[at] = draw.randrange(256)
        elif how == 2:
            content = content[:at]
        elif how == 3:
            content += bytes(draw.randrange(256) for _ in range(draw.choice([1, 8, 1000])))
        elif how == 4:
            content[at:at] = content[at : at + draw.choice([1, 16, 4096])]
        else:
            content[at : at + 8] = struct.pack("<Q", draw.choice([0, 2**31, 2**63, 2**64 - 1]))
    return bytes(content)


def alter(draw, tree):
    """Change values anywhere in a tree of mappings and lists, in place."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        paths = list(list_paths(tree))
        if not paths:
            return
        *parents, last = draw.choice(paths)
        inner = tree
        for key in parents:
            inner = inner[key]
        how = draw.randrange(8)
        if how == 0 and isinstance(inner, dict):
            del inner[last]
        elif how == 1 and isinstance(inner, dict):
            inner[draw.choice(["", "x", "\x1b[2J", "__class__", "a.b"])] = draw.choice(VALUES)
        else:
            inner[last] = draw.choice(VALUES)


def list_paths(tree, path=()):
    children = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in children:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from list_paths(value, (*path, key))


def command(*argv, names=()):
    """Run the command line in this process: it must end well, or with one line that says why."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([str(each) for each in argv])
        except SystemExit as ended:
            code = ended.code
    said = out.getvalue() + err.getvalue()
    bad = [
        character for character in said if not (character.isprintable() or character in "\n\t\r")
    ]
    assert not bad, f"control characters {bad!r} printed"
    if code == 2:
        message = err.getvalue().strip()
        assert message, "refused without a reason"
        for name in names:
            assert str(name) in message, f"{name} is not named: {message}"
        raise RefusedError(f"{argv[0]}: {message[-300:]}")
    assert code == 0, f"exit code {code}: {err.getvalue()[-500:]}"
    return f"{argv[0]} took it"


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def refusal(error, path):
    """Return the error of a case that was refused; it must name the file."""
    assert path.name in str(error), f"{path.name} is not named: {error}"
    return RefusedError(str(error))
